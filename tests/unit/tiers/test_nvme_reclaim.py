"""Block sizes change over the life of an NVMe tier: its segments follow, and what is being read stays."""

from __future__ import annotations

import numpy as np

from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import AckLevel
from tests.unit.tiers.filled import Filled, chain
from tests.unit.tiers.stores import MIB, STORED
from tests.unit.tiers.two_tiers import audit_tiers, opened, still

BIG = NamespaceSpec("big", 4, parts=(PartSpec("0", 250_000),))
LITTLE = NamespaceSpec("little", 4, parts=(PartSpec("0", 30_000),))
NVME = 16 * MIB


def on_nvme(store: BlockStore, filled: Filled) -> int:
    """Blocks of a namespace that can be read from NVMe."""
    state = store._state
    assert state.placement
    number = state.namespaces.by_handle(filled.view.handle).id
    used = state.index.rows_used
    mine = (state.index.namespace[:used] == number) & (state.placement.on_nvme[:used] != 0)
    return int(np.count_nonzero(mine))


def fill(store: BlockStore, filled: Filled, chains: range) -> None:
    at_once = max(1, 4_000_000 // (8 * filled.spec.parts[0].bytes))
    for start in range(0, len(chains), at_once):
        some = chains[start : start + at_once]
        filled.put(*some)
        filled.demote(*some)


def test_after_a_change_of_block_size_most_of_the_disk_serves_the_new_one() -> None:
    with opened(nvme=NVME, nvme_write_rule="clean") as store:
        big, little = Filled(store, BIG), Filled(store, LITTLE)
        fill(store, big, range(9))
        still(store)
        before = on_nvme(store, big)
        assert before * 250_000 > 0.55 * NVME
        fill(store, little, range(72))
        still(store)
        assert on_nvme(store, little) * 30_000 > 0.55 * NVME
        assert little.get(71) == len(chain(71, LITTLE))
        still(store)
        audit_tiers(store)
        fill(store, big, range(20, 29))  # and back
        still(store)
        assert on_nvme(store, big) > 0.7 * before
        audit_tiers(store)


def test_one_segment_goes_for_a_size_that_has_none() -> None:
    with opened(nvme=NVME, high_watermark=1.0, low_watermark=1.0) as store:
        big = Filled(store, BIG)
        fill(store, big, range(9))
        still(store)
        movement, state = store._movement, store._state
        assert movement
        assert state.placement
        slots, before = state.placement.nvme.slots, on_nvme(store, big)
        kind = slots.kind(LITTLE.parts[0].bytes, 1)
        empty = slots.room(kind)  # a segment that is empty by chance needs no reclaim
        assert movement.reclaimer.reclaim(kind)
        state.placement.nvme.sync()
        assert slots.room(kind) >= 20
        if not empty:
            assert 4 <= before - on_nvme(store, big) <= 8  # those in it, and what hangs on them
            assert store.stat().counters["nvme_reclaimed_segments"] == 1
        audit_tiers(store)


def test_blocks_under_a_lease_keep_their_segments() -> None:
    with opened(nvme=NVME) as store:
        big, little = Filled(store, BIG), Filled(store, LITTLE)
        fill(store, big, range(9))
        still(store)
        state = store._state
        assert state.placement
        held = np.flatnonzero(state.placement.on_nvme[: state.index.rows_used])[-3:]
        keys = [state.index.key(row) for row in held.tolist()]
        with state.lock:
            state.hold(held)
        fill(store, little, range(72))
        still(store)
        with state.lock:
            assert [state.index.key(row) for row in held.tolist()] == keys
            assert (state.placement.on_nvme[held] != 0).all()
            state.unhold(held)
        assert on_nvme(store, little) * 30_000 > 0.4 * NVME


def test_what_was_reclaimed_is_found_again_after_a_restart() -> None:
    with opened(nvme=NVME, nvme_write_rule="through") as store:
        big, little = Filled(store, BIG), Filled(store, LITTLE)
        fill(store, big, range(9))
        fill(store, little, range(40))
        assert set(little.put(99, ack=AckLevel.DURABLE)) == {STORED}
        still(store)
        config = store.config
        store.close()
        again = BlockStore(config)
        try:
            view = again.open_namespace(LITTLE.canonical())
            assert again.match(view.handle, chain(99, LITTLE)).blocks == len(chain(99, LITTLE))
            tiers = dict(again.match(view.handle, chain(99, LITTLE)).tiers)
            assert tiers[TierKind.NVME] == len(chain(99, LITTLE))
            audit_tiers(again)
        finally:
            again.close()
