"""How many bytes each namespace has in each tier, counted when somebody asks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.tiers.index import READY
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import NamespaceStat

if TYPE_CHECKING:
    from kvstore.tiers.namespaces import Namespace
    from kvstore.tiers.state import State

_SCAN = 65_536
_IDS = 65_536
Sizes: TypeAlias = dict[int, tuple[tuple[TierKind, int], ...]]


def sizes(state: State) -> Sizes:
    """Bytes of READY parts by tier, for each namespace id. Called without the lock: blocks that come and go meanwhile
    are counted or not."""
    if state.placement is None:
        return {one.id: ((TierKind.DRAM, one.bytes),) for one in state.namespaces}
    known = list(state.namespaces)
    residence = state.placement.residence
    widest = max((len(one.cuts) for one in known), default=0)
    lengths = np.zeros((widest, _IDS), np.int64)
    for one in known:
        lengths[: len(one.cuts), one.id] = [cut.length for cut in one.cuts]
    totals = {tier: _total(state, residence.parts[tier], lengths) for tier in residence.tiers}
    return {one.id: tuple((tier, int(totals[tier][one.id])) for tier in residence.tiers) for one in known}


def _total(state: State, masks: npt.NDArray[np.uint64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bytes by namespace id of the parts whose bits are set in ``masks``, a column by row."""
    index, total = state.index, np.zeros(_IDS, np.int64)
    for start in range(0, index.rows_used, _SCAN):
        part = slice(start, min(start + _SCAN, index.rows_used))
        here = np.flatnonzero((index.state[part] == READY) & (masks[part] != 0))
        ids, bits = index.namespace[part][here], masks[part][here]
        for number in range(len(lengths)):
            mine = ids[bits >> np.uint64(number) & np.uint64(1) != 0]
            total += np.bincount(mine, minlength=_IDS) * lengths[number]
    return total


def described(state: State, found: Namespace, by_tier: Sizes) -> NamespaceStat:
    """Under the lock: a namespace with its numbers."""
    idle = max(0.0, time.time() - found.used)
    return NamespaceStat(
        found.handle, found.root, found.spec, found.canonical, state.index.blocks_of(found.id), found.bytes, idle,
        by_tier.get(found.id, ()), state.pins.bytes_of(found), found.generation,
    )  # fmt: skip
