"""Writes the parts of the Helm chart that follow from other files: `make chart-files`.

Helm reads nothing outside a chart, so dashboard and alerts are copied into it; the schema's `config` has one entry for
each setting of a node that no other value of the chart decides.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kvstore.node.config import FLAG, Setting, settings
from kvstore.node.kinds import COUNT, COUNT_OR_AUTO, NUMBER, RATIO

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "kvstore"
COPIES = {"dashboard.json": "deploy/grafana/kvstore.json", "alerts.yaml": "deploy/prometheus/alerts.yaml"}
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


def wanted() -> dict[Path, str]:
    """Content of each file that this program keeps."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    schema["properties"]["config"] = config_schema()
    files = {CHART / "values.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"}
    return files | {CHART / "files" / name: (ROOT / source).read_text() for name, source in COPIES.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say what differs instead of writing it")
    check = parser.parse_args().check
    stale = [path for path, text in wanted().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'differs; run make chart-files' if check else 'written'}")
        if not check:
            path.write_text(wanted()[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
