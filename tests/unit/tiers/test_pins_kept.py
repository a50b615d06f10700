"""Pins of a store with two tiers: they survive a restart wherever their blocks are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from unittest import mock

import pytest

from kvstore.tiers.index import HARD_PIN, NO_PIN, SOFT_PIN
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import StoreConfig
from tests.unit.tiers.filled import CHAIN, Filled, Gate, chain
from tests.unit.tiers.stores import MIB, STORED, TWO, put
from tests.unit.tiers.test_pins_model import audit_pins
from tests.unit.tiers.two_tiers import Crash, audit_tiers, discard, opened, still, two_tiers


@pytest.fixture
def config() -> Iterator[StoreConfig]:
    made = two_tiers(max_pinned_bytes=8 * MIB)
    yield made
    discard(made)


def pins(filled: Filled, number: int) -> list[int]:
    """Kind of pin of each block of a chain."""
    index = filled.store._state.index
    return index.pins[index.find(filled.id, chain(number, filled.spec))].tolist()  # type: ignore[no-any-return]


def demoted(store: BlockStore, *numbers: int) -> Filled:
    """Chains that are on NVMe only."""
    filled = Filled(store)
    filled.put(*numbers)
    filled.demote(*numbers)
    return filled


@pytest.mark.parametrize("memory", ["kept", "lost"])
@pytest.mark.parametrize("when", ["before it left DRAM", "on NVMe only", "before it left DRAM and came back"])
def test_a_pin_survives_a_restart(config: StoreConfig, when: str, memory: str) -> None:
    with BlockStore(config) as store:
        filled = Filled(store)
        filled.put(1, 2, 3)
        if when == "on NVMe only":
            filled.demote(1, 2, 3)
        store.pin(filled.view.handle, chain(1), hard=True)
        store.pin(filled.view.handle, chain(2)[:3], ttl=1000)
        store.pin(filled.view.handle, chain(3), ttl=1)
        if when != "on NVMe only":
            filled.demote(1, 2, 3)
        if when.endswith("back"):
            assert filled.get(1) == filled.get(2) == CHAIN
    if memory == "lost":
        config.memory_file.unlink()
    later = mock.patch("kvstore.tiers.pins.time.time", return_value=time.time() + 10)
    with later, BlockStore(config) as store:
        again = Filled(store)
        assert pins(again, 1) == [HARD_PIN] * CHAIN
        assert pins(again, 2) == [SOFT_PIN] * 3 + [NO_PIN] * (CHAIN - 3)
        assert pins(again, 3) == [NO_PIN] * CHAIN
        audit_pins(store)
    with BlockStore(config) as store:
        assert pins(Filled(store), 3) == [NO_PIN] * CHAIN, "a pin that had ended was kept"


@pytest.mark.parametrize("memory", ["kept", "lost"])
def test_a_lifted_pin_and_that_of_a_dropped_block_do_not_come_back(config: StoreConfig, memory: str) -> None:
    with BlockStore(config) as store:
        filled = demoted(store, 1, 2, 3)
        for number in (1, 2, 3):
            store.pin(filled.view.handle, chain(number), hard=True)
        assert filled.get(1) == CHAIN
        store.unpin(filled.view.handle, chain(1))
        store.unpin(filled.view.handle, chain(2))
        store.evict(filled.view.handle, chain(3))
        filled.put(3)
        filled.demote(3)
    if memory == "lost":
        config.memory_file.unlink()
    with BlockStore(config) as store:
        again = Filled(store)
        assert [set(pins(again, number)) for number in (1, 2, 3)] == [{NO_PIN}] * 3
        assert store.stat().pins.hard_bytes == 0


@pytest.mark.parametrize("hard", [True, False])
def test_the_header_in_memory_knows_better_than_an_older_note_on_nvme(config: StoreConfig, hard: bool) -> None:
    """The node is killed right after a pin was set or lifted: NVMe has not heard of it."""
    with BlockStore(config) as store:
        filled = Filled(store)
        filled.put(1, 2)
        store.pin(filled.view.handle, chain(1), hard)
        still(store)
        assert store._state.placement
        committer = store._state.placement.nvme._committer
        committer.barrier().done.wait(10)
        committer._interval = 1000.0
        store.unpin(filled.view.handle, chain(1))
        store.pin(filled.view.handle, chain(2), hard)
        crash = Crash(store)
    crash.happen()
    with BlockStore(config) as store:
        assert set(pins(Filled(store), 1)) == {NO_PIN}
        assert set(pins(Filled(store), 2)) == {HARD_PIN if hard else SOFT_PIN}
    config.memory_file.unlink()  # and NVMe has heard of it meanwhile
    with BlockStore(config) as store:
        assert store.stat().blocks == store.stat().pins.hard_blocks == 0


def test_pins_of_a_dropped_namespace_are_forgotten(config: StoreConfig) -> None:
    with BlockStore(config) as store:
        filled = demoted(store, 1)
        store.pin(filled.view.handle, chain(1), hard=True)
        store.drop_namespace(filled.view.root)
    with BlockStore(config) as store:
        assert store._state.placement
        assert Filled(store).put(1) == [STORED] * CHAIN
        assert store.stat().pins.hard_blocks == 0
    with BlockStore(config) as store:
        assert store._state.placement
        index = store._state.placement.nvme._committer.index
        assert index
        assert not [key for key in index.metas(1) if key.startswith(b"pin")]


def test_a_pin_noted_with_one_part_holds_when_another_part_comes(config: StoreConfig) -> None:
    with BlockStore(config) as store:
        filled = Filled(store, TWO)
        put(store, filled.session, filled.view, chain(1, TWO), 0, (0,))
        store.pin(filled.view.handle, chain(1, TWO), hard=True)
        put(store, filled.session, filled.view, chain(1, TWO), 0, (1,))
    with BlockStore(config) as store:
        assert set(pins(Filled(store, TWO), 1)) == {HARD_PIN}


def test_a_block_that_is_pinned_hard_while_it_leaves_is_not_dropped_when_there_is_no_room_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(two_tiers(8 * MIB, 64 * MIB)) as store:
        filled, gate = Filled(store), Gate(monkeypatch, store)
        assert store._movement
        filled.put(1)
        monkeypatch.setattr("kvstore.tiers.storing._PATIENCE", 0.3)
        monkeypatch.setattr(store._movement._storer, "_allocate", lambda loads: [])
        gate.open()
        state = store._state
        for key in chain(1)[::-1]:
            with state.lock:
                store._movement.demoter.send_off(state.index.find_one(filled.id, key.tobytes()))
        assert store.pin(filled.view.handle, chain(1), hard=True) == CHAIN
        still(store)
        assert filled.tiers(1)[TierKind.DRAM] == CHAIN
        audit_tiers(store)


def test_a_pin_that_is_lifted_while_the_disk_is_away_does_not_come_back_with_it(config: StoreConfig) -> None:
    with BlockStore(config) as store:
        filled = Filled(store)
        filled.put(1)
        store.pin(filled.view.handle, chain(1), hard=True)
    failing = mock.patch("kvstore.tiers.opening.NvmeTier", side_effect=OSError(5, "Input/output error"))
    with failing, BlockStore(config) as store:
        assert store._state.placement is None
        filled = Filled(store)
        assert set(pins(filled, 1)) == {HARD_PIN}
        assert store.unpin(filled.view.handle, chain(1)) == CHAIN
    with BlockStore(config) as store:
        assert set(pins(Filled(store), 1)) == {NO_PIN}
