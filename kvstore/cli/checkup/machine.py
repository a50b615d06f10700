"""Whether this machine is fit for a node with these settings. Each check says what it saw, and what to do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from kvstore.core.errors import ConfigError
from kvstore.node import capacity, identity
from kvstore.node.config import NodeConfig
from kvstore.node.status.findings import Finding
from kvstore.node.units import Address, show_size
from kvstore.tiers.memfile import HUGETLBFS_MAGIC, file_system_type

_FILES = 4096  # descriptors for the connections that a node takes by default
_PINNED = 1 << 30  # memory that RDMA wants to lock at least
_LIBRARIES = ("grpcio", "protobuf", "numpy", "xxhash", "lmdb", "prometheus-client", "nixl-cu12", "ucxx-cu12", "cupy")
_INFINIBAND = Path("/sys/class/infiniband")


def versions() -> Iterator[Finding]:
    """Of the program and of what it stands on."""
    import kvstore

    yield Finding("ok", f"kvstore {kvstore.__version__}, Python {platform.python_version()}, {platform.release()}")
    found = {name: version for name in _LIBRARIES if (version := _version(name))}
    yield Finding("ok", "with " + ", ".join(f"{name} {version}" for name, version in found.items()))
    if sys.maxsize < 2**32 or sys.byteorder != "little":
        yield Finding("error", "this machine is not a 64-bit little-endian one", "kvstore does not run here")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def memory(config: NodeConfig) -> Iterator[Finding]:
    """The file system of the memory file: its kind, and room for the capacity."""
    path = identity.memory_path(config, identity.peek(config.data_dir) or bytes(16))
    try:
        capacity.check_memory_file(path)
        size = capacity.resolve(config.capacity, path)
    except ConfigError as error:
        yield Finding("error", f"shared memory: {error}", "see above; in Kubernetes: an emptyDir of medium Memory")
        return
    stat = os.statvfs(path.parent)
    total = stat.f_blocks * stat.f_frsize
    yield Finding("ok", f"{show_size(size)} of DRAM fit into {path.parent} ({show_size(total)})")
    if total and size > 0.9 * total:
        yield Finding(
            "warning", f"{show_size(size)} are nearly all of {path.parent}: other programs there may fail",
            "set a smaller capacity, or enlarge it (mount -o remount,size=...)",
        )  # fmt: skip
    if size > (ram := capacity.ram_bytes()):
        yield Finding(
            "error", f"capacity is {show_size(size)}, but this machine or container has {show_size(ram)} of memory",
            "set a smaller capacity, or raise the container's memory limit: the node would be killed as it fills",
        )  # fmt: skip


def huge_pages(
    config: NodeConfig, huge: Path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
) -> Iterator[Finding]:
    """Whether the memory file is backed by large pages: fewer page faults, and fewer entries for RDMA cards."""
    path = identity.memory_path(config, identity.peek(config.data_dir) or bytes(16))
    try:
        kind = file_system_type(path.parent)
    except OSError:
        return  # told of by ``memory``
    if kind == HUGETLBFS_MAGIC:
        yield Finding("ok", f"{path.parent} is a hugetlbfs")
        return
    chosen = _chosen(huge)
    if chosen in ("always", "within_size", "force"):
        yield Finding("ok", f"tmpfs uses huge pages ({chosen})")
    else:
        yield Finding(
            "note", f"the memory file has pages of {os.sysconf('SC_PAGESIZE')} bytes",
            "for large capacities mount a hugetlbfs and set memory_dir, or echo within_size > " + str(huge),
        )  # fmt: skip


def _chosen(path: Path) -> str:
    """The word in brackets of a file as "always [never]"."""
    try:
        return path.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def limits(config: NodeConfig) -> Iterator[Finding]:
    """Open files, and memory that may be locked."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wanted = min(_FILES, config.max_connections + 256)
    if files != resource.RLIM_INFINITY and files < wanted:
        yield Finding(
            "warning", f"a process may open {files} files; max_connections = {config.max_connections} needs {wanted}",
            "raise it (ulimit -n, LimitNOFILE=) or lower max_connections",
        )  # fmt: skip
    else:
        yield Finding("ok", f"a process may open {files} files")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if not _INFINIBAND.exists() or os.geteuid() == 0:
        return
    if locked != resource.RLIM_INFINITY and locked < _PINNED:
        yield Finding(
            "warning", f"a process may lock {show_size(locked)} of memory; RDMA locks all that it reads from",
            "set memlock to unlimited (LimitMEMLOCK=infinity, or the container's IPC_LOCK capability)",
        )  # fmt: skip


def rdma(root: Path = _INFINIBAND) -> Iterator[Finding]:
    """RDMA devices, and whether the library that uses them is there."""
    try:
        devices = sorted(one.name for one in root.iterdir())
    except OSError:
        devices = []
    nixl = _version("nixl-cu12") or _version("nixl")
    if not devices:
        yield Finding("note", "there is no RDMA device: nodes and clients on other machines use TCP")
    elif not nixl:
        yield Finding("note", f"RDMA devices {', '.join(devices)} are not used", "pip install 'kvstore-llm[nixl]'")
    else:
        yield Finding("ok", f"RDMA devices {', '.join(devices)}, nixl {nixl}")


def ports(config: NodeConfig, ours: set[int]) -> Iterator[Finding]:
    """Whether the ports are free, or (``ours``) the running node's own."""
    for key in ("data_address", "control_address", "http_address"):
        address: Address | None = getattr(config, key)
        if address is None or not address.port or address.port in ours:
            continue
        if trouble := _bind(address):
            yield Finding(
                "error", f"{key} {address}: {trouble}", f"stop what listens there (ss -ltnp), or set another {key}"
            )


def _bind(address: Address) -> str:
    """Why one cannot listen there; empty: one can."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
