"""A part that is lost on NVMe while others of its block are being written, or while it is being loaded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import ChainSlice
from tests.unit.tiers.filled import CHAIN, PATIENCE, Filled, chain
from tests.unit.tiers.stores import STORED, audit, fill, put, read
from tests.unit.tiers.two_tiers import audit_tiers, opened, still

NVME = TierKind.NVME
THREE = NamespaceSpec("three", 4, parts=tuple(PartSpec(f"tp{part}", 40_000 + 4096 * part) for part in range(3)))


@pytest.fixture
def filled() -> Iterator[Filled]:
    """The first part of a chain on NVMe only, the second in DRAM only."""
    with opened() as store:
        found = Filled(store, THREE)
        keys = chain(1, THREE)
        for part in (0, 1):
            _, written = put(store, found.session, found.view, keys, 0, (part,), seed=part + 5)
            found.bytes.update(written)
            if not part:
                found.demote(1)
        yield found
        still(store)
        audit(store)
        audit_tiers(store)


def lose(filled: Filled, block: int) -> None:
    """The scrubber finds the first part of a block damaged on NVMe."""
    state, movement = filled.store._state, filled.store._movement
    assert movement
    row = state.index.find_one(filled.id, chain(1, THREE)[block].tobytes())
    at = state.index.part_row(row, 0)
    movement._drop_bad(state.index.parts.slot_at[NVME][at], state.index.parts.generation_at[NVME][at])


def rewritten(filled: Filled, seed: int, parts: tuple[int, ...] = (0, 1, 2)) -> tuple[int, Any]:
    """A reservation of parts that is filled, and its checksums; what it holds of those that are not here counts."""
    keys = chain(1, THREE)
    reserved = filled.store.reserve(filled.session, filled.view.handle, ChainSlice(keys), parts)
    assert set(reserved.outcomes) == {STORED}
    sums, written = fill(filled.store, filled.view, keys, parts, reserved, seed)
    filled.bytes.update({place: data for place, data in written.items() if place not in filled.bytes})
    return reserved.id, (sums, written)


def test_a_slot_that_was_spare_is_used_when_the_part_was_lost_meanwhile(filled: Filled) -> None:
    number, (sums, written) = rewritten(filled, 9)
    for block in (0, 3):
        lose(filled, block)
        place = (chain(1, THREE)[block].tobytes(), 0)
        filled.bytes[place] = written[place]
    assert filled.store.commit(filled.session, number, sums) == bytes([STORED]) * CHAIN
    still(filled.store)
    audit(filled.store)
    audit_tiers(filled.store)
    assert filled.get(1) == CHAIN
    filled.demote(1)
    assert filled.get(1) == CHAIN


def test_a_part_that_was_lost_and_is_written_by_another_is_that_ones(filled: Filled) -> None:
    number, (sums, _) = rewritten(filled, 9)
    lose(filled, 0)
    keys = chain(1, THREE)[:1]
    other = filled.store.reserve(filled.session, filled.view.handle, ChainSlice(keys), (0,))
    assert other.outcomes == bytes([STORED])
    assert filled.store.commit(filled.session, number, sums) == bytes([STORED]) * CHAIN
    still(filled.store)
    audit(filled.store)
    audit_tiers(filled.store)
    assert filled.get(1) == 0, "the first block waits for its first part"
    sums, written = fill(filled.store, filled.view, keys, (0,), other, 11)
    filled.bytes.update(written)
    assert filled.store.commit(filled.session, other.id, sums) == bytes([STORED])
    assert filled.get(1) == CHAIN


def test_what_was_reserved_and_lost_is_given_back_when_it_is_aborted(filled: Filled) -> None:
    number, _ = rewritten(filled, 9)
    lose(filled, 0)
    filled.store.abort(filled.session, number)
    found = filled.store.acquire(
        filled.session, filled.view.handle, chain(1, THREE), parts=(1,), deadline=time.monotonic() + PATIENCE
    )
    assert found.blocks == CHAIN
    assert read(filled.store, filled.view, found.offsets[:1], (1,)) == [filled.bytes[chain(1, THREE)[0].tobytes(), 1]]
    filled.store.release(filled.session, [found.lease])


def test_a_part_that_is_lost_while_it_is_loaded_is_a_miss(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    nvme: Any = filled.store._state.placement.nvme  # type: ignore[union-attr]
    fetch, entered, go_on = nvme.fetch, threading.Event(), threading.Event()

    def held(*arguments: Any) -> Any:
        found = list(fetch(*arguments))
        entered.set()
        assert go_on.wait(PATIENCE)
        return iter(found)

    monkeypatch.setattr(nvme, "fetch", held)
    filled.store.prefetch(filled.session, filled.view.handle, chain(1, THREE), parts=(0,))
    assert entered.wait(PATIENCE)
    lose(filled, 2)
    go_on.set()
    still(filled.store)
    audit(filled.store)
    audit_tiers(filled.store)
    assert filled.store.match(filled.view.handle, chain(1, THREE), (0,)).blocks == 2
