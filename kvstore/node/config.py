"""The node's settings: one table, from which the TOML file, environment, flags, help and page of the docs follow.

A value is looked for in this order: flag ``--key-name``, environment ``KVSTORE_KEY_NAME``, key ``key_name`` of
the TOML file, default.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kvstore.core.errors import ConfigError
from kvstore.node.defaults import default_data_dir, default_socket
from kvstore.node.kinds import (
    ADDRESS,
    COUNT,
    COUNT_OR_AUTO,
    DISCOVERY,
    DURATION,
    DURATION_OR_OFF,
    FLAG,
    MODE,
    NUMA_NODES,
    NUMBER,
    PATH,
    PATH_OR_AUTO,
    PATH_OR_OFF,
    RATIO,
    SIZE,
    SIZE_OR_AUTO,
    SOCKET,
    TEXT_OR_AUTO,
    TEXT_OR_OFF,
    Kind,
    one_of,
    some_of,
)
from kvstore.node.sanity import check
from kvstore.node.sources import ENV_PREFIX, read_environment, read_toml
from kvstore.node.units import Address, Discovery

__all__ = ["FLAG", "NodeConfig", "Setting", "default_socket", "load", "markdown", "settings", "with_capacity"]


def _setting(kind: Kind, default: Any, help: str, *, default_text: str | None = None) -> Any:
    """A row of the table. A callable default is computed at load; ``default_text`` is what the docs print then."""
    metadata = {"kind": kind, "help": help, "default_text": default_text}
    return (
        field(default_factory=default, metadata=metadata)
        if callable(default)
        else field(default=default, metadata=metadata)
    )


@dataclass(frozen=True)
class NodeConfig:
    """All settings of a node, checked. Sizes are bytes, durations seconds, None is "auto" or "off"."""

    data_address: Address | None = _setting(
        ADDRESS, Address("127.0.0.1", 7000), "Where the data path listens for TCP. Port 0 takes any free one."
    )
    control_address: Address | None = _setting(
        ADDRESS,
        Address("127.0.0.1", 7001),
        "Where the gRPC control plane listens. off: `kvstore stat`, `match`, `evict`, `prefetch`, `pin`, `unpin`, "
        "`namespace`, `purge --blocks`, `cluster status` and `Client.stat` do not work; caching does.",
    )
    http_address: Address | None = _setting(
        ADDRESS, Address("127.0.0.1", 7002), "Where /metrics and /health are served."
    )
    socket: Path | None = _setting(
        SOCKET,
        default_socket,
        "Unix socket of the data path; clients of this host use it for shared memory.",
        default_text="$XDG_RUNTIME_DIR/kvstore/node.sock, else kvstore-<uid>/node.sock in the temporary directory",
    )
    socket_mode: int = _setting(MODE, 0o600, "Permissions of the unix socket; its directory is made with 0700.")
    transports: tuple[str, ...] = _setting(
        some_of("shm", "nixl", "ucx", "tcp"),
        ("shm", "tcp"),
        "How clients may have bytes moved, beside tcp, which always works. nixl and ucx need the extra of that name, "
        "and trust whoever reaches the fabric (rdma.md).",
    )
    fabric_devices: str | None = _setting(
        TEXT_OR_AUTO,
        None,
        "Network devices of nixl and ucx, in UCX's words: `mlx5_0:1`, or several with commas. auto: loopback alone "
        "where data_address is; else the RDMA devices of this host, and all devices where there are none.",
    )
    data_dir: Path = _setting(
        PATH,
        default_data_dir,
        "Directory of the node's identity; one living node at a time.",
        default_text="$XDG_STATE_HOME/kvstore, else ~/.local/state/kvstore",
    )
    memory_dir: Path = _setting(PATH, Path("/dev/shm"), "Directory of the memory file, on tmpfs or hugetlbfs.")
    memory_file: Path | None = _setting(
        PATH_OR_AUTO,
        None,
        "Path of the memory file, instead of memory_dir. auto: kvstore-<node id>.mem in memory_dir.",
    )
    memory_numa: tuple[int, ...] | None = _setting(
        NUMA_NODES,
        None,
        "NUMA nodes that the node's memory comes from, as long as they have room: `0`, or several in turn: `0,1`. "
        "auto: those of the RDMA devices in use, where these are not all. off: wherever the kernel gives it.",
    )
    capacity: int | None = _setting(
        SIZE_OR_AUTO,
        None,
        "Most memory that the memory file takes, tables and headers included; the index is beside it. "
        "auto: 25 % of RAM, at most half of what is free there.",
    )
    segment_bytes: int | None = _setting(
        SIZE_OR_AUTO,
        None,
        "Pieces in which DRAM is dedicated to slot sizes; a power of two, and the largest part of a block. "
        "auto: 64MiB, less for small capacities.",
    )
    max_blocks: int | None = _setting(
        COUNT_OR_AUTO, None, "Rows of the index. auto: one for each 16 KiB of capacity, at least 65536."
    )
    eviction: str = _setting(one_of("lru", "turnscore"), "turnscore", "Which blocks go first when room is needed.")
    high_watermark: float = _setting(RATIO, 0.95, "Share of used slots above which eviction starts.")
    low_watermark: float = _setting(RATIO, 0.90, "Share of used slots down to which eviction goes.")
    max_pinned_bytes: int | None = _setting(
        SIZE_OR_AUTO, None, "Bytes that hard-pinned blocks may take. auto: a quarter of the capacity."
    )
    max_pinned_bytes_tenant: int | None = _setting(
        SIZE_OR_AUTO, None, "The same for the namespaces of one tenant. auto: as max_pinned_bytes."
    )
    namespace_idle: float | None = _setting(
        DURATION_OR_OFF, 3600.0, "Blocks of a namespace that nobody used for this long go before all others."
    )
    namespace_ttl: float | None = _setting(
        DURATION_OR_OFF, None, "A namespace that nobody used for this long is dropped, unless it has hard pins."
    )
    scrub_rate: int = _setting(SIZE, 32 << 20, "Bytes a second of DRAM that are checked at rest. 0: none.")
    scrub_interval: float = _setting(DURATION, 600.0, "Time from the start of one check of all of DRAM to the next.")
    nvme_dir: Path | None = _setting(
        PATH_OR_OFF, None, "Directory of the NVMe tier, on a local disk; one living node at a time. off: DRAM only."
    )
    nvme_capacity: int = _setting(
        SIZE, 64 << 30, "Bytes of disk that the NVMe tier may take, its index included. It grows as it is used."
    )
    nvme_segment_bytes: int | None = _setting(
        SIZE_OR_AUTO,
        None,
        "Size of its segment files; a power of two, and more than the largest part of a block. "
        "auto: 256MiB, less for small capacities.",
    )
    nvme_write_rule: str = _setting(
        one_of("clean", "through", "off"),
        "clean",
        "When blocks are written to NVMe: as they leave DRAM (clean), as they are committed (through), never (off).",
    )
    nvme_admission: float = _setting(
        NUMBER, 0.0, "Least score of a block that is written when it leaves DRAM: 0 all, 0.5 half of the bytes, 1 less."
    )
    nvme_write_budget: int = _setting(
        SIZE, 0, "Bytes a second written to NVMe: the least score rises until it is kept. 0: no bound."
    )
    nvme_drive_writes: float = _setting(
        NUMBER, 0.0, "The same as a multiple of nvme_capacity a day, as drives are rated. 0: no bound."
    )
    nvme_io_threads: int = _setting(COUNT, 8, "Threads that read from and write to the disk.")
    nvme_scrub: int = _setting(SIZE, 32 << 20, "Bytes a second read to find decay before a reader does. 0: none.")
    nvme_flush: float = _setting(
        DURATION, 5.0, "At a clean stop, time to write blocks that are in DRAM only, the last used first."
    )
    room_wait: float = _setting(
        DURATION, 5.0, "Longest wait of a put for blocks on their way out of DRAM, before it says NO_SPACE."
    )
    max_sessions: int = _setting(COUNT, 256, "Client sessions at a time; one more is answered BUSY.")
    max_connections: int = _setting(
        COUNT, 1024, "Data connections at a time (a session may have several); one more is answered BUSY."
    )
    max_leased_slots: int | None = _setting(
        COUNT_OR_AUTO,
        None,
        "Slots that one session may hold at a time, to read and to write. auto: by capacity, at most 65536.",
    )
    max_leased_bytes: int | None = _setting(
        SIZE_OR_AUTO, None, "Bytes that one session may hold at a time. auto: half of the capacity."
    )
    max_frame_bytes: int = _setting(SIZE, 1 << 30, "Largest payload of one request or reply on the data path.")
    max_keys: int = _setting(COUNT, 65_536, "Most keys that one request may name.")
    discovery: Discovery | None = _setting(
        DISCOVERY,
        None,
        "How this node finds the other nodes of its cell, by their control addresses: `static://HOST:PORT,HOST:PORT`, "
        "`dns://NAME:PORT`, `etcd://HOST:PORT,HOST:PORT/CELL` or `etcds://` (with TLS). off: it stands alone.",
    )
    etcd_ca: Path | None = _setting(
        PATH_OR_OFF, None, "Certificates that sign etcd's, in PEM; off: those that gRPC trusts."
    )
    etcd_cert: Path | None = _setting(PATH_OR_OFF, None, "Certificate of this node for etcd, in PEM.")
    etcd_key: Path | None = _setting(PATH_OR_OFF, None, "Private key of that certificate, in PEM.")
    etcd_user: str | None = _setting(TEXT_OR_OFF, None, "User of etcd.")
    etcd_password_file: Path | None = _setting(PATH_OR_OFF, None, "File that holds that user's password.")
    advertise_host: str | None = _setting(
        TEXT_OR_AUTO,
        None,
        "Host name or address by which other nodes reach this one. auto: that of each address; where that is "
        "0.0.0.0 or ::, the address of this machine's name.",
    )
    host_name: str | None = _setting(
        TEXT_OR_AUTO, None, "Nodes with the same host_name are on the same machine. auto: the machine's own name."
    )
    zone: str | None = _setting(
        TEXT_OR_OFF, None, "Which part of the site this node is in: a rack, a room, a building."
    )
    cell_index_entries: int | None = _setting(
        COUNT_OR_AUTO,
        None,
        "Most blocks of the cell that this node knows the holders of, 28 bytes each as they come. "
        "auto: one for each 4 KiB of capacity, from 1048576 to 134217728.",
    )
    suspect_after: float = _setting(DURATION, 3.0, "A node that is silent for this long is suspect.")
    gone_after: float = _setting(
        DURATION, 300.0, "A node that is suspect for this long is gone: nothing is looked for there any more."
    )
    fetch: str = _setting(
        one_of("on", "off"),
        "on",
        "Whether this node gives its readers also what other nodes of the cell have: it fetches the blocks, and keeps "
        "them as extra copies.",
    )
    fetch_wait: float = _setting(
        DURATION, 2.0, "How long a get waits for blocks of other nodes at most; never past its own deadline."
    )
    replicas: int = _setting(
        COUNT,
        1,
        "How many nodes of the cell are to hold each block, from 1 to 8; the same on all nodes. New blocks are copied "
        "on, and again when a node that held them is gone.",
    )
    repair_rate: int = _setting(
        SIZE,
        256 << 20,
        "Bytes a second that this node has others copy, of what lost a copy and of what is read much. "
        "Copies of new blocks are not counted.",
    )
    heartbeat: float = _setting(
        DURATION, 5.0, "Network sessions send something this often; silent for three times as long, they end."
    )
    peer_timeout: float = _setting(
        DURATION, 10.0, "Longest wait for a peer that stalls within a request or reply; then its connection is closed."
    )
    shutdown_grace: float = _setting(DURATION, 3.0, "On SIGTERM, time that requests in progress get to finish.")
    control_threads: int = _setting(
        COUNT, 16, "gRPC calls worked on at a time; four times as many wait, further ones are refused."
    )
    control_message_bytes: int = _setting(
        SIZE, 64 << 20, "Largest gRPC message; a part of a block must fit to be put or got by gRPC."
    )
    http_connections: int = _setting(COUNT, 32, "HTTP requests served at a time.")
    allow_insecure_network: bool = _setting(
        FLAG,
        False,
        "Allow to listen beyond loopback without transport security: "
        "whoever reaches the port reads and writes all blocks.",
    )
    log_level: str = _setting(one_of("debug", "info", "warning", "error"), "info", "Least severity that is logged.")
    log_format: str = _setting(one_of("text", "json"), "text", "How log lines look.")

    def __post_init__(self) -> None:
        check(self, {s.key: s.kind for s in settings()})


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table as the help, docs and command line need it."""

    key: str
    kind: Kind
    default: str
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.key.upper()


