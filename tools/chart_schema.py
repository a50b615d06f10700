"""Writes what of the Helm chart's schema follows from the code: `make chart-schema`.

Its `config` has one entry for each setting of a node that no other value of the chart decides.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvstore.node.config import FLAG, Setting, settings
from kvstore.node.kinds import COUNT, COUNT_OR_AUTO, NUMBER, RATIO

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "kvstore"
SCHEMA = CHART / "values.schema.json"
# Settings that other values of the chart decide, and how.
DECIDED = {
    "data_address": "network", "control_address": "network", "http_address": "network",
    "allow_insecure_network": "network.allowInsecure", "socket": "socket", "socket_mode": "socket.mode",
    "data_dir": "nvme", "memory_dir": "dram", "memory_file": "dram", "capacity": "dram.capacity",
    "nvme_dir": "nvme", "nvme_capacity": "nvme.capacity", "nvme_flush": "shutdown.flushSeconds",
    "shutdown_grace": "shutdown.graceSeconds", "discovery": "cell.discovery", "etcd_ca": "cell.etcd.tls",
    "etcd_cert": "cell.etcd.tls", "etcd_key": "cell.etcd.tls", "etcd_user": "cell.etcd.auth",
    "etcd_password_file": "cell.etcd.auth", "advertise_host": "cell", "host_name": "cell", "zone": "cell.zone",
}  # fmt: skip
_GENERIC = {"size", "number", "duration", "path", "text", "URL", "host:port"}  # names of kinds, no values


def entry(setting: Setting) -> dict[str, Any]:
    """What the schema says of one setting: words, or numbers from text. The node itself checks the rest."""
    words = setting.kind.name.split(" or ")
    if setting.kind is FLAG:
        return {"description": setting.help, "type": "boolean"}
    if setting.default in words and not _GENERIC & set(words):
        return {"description": setting.help, "type": "string", "enum": words}
    kinds: Any = ["string", "number"]
    if setting.kind in (COUNT, NUMBER, RATIO):
        kinds = "number"
    elif setting.kind is COUNT_OR_AUTO:
        kinds = ["integer", "string"]
    return {"description": f"{setting.help} Default: {setting.default}.", "type": kinds}


def config_schema() -> dict[str, Any]:
    return {
        "description": "Further settings of docs/configuration.md, by key. Those that other values decide are refused.",
        "type": "object",
        "additionalProperties": False,
        "properties": {s.key: entry(s) for s in settings() if s.key not in DECIDED},
    }  # fmt: skip


def wanted() -> str:
    """Content of the schema."""
    schema = json.loads(SCHEMA.read_text())
    schema["properties"]["config"] = config_schema()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(wanted())
