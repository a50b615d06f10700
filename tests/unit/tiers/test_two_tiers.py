"""Each promise of a store with DRAM and NVMe."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import MissReason
from tests.unit.tiers.filled import CHAIN, PATIENCE, Filled, Gate, chain
from tests.unit.tiers.stores import MIB, STORED, TWO, audit
from tests.unit.tiers.two_tiers import audit_tiers, opened, still, two_tiers

# --- leaving DRAM and coming back -----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lru", "turnscore"])
def test_more_than_dram_holds_comes_back_byte_for_byte(policy: str) -> None:
    with opened(policy=policy) as store:
        filled = Filled(store)
        assert set(filled.put(*range(30))) == {STORED}
        assert sum(filled.get(number) for number in range(30)) == 30 * CHAIN
        assert filled.counters.get("dropped_blocks_evicted", 0) == 0
        still(store)
        audit(store)
        audit_tiers(store)


def test_parts_of_a_block_move_together() -> None:
    with opened() as store:
        filled = Filled(store, TWO)
        filled.put(1, 2)
        filled.demote(1)
        assert filled.tiers(1) == {TierKind.DRAM: 0, TierKind.NVME: CHAIN}
        assert filled.get(1) == CHAIN
        assert filled.tiers(1) == {TierKind.DRAM: CHAIN, TierKind.NVME: CHAIN}
        still(store)
        audit(store)
        audit_tiers(store)


def test_a_promoted_block_keeps_its_copy_and_leaves_dram_again_without_a_write(filled: Filled) -> None:
    filled.put(1)
    filled.demote(1)
    assert filled.get(1) == CHAIN
    filled.demote(1)
    assert filled.tiers(1) == {TierKind.DRAM: 0, TierKind.NVME: CHAIN}
    assert filled.counters["written_blocks"] == CHAIN
    assert filled.counters["demoted_blocks_clean"] == CHAIN


def test_write_rule_through_writes_at_commit() -> None:
    with opened(nvme_write_rule="through") as store:
        filled = Filled(store)
        filled.put(1)
        still(store)
        assert filled.counters["written_blocks"] == CHAIN
        assert filled.tiers(1)[TierKind.DRAM] == CHAIN


def test_write_rule_off_drops_victims() -> None:
    with opened(nvme_write_rule="off") as store:
        filled = Filled(store)
        assert set(filled.put(*range(12))) == {STORED}
        counters = filled.counters
        assert counters["demotion_refused_blocks_off"] == counters["dropped_blocks_evicted"] > 0
        assert "written_blocks" not in counters


def test_victims_below_the_score_are_dropped_and_counted() -> None:
    with opened(nvme_admission=7.0) as store:
        filled = Filled(store)
        filled.put(*range(12))
        still(store)
        assert filled.counters["demotion_refused_blocks_score"] == filled.counters["dropped_blocks_evicted"] > 0
        assert "written_blocks" not in filled.counters


def test_a_block_below_the_score_is_written_when_others_on_nvme_hang_on_it(filled: Filled) -> None:
    filled.put(1)
    movement, state = filled.store._movement, filled.store._state
    assert movement
    with state.lock:
        movement.demoter.send_off(state.index.find_one(filled.id, chain(1)[-1].tobytes()))
    still(filled.store)
    movement.demoter.admission.threshold = 9.0
    with state.lock:
        movement.demoter.send_off(state.index.find_one(filled.id, chain(1)[-2].tobytes()))
    still(filled.store)
    assert filled.get(1) == CHAIN


def test_a_full_nvme_tier_lets_its_own_victims_go() -> None:
    with opened(two_tiers(8 * MIB, 8 * MIB)) as store:
        filled = Filled(store)
        assert set(filled.put(*range(40))) == {STORED}
        still(store)
        nvme = store.stat().tiers[1]
        assert filled.counters["nvme_evicted_blocks"] > 0
        assert nvme.backed_bytes <= nvme.capacity_bytes
        assert filled.get(39) == CHAIN
        still(store)
        audit(store)
        audit_tiers(store)


def test_no_put_is_dropped_while_nvme_has_room() -> None:
    """Many writers at once, twice the DRAM."""
    with opened(two_tiers(8 * MIB, 128 * MIB, room_wait=PATIENCE)) as store:
        outcomes: list[int] = []

        def write(first: int) -> None:
            filled = Filled(store)
            outcomes.extend(filled.put(*range(first, first + 6)))

        threads = [threading.Thread(target=write, args=(100 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == [STORED] * 4 * 6 * CHAIN
        still(store)
        audit(store)
        audit_tiers(store)


# --- during a move --------------------------------------------------------------------------------------------


def test_a_block_is_read_in_dram_while_it_is_written(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.put(1)
    gate = Gate(monkeypatch, filled.store)
    demoting = threading.Thread(target=filled.demote, args=(1,))
    demoting.start()
    assert gate.entered.wait(PATIENCE)
    found = filled.store.acquire(filled.session, filled.view.handle, chain(1))
    assert found.blocks == CHAIN
    gate.open()
    demoting.join()
    filled.check(chain(1), 0, found.offsets)
    assert filled.tiers(1)[TierKind.DRAM] == CHAIN, "a leased block left DRAM"
    filled.store.release(filled.session, [found.lease])
    filled.demote(1)
    assert filled.tiers(1)[TierKind.DRAM] == 0
    assert filled.counters["written_blocks"] == CHAIN


@pytest.mark.parametrize("how", ["evict", "drop_namespace", "purge"])
def test_a_block_dropped_while_it_is_written_is_gone(filled: Filled, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    filled.put(1)
    gate = Gate(monkeypatch, filled.store)
    demoting = threading.Thread(target=filled.demote, args=(1,))
    demoting.start()
    assert gate.entered.wait(PATIENCE)
    if how == "evict":
        assert filled.store.evict(filled.view.handle, chain(1))[0] == CHAIN
    elif how == "purge":
        assert filled.store.purge()[0] == CHAIN
    else:
        assert filled.store.drop_namespace(filled.view.root)[0] == CHAIN
    gate.open()
    demoting.join()
    assert filled.store.stat().blocks == 0
    assert filled.store.stat().nvme.blocks == 0  # type: ignore[union-attr]


# --- reading from NVMe ----------------------------------------------------------------------------------------


def test_without_a_deadline_nothing_is_loaded_and_with_a_passed_one_the_prefix_ends(filled: Filled) -> None:
    filled.put(1)
    filled.demote(1)
    keys = chain(1)
    found = filled.store.acquire(filled.session, filled.view.handle, keys)
    assert (found.blocks, found.prefix_blocks, found.miss) == (0, CHAIN, MissReason.LOADING)
    assert "promoted_bytes" not in filled.counters
    late = filled.store.acquire(filled.session, filled.view.handle, keys, deadline=time.monotonic() - 1)
    assert (late.blocks, late.prefix_blocks, late.miss) == (0, 0, MissReason.LOADING)
    assert filled.counters["miss_blocks_loading"] == CHAIN


def test_a_reader_gets_what_has_come_while_the_rest_is_loading(filled: Filled) -> None:
    filled.put(1)
    filled.demote(1)
    deadline = time.monotonic() + PATIENCE
    head = filled.store.acquire(filled.session, filled.view.handle, chain(1), 0, max_blocks=2, deadline=deadline)
    assert head.blocks == 2
    rest = filled.store.acquire(filled.session, filled.view.handle, chain(1), 0, deadline=deadline)
    assert rest.miss == MissReason.NONE
    assert 2 <= rest.blocks <= rest.prefix_blocks == CHAIN
    filled.store.release(filled.session, [head.lease, rest.lease])
    assert filled.get(1) == CHAIN


def test_a_reader_that_wants_all_of_it_waits_for_all_of_it(filled: Filled) -> None:
    filled.put(1)
    filled.demote(1)
    deadline = time.monotonic() + PATIENCE
    head = filled.store.acquire(filled.session, filled.view.handle, chain(1), 0, max_blocks=2, deadline=deadline)
    found = filled.store.acquire(filled.session, filled.view.handle, chain(1), 0, deadline=deadline, whole=True)
    assert found.blocks == CHAIN
    filled.check(chain(1), 0, found.offsets)
    filled.store.release(filled.session, [head.lease, found.lease])


def test_a_damaged_block_on_nvme_is_a_counted_miss_and_goes(filled: Filled) -> None:
    filled.put(1)
    filled.demote(1)
    state = filled.store._state
    row = state.index.find_one(filled.id, chain(1)[3].tobytes())
    slot = state.index.parts.slot_at[TierKind.NVME][state.index.first_part_at[row]]
    nvme: Any = state.placement.nvme  # type: ignore[union-attr]
    path = nvme._files.path(slot // nvme._slots.segment_granules)
    with open(path, "r+b") as file:
        file.seek(slot % nvme._slots.segment_granules * 4096 + 50_000)
        file.write(b"\xff" * 16)
    assert filled.get(1) == 3
    assert filled.counters["load_failed_blocks_checksum"] == 1
    assert filled.store.match(filled.view.handle, chain(1)).blocks == 3
