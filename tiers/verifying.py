"""Checking bytes against their checksums: what a crash left behind is checked before its first use."""

from __future__ import annotations

import numpy as np

from kvstore.core.checksum import chunk_sums, part_seed
from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import IntArray
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.state import State
from kvstore.tiers.tier import SlotArray


class Verifier:
    """Works without the lock, on rows that the caller holds."""

    def __init__(self, state: State) -> None:
        self._state = state

    def first_bad(
        self, namespace: Namespace, keys: KeyArray, parts: tuple[int, ...], part_rows: list[IntArray],
        slots: list[SlotArray],
    ) -> int | None:  # fmt: skip
        """Position of the first block with a part that fails its check. Only parts not checked before are read."""
        state = self._state
        if not state.unverified_parts:
            return None
        for at in range(len(keys)):
            for part, rows, addresses in zip(parts, part_rows, slots, strict=True):
                row = int(rows[at])
                if row < 0 or not state.unverified[row]:
                    continue
                if not self._sound(namespace, keys[at].tobytes(), part, int(addresses[at])):
                    return at
                with state.lock:
                    state.verified(row)
        return None

    def _sound(self, namespace: Namespace, key: bytes, part: int, slot: int) -> bool:
        cut, dram = namespace.cuts[part], self._state.dram
        stored = dram.checksums(np.array([slot], np.uint32), range(cut.count))[0]
        found = chunk_sums(dram.view(slot, cut.length), part_seed(key, part), cut)
        return bool((stored == found).all())
