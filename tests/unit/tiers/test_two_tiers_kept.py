"""What two tiers promise: prefetched, durable, with a failing disk, over a restart."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvstore.core.errors import ConfigError, Unsupported
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import AckLevel, ChainSlice, PutOutcome
from tests.unit.tiers.filled import CHAIN, PATIENCE, Filled, Gate, chain
from tests.unit.tiers.stores import MIB, ONE, STORED, TWO, audit, put, small
from tests.unit.tiers.stores import opened as opened_dram
from tests.unit.tiers.two_tiers import audit_tiers, discard, opened, still, two_tiers

# --- prefetch -------------------------------------------------------------------------------------------------


def test_prefetch_brings_blocks_to_dram_and_counts_their_use(filled: Filled) -> None:
    filled.put(1, 2)
    filled.demote(1, 2)
    for number in (1, 2):
        found = filled.store.prefetch(filled.session, filled.view.handle, chain(number))
        assert (found.started, found.present, found.absent) == (CHAIN, 0, 0)
    still(filled.store)
    assert filled.tiers(1)[TierKind.DRAM] == CHAIN
    assert filled.store.prefetch(filled.session, filled.view.handle, chain(1)).present == CHAIN
    assert filled.store.prefetch(filled.session, filled.view.handle, chain(9)).absent == CHAIN
    assert filled.get(1) == CHAIN
    filled.demote(2)
    assert filled.counters["prefetch_used_blocks"] == CHAIN
    assert filled.counters["prefetch_wasted_blocks"] == CHAIN


def test_prefetch_needs_two_tiers() -> None:
    with opened_dram() as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        with pytest.raises(Unsupported, match="prefetch"):
            store.prefetch(session, view.handle, chain(1))


# --- durable --------------------------------------------------------------------------------------------------


def test_durable_blocks_and_what_they_hang_on_survive_the_loss_of_the_memory() -> None:
    config = two_tiers()
    try:
        with BlockStore(config) as store:
            filled = Filled(store)
            filled.put(1)
            assert set(filled.put(1, ack=AckLevel.DURABLE)) == {PutOutcome.PRESENT}
            assert set(filled.put(2, ack=AckLevel.DURABLE)) == {STORED}
            filled.put(3)
            kept = filled.bytes
        config.memory_file.unlink()
        with BlockStore(config) as store:
            again = Filled(store)
            again.bytes = kept
            assert [again.get(number) for number in (1, 2, 3)] == [CHAIN, CHAIN, 0]
            still(store)
            audit(store)
            audit_tiers(store)
    finally:
        discard(config)


def test_what_is_not_durable_in_time_is_not_acknowledged_as_durable(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, filled.store)
    outcomes = filled.put(1, ack=AckLevel.DURABLE, deadline=time.monotonic() + 0.2)
    assert set(outcomes) == {PutOutcome.NOT_DURABLE}
    assert filled.store.match(filled.view.handle, chain(1)).blocks == CHAIN
    gate.open()


def test_durable_is_refused_where_it_cannot_be_kept() -> None:
    with opened_dram() as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        with pytest.raises(Unsupported, match="durable"):
            store.reserve(session, view.handle, ChainSlice(chain(1)), ack=AckLevel.DURABLE)
    with opened(nvme_write_rule="off") as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        with pytest.raises(Unsupported, match="durable"):
            store.reserve(session, view.handle, ChainSlice(chain(1)), ack=AckLevel.DURABLE)


# --- disks that fail ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def failing(store: BlockStore, monkeypatch: pytest.MonkeyPatch, what: str) -> Iterator[None]:
    """The disk answers every read or write of a block with EIO."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    nvme: Any = store._state.placement.nvme  # type: ignore[union-attr]
    with monkeypatch.context() as patched:
        patched.setattr(nvme._files, what, fail)
        yield


def test_writes_that_fail_cost_blocks_and_nothing_else(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.put(1)
    filled.demote(1)
    with failing(filled.store, monkeypatch, "write"):
        assert set(filled.put(*range(2, 20))) == {STORED}
        still(filled.store)
        report = filled.store.stat().nvme
        assert report
        assert report.state == "degraded"
        assert report.advice
        assert set(filled.put(30, ack=AckLevel.DURABLE)) == {PutOutcome.NOT_DURABLE}
        assert filled.get(30) == CHAIN, "not durable, but visible"
        assert filled.get(1) == CHAIN, "reads from NVMe go on"
    deadline = time.monotonic() + PATIENCE
    while filled.store.stat().nvme.state != "ok":  # type: ignore[union-attr]
        assert time.monotonic() < deadline, "the tier does not recover"
        time.sleep(0.05)
    assert set(filled.put(40, ack=AckLevel.DURABLE)) == {STORED}
    assert filled.counters.get("background_failures", 0) == 0


def test_reads_that_fail_are_counted_misses(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.put(1)
    filled.demote(1)
    with failing(filled.store, monkeypatch, "read"):
        assert filled.get(1) == 0
    assert filled.counters["load_failed_blocks_io"] > 0
    assert filled.counters.get("background_failures", 0) == 0


# --- restart --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["kept", "lost"])
def test_a_clean_stop_flushes_what_is_in_dram_only(memory: str) -> None:
    config = two_tiers(flush_seconds=PATIENCE)
    try:
        with BlockStore(config) as store:
            filled = Filled(store)
            filled.put(*range(12))
            kept = filled.bytes
        if memory == "lost":
            config.memory_file.unlink()
        with BlockStore(config) as store:
            again = Filled(store)
            again.bytes = kept
            assert [again.get(number) for number in range(12)] == [CHAIN] * 12
            still(store)
            audit(store)
            audit_tiers(store)
    finally:
        discard(config)


def test_a_copy_damaged_in_memory_is_read_from_nvme_instead() -> None:
    config = two_tiers(flush_seconds=PATIENCE)
    try:
        with BlockStore(config) as store:
            filled = Filled(store)
            filled.put(1)
            kept, found = filled.bytes, store.acquire(filled.session, filled.view.handle, chain(1))
            store.dram.writable(int(found.offsets[2]), 1)[0] ^= 1
            store.release(filled.session, [found.lease])
            movement = store._movement
            assert movement
            movement.demoter.rule = "clean"
        with BlockStore(config) as store:
            again = Filled(store)
            again.bytes = kept
            assert again.get(1) in (2, CHAIN)  # the damage is found when it is flushed, or here
    finally:
        discard(config)


def test_a_directory_of_another_node_is_refused() -> None:
    config = two_tiers()
    try:
        BlockStore(config).close()
        other = small(8 * MIB, nvme_dir=config.nvme_dir, nvme_capacity_bytes=64 * MIB, node_id=b"x" * 16)
        with pytest.raises(ConfigError):
            BlockStore(other)
        discard(other)
    finally:
        discard(config)


def test_put_of_parts_one_by_one_across_tiers() -> None:
    with opened() as store:
        filled = Filled(store, TWO)
        keys = chain(1, TWO)
        _, first = put(store, filled.session, filled.view, keys, 0, (0,), seed=5)
        filled.bytes.update(first)
        filled.demote(1)
        _, second = put(store, filled.session, filled.view, keys, 0, (1,), seed=6)
        filled.bytes.update(second)
        assert filled.get(1) == CHAIN
        filled.demote(1)
        assert filled.get(1) == CHAIN
        still(store)
        audit(store)
        audit_tiers(store)