def settings() -> list[Setting]:
    """The table, in order of declaration."""
    return [
        Setting(
            f.name,
            f.metadata["kind"],
            f.metadata["default_text"] or f.metadata["kind"].show(f.default),
            f.metadata["help"],
        )
        for f in fields(NodeConfig)
    ]


def load(
    path: Path | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> NodeConfig:
    """The configuration from a TOML file, the environment and flags by key. Raises ConfigError, one line."""
    environ = os.environ if environ is None else environ
    if path is None and environ.get("KVSTORE_CONFIG"):
        path = Path(environ["KVSTORE_CONFIG"])
    values: dict[str, Any] = {}
    if path is not None:
        values |= _checked(read_toml(path), str(path), lambda key: key)
    found = read_environment(environ, [setting.key for setting in settings()])
    values |= _checked(found, "the environment", lambda key: ENV_PREFIX + key.upper())
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    values |= _checked(given, "the command line", lambda key: "--" + key.replace("_", "-"))
    return NodeConfig(**values)


def _checked(raw: Mapping[str, object], source: str, spelling: Callable[[str], str]) -> dict[str, Any]:
    table = {setting.key: setting for setting in settings()}
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in table and isinstance(value, dict):
            raise ConfigError(
                f"{source} has a table [{key}]; settings stand at the top of the file, without sections", key=key
            )
        if key not in table:
            raise ConfigError(f"unknown setting {spelling(key)!r} in {source}{_nearest(key, table, spelling)}", key=key)
        try:
            values[key] = table[key].kind.parse(value)
        except ValueError as error:
            raise ConfigError(f"setting {spelling(key)!r} in {source}: {error}", key=key) from None
    return values


def _nearest(key: str, table: Iterable[str], spelling: Callable[[str], str]) -> str:
    close = difflib.get_close_matches(key.replace("-", "_").lower(), table, 1, 0.0)
    return f"; did you mean {spelling(close[0])!r}?" if close else ""


def with_capacity(config: NodeConfig, capacity: int) -> NodeConfig:
    """The same configuration with "auto" capacity resolved."""
    return replace(config, capacity=capacity)


def markdown() -> str:
    """docs/configuration.md."""
    rows = [f"| `{s.key}` | {s.kind.name} | {_code(s.default)} | {s.help} |" for s in settings()]
    return "\n".join([*_PAGE_HEAD, "| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows, ""])


def _code(text: str) -> str:
    return text if " " in text else f"`{text}`"


_PAGE_HEAD = [
    "# Configuration of a node",
    "",
    "Written by `python -m kvstore.node.config`; the table is `kvstore/node/config.py`.",
    "",
    "`kvstore node --config node.toml` reads one TOML file of these keys, without sections. Each key is also an",
    "environment variable (`KVSTORE_` and the key in capitals) and a flag (`--` and the key with dashes). A flag wins",
    "over the environment, the environment over the file (`KVSTORE_CONFIG` names it too). An unknown key is an error.",
    "`kvstore node --check` reads the configuration, says what is wrong, and exits.",
    "",
    'Sizes: `"8GiB"`, `"64MiB"`, `"4k"` (powers of 1024), `"8GB"` (powers of 1000), or bytes. Durations: `"500ms"`,',
    '`"30s"`, `"5m"`, or seconds. `off` closes a listener.',
    "",
    "True or false: in the file `true` or `false`; in the environment also `1`, `0`, `yes`, `no`, `on`, `off`; the",
    "flag stands alone (`--allow-insecure-network`), and is true.",
    "",
]

if __name__ == "__main__":
    print(markdown(), end="")
