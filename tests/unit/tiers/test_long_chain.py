"""A chain longer than DRAM: its first blocks leave while it is written or read, and none of it is lost."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import ChainSlice, PutOutcome
from tests.unit.tiers.filled import PATIENCE, Filled, Gate
from tests.unit.tiers.stores import MIB, ONE, STORED, audit, fill, keys_of
from tests.unit.tiers.two_tiers import audit_tiers, opened, still, two_tiers

LENGTH, PIECE = 160, 16  # DRAM has room for about 70
NO_SPACE = int(PutOutcome.NO_SPACE)
KEYS = keys_of(ONE, (7,) * LENGTH)


def put_all(filled: Filled) -> list[int]:
    """Outcomes of the chain, put in pieces."""
    store, outcomes = filled.store, list[int]()
    for first in range(0, LENGTH, PIECE):
        parent = KEYS[first - 1].tobytes() if first else b""
        keys = KEYS[first : first + PIECE]
        reserved = store.reserve(filled.session, filled.view.handle, ChainSlice(keys, parent, first))
        sums, written = fill(store, filled.view, keys, (0,), reserved, first + 1)
        filled.bytes.update(written)
        outcomes += store.commit(filled.session, reserved.id, sums) if reserved.id else reserved.outcomes
    return outcomes


def get_all(filled: Filled) -> int:
    """Blocks that come back, asked for again and again from where the answer before ended, as clients do."""
    first = 0
    while first < LENGTH:
        deadline = time.monotonic() + PATIENCE
        found = filled.store.acquire(filled.session, filled.view.handle, KEYS, first, deadline=deadline)
        filled.check(KEYS, first, found.offsets)
        if found.lease:
            filled.store.release(filled.session, [found.lease])
        if found.blocks <= first:
            return first
        first = found.blocks
    return first


def checked(store: BlockStore) -> None:
    still(store)
    audit(store)
    audit_tiers(store)


@pytest.mark.parametrize("rule", ["clean", "through"])
@pytest.mark.parametrize("policy", ["lru", "turnscore"])
def test_a_chain_of_twice_the_dram_is_stored_and_comes_back(policy: str, rule: str) -> None:
    with opened(policy=policy, nvme_write_rule=rule) as store:
        filled = Filled(store)
        assert put_all(filled) == [STORED] * LENGTH
        checked(store)
        assert [get_all(filled) for _ in range(3)] == [LENGTH] * 3
        checked(store)
        assert filled.counters.get("dropped_blocks_evicted", 0) == 0


def test_other_leaves_go_before_the_inner_blocks_of_a_long_chain() -> None:
    with opened() as store:
        filled = Filled(store)
        filled.put(1, 2, 3)
        put_all(filled)
        checked(store)
        assert [filled.tiers(number)[TierKind.DRAM] for number in (1, 2, 3)] == [0] * 3
        assert [filled.get(number) for number in (1, 2, 3)] == [8] * 3


def test_a_chain_longer_than_dram_ends_where_dram_ends_when_nothing_is_written() -> None:
    with opened(nvme_write_rule="off", room_wait=0.5) as store:
        filled = Filled(store)
        stored = put_all(filled).count(STORED)
        assert 0 < stored < LENGTH
        checked(store)
        assert 0 < get_all(filled) <= stored  # the watermark takes some of it


def test_pinned_blocks_stay_in_dram_while_a_long_chain_goes_by() -> None:
    with opened() as store:
        filled = Filled(store)
        filled.put(1)
        store.pin(filled.view.handle, keys_of(ONE, (11,) * 8), hard=True)
        assert put_all(filled) == [STORED] * LENGTH
        assert get_all(filled) == LENGTH
        assert filled.tiers(1)[TierKind.DRAM] == 8
        index = store._state.index
        assert int(np.count_nonzero(index.pins[: index.rows_used])) == 8
        checked(store)


def put_piece(filled: Filled, first: int, count: int) -> tuple[list[int], float]:
    """Outcomes of some blocks of the chain, and how long their reservation took."""
    store, parent = filled.store, KEYS[first - 1].tobytes() if first else b""
    keys, started = KEYS[first : first + count], time.monotonic()
    reserved = store.reserve(filled.session, filled.view.handle, ChainSlice(keys, parent, first))
    took = time.monotonic() - started
    outcomes = list(reserved.outcomes)
    if reserved.id:
        sums, written = fill(store, filled.view, keys[: outcomes.count(STORED)], (0,), reserved, first + 1)
        filled.bytes.update(written)
        store.commit(filled.session, reserved.id, sums)
    return outcomes, took


@pytest.mark.parametrize("policy", ["lru", "turnscore"])
def test_a_chain_that_fits_neither_tier_ends_at_once_where_both_end(policy: str) -> None:
    with opened(nvme=4 * MIB, policy=policy, room_wait=20.0) as store:
        filled, stored, slowest = Filled(store), 0, 0.0
        while stored < LENGTH:
            outcomes, took = put_piece(filled, stored, PIECE)
            slowest, stored = max(slowest, took), stored + outcomes.count(STORED)
            if NO_SPACE in outcomes:
                break
        assert outcomes == sorted(outcomes)
        assert 70 <= stored < LENGTH
        assert slowest < 1.5
        assert put_piece(filled, stored, PIECE)[0] == [NO_SPACE] * PIECE
        checked(store)
        assert store.match(filled.view.handle, KEYS).blocks == stored


def test_a_put_waits_for_room_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(room_wait=0.5) as store:
        filled, gate = Filled(store), Gate(monkeypatch, store)
        try:
            for first in range(0, 64, PIECE):
                put_piece(filled, first, PIECE)
            outcomes, took = put_piece(filled, 64, 32)
        finally:
            gate.open()
        assert 0 < outcomes.count(STORED) < 32
        assert set(outcomes) == {STORED, NO_SPACE}
        assert took < 1.5
        checked(store)


def test_a_put_does_not_wait_for_the_block_that_it_hangs_on_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = NamespaceSpec("big", 4, parts=(PartSpec("0", MIB),))
    monkeypatch.setattr(sys.modules[__name__], "KEYS", keys_of(spec, (7,) * 256))
    with opened(two_tiers(128 * MIB, 140 * MIB, nvme_segment_bytes=0, segment_bytes=4 * MIB)) as store:
        filled, took = Filled(store, spec), list[float]()
        for first in range(0, 256, 64):
            outcomes, seconds = put_piece(filled, first, 64)
            took.append(seconds)
            time.sleep(0.3)  # the block that the next piece hangs on is written meanwhile
        assert 0 < outcomes.count(STORED) < 64
        assert max(took) < 2.5
