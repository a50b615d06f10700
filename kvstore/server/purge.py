"""Removing what a stopped node left in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvstore.node import identity
from kvstore.node.config import NodeConfig
from kvstore.tiers import memopen


@dataclass(frozen=True, slots=True)
class Purged:
    """``removed``: the memory file was there and is gone; else ``why`` not."""

    path: Path | None
    removed: bool
    why: str = ""


def purge_stopped(config: NodeConfig, force: bool = False) -> Purged:
    """Removes the memory file of the node of this configuration; ``force``: also when it is damaged. Raises InUse or
    ConfigError while it runs, and for a file that is none of kvstore's."""
    node_id = identity.peek(config.data_dir)
    if node_id is None and config.memory_file is None:
        return Purged(None, False, f"no node has ever lived in {config.data_dir}")
    path = identity.memory_path(config, node_id or b"")
    if node_id is None:
        return _removed(path, force)
    held = identity.claim(config.data_dir)
    try:
        return _removed(path, force)
    finally:
        held.close()


def _removed(path: Path, force: bool) -> Purged:
    done = memopen.purge(path, force)
    return Purged(path, done, "" if done else f"there is no {path}")


def purge_orphans(config: NodeConfig) -> list[memopen.Orphan]:
    """Removes memory files of former nodes from the memory directory: which ones. Those in use stay."""
    node_id = identity.peek(config.data_dir)
    own = identity.memory_path(config, node_id) if node_id else Path()
    return [one for one in memopen.orphans(config.memory_dir, own) if memopen.purge(one.path)]
