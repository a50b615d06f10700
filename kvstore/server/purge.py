"""Removing what a stopped node left in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvstore.node import identity
from kvstore.node.config import NodeConfig
from kvstore.tiers import memfile


@dataclass(frozen=True, slots=True)
class Purged:
    """``removed``: the memory file was there and is gone; else ``why`` not."""

    path: Path | None
    removed: bool
    why: str = ""


def purge_stopped(config: NodeConfig) -> Purged:
    """Removes the memory file of the node of this configuration. Raises InUse or ConfigError while it runs."""
    node_id = identity.peek(config.data_dir)
    if node_id is None and config.memory_file is None:
        return Purged(None, False, f"no node has ever lived in {config.data_dir}")
    path = identity.memory_path(config, node_id or b"")
    if node_id is None:
        return _removed(path)
    held = identity.claim(config.data_dir)
    try:
        return _removed(path)
    finally:
        held.close()


def _removed(path: Path) -> Purged:
    done = memfile.purge(path)
    return Purged(path, done, "" if done else f"there is no {path}")
