"""Damage to blocks in a node's memory file, behind everybody's back."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from kvstore.tiers.layout import SUPERBLOCK

from .harness import Node


def memory_file(node: Node) -> Path:
    found = re.findall(r"/dev/shm/kvstore-[0-9a-f]+\.mem", (node.folder / "node.log").read_text())
    return Path(found[-1])


def damage(node: Node, slot_bytes: int, every: int = 1) -> int:
    """Flips one byte in every nth slot of this size that is in use; how many."""
    path = memory_file(node)
    size = path.stat().st_size
    with path.open("r+b") as memory:
        head = np.frombuffer(memory.read(SUPERBLOCK.itemsize), dtype=SUPERBLOCK)[0]
        first = size - int(head["segments"]) * int(head["segment_bytes"])
        used = []
        for at in range(first, size - slot_bytes + 1, slot_bytes):
            memory.seek(at)
            if any(memory.read(4096)):
                used.append(at)
        for at in used[::every]:
            memory.seek(at + slot_bytes // 2)
            byte = memory.read(1)[0]
            memory.seek(at + slot_bytes // 2)
            memory.write(bytes([byte ^ 0x40]))
    return len(used[::every])
