"""How much memory a node takes when nobody says, and whether it is there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from kvstore.core.errors import ConfigError
from kvstore.node.units import show_size
from kvstore.tiers.layout import FORMAT, MAGIC, SUPERBLOCK
from kvstore.tiers.memfile import HUGETLBFS_MAGIC, TMPFS_MAGIC, file_system_type

MIN_CAPACITY = 4 << 20
_SHARE_OF_RAM = 4  # a quarter
_UNIT = 2 << 20  # capacities are whole huge pages
_ADVICE = "set a smaller capacity, or enlarge the filesystem (mount -o remount,size=..., docker run --shm-size=...)"


def check_memory_file(path: Path) -> None:
    """Raises ConfigError unless the memory file can lie here: on tmpfs or hugetlbfs, in a writable directory."""
    folder = path.parent
    try:
        kind = file_system_type(folder)
    except OSError as error:
        raise ConfigError(f"memory_file {path} cannot be made: {error.strerror}", key="memory_file") from None
    if kind not in (TMPFS_MAGIC, HUGETLBFS_MAGIC):
        raise ConfigError(
            f"memory_file {path} would be on neither tmpfs nor hugetlbfs, and its blocks would go through a disk; "
            "put it under /dev/shm or a mounted tmpfs",
            key="memory_file",
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"memory_file {path}: no permission to write there", key="memory_file")


def resolve(wanted: int | None, memory_file: Path) -> int:
    """The capacity in bytes: ``wanted``, else what the memory file of the last run has, else the default.

    Raises ConfigError when there is not that much room; what the old file holds counts as free.
    """
    stat = os.statvfs(memory_file.parent)
    size, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize + _held(memory_file)
    if not stat.f_blocks:  # mounted without a size
        size = free = ram_bytes()
    where = f"{memory_file.parent} has {show_size(size)}, {show_size(free)} of it free"
    default = min(ram_bytes() // _SHARE_OF_RAM, free // 2) // _UNIT * _UNIT
    before = _recorded(memory_file)
    capacity = wanted or (before if before is not None and before <= free else default)
    if capacity < MIN_CAPACITY:
        raise ConfigError(
            f"too little memory: {where}, and a node needs {show_size(MIN_CAPACITY)}; {_ADVICE}", key="capacity"
        )
    if capacity > free:
        raise ConfigError(f"too little memory for capacity = {show_size(capacity)}: {where}; {_ADVICE}", key="capacity")
    return capacity


def ram_bytes() -> int:
    """RAM of this machine, or of this container when it may use less."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    limits = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            limits.append(int(text))
    return limits


def _held(memory_file: Path) -> int:
    try:
        return os.stat(memory_file).st_blocks * 512
    except OSError:
        return 0


def _recorded(memory_file: Path) -> int | None:
    """Capacity that a memory file was made for: keeping it keeps the blocks."""
    try:
        with open(memory_file, "rb") as file:
            raw = file.read(SUPERBLOCK.itemsize)
    except OSError:
        return None
    if len(raw) < SUPERBLOCK.itemsize:
        return None
    block = np.frombuffer(raw, SUPERBLOCK)[0]
    return int(block["capacity"]) if block["magic"] == MAGIC and int(block["format"]) == FORMAT else None
