"""Each promise of a store with DRAM and NVMe."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvstore.core.errors import ConfigError, Unsupported
from kvstore.core.keys import KeyArray
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.sessions import Session
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import AckLevel, ChainSlice, MissReason, NamespaceView, PutOutcome
from tests.unit.tiers.stores import MIB, ONE, STORED, TWO, audit, fill, keys_of, put, read, small
from tests.unit.tiers.stores import opened as opened_dram
from tests.unit.tiers.two_tiers import audit_tiers, discard, opened, still, two_tiers

CHAIN = 8  # blocks; DRAM of a test holds about 8 such chains of ONE
PATIENCE = 20.0
Bytes = dict[tuple[bytes, int], bytes]


def chain(number: int, spec: NamespaceSpec = ONE, blocks: int = CHAIN) -> KeyArray:
    return keys_of(spec, tuple([number + 10] * blocks))


class Filled:
    """A store, a session, and chains with their bytes."""

    def __init__(self, store: BlockStore, spec: NamespaceSpec = ONE) -> None:
        self.store = store
        self.spec = spec
        self.view: NamespaceView = store.open_namespace(spec.canonical())
        self.session: Session = store.open_session(False)
        self.bytes: Bytes = {}

    def put(self, *numbers: int, ack: int = AckLevel.VISIBLE, deadline: float | None = None) -> list[int]:
        """Outcomes of all blocks."""
        found: list[int] = []
        for number in numbers:
            keys = chain(number, self.spec)
            parts = tuple(range(len(self.spec.parts)))
            reserved = self.store.reserve(
                self.session, self.view.handle, ChainSlice(keys), (), ack=ack, deadline=deadline
            )
            sums, written = fill(self.store, self.view, keys, parts, reserved, number + 1)
            outcomes = bytearray(reserved.outcomes)
            if reserved.id:
                places = [at for at, code in enumerate(outcomes) if code == STORED]
                codes = self.store.commit(self.session, reserved.id, sums, ack, deadline)
                for at, code in zip(places, codes, strict=True):
                    outcomes[at] = code
            self.bytes.update(written)
            found += outcomes
        return found

    def get(self, number: int, patience: float = PATIENCE) -> int:
        """Blocks of a chain that come back, and are what was put."""
        keys, first = chain(number, self.spec), 0
        while first < len(keys):
            deadline = time.monotonic() + patience
            found = self.store.acquire(self.session, self.view.handle, keys, first, deadline=deadline)
            self.check(keys, first, found.offsets)
            if found.lease:
                self.store.release(self.session, [found.lease])
            if found.blocks <= first:
                return first
            first = found.blocks
        return first

    def check(self, keys: KeyArray, first: int, offsets: np.ndarray) -> None:
        parts = len(self.spec.parts)
        for at, data in enumerate(read(self.store, self.view, offsets)):
            key = keys[first + at // parts].tobytes()
            assert data == self.bytes[key, at % parts], "a block came back with other bytes"

    def demote(self, *numbers: int) -> None:
        """Sends chains off to NVMe, as pressure would."""
        state, movement = self.store._state, self.store._movement
        assert movement
        for number in numbers:
            for key in chain(number, self.spec)[::-1]:
                with state.lock:
                    row = state.index.find_one(self.id, key.tobytes())
                    movement.demoter.send_off(row)
        still(self.store)

    @property
    def id(self) -> int:
        return self.store._state.namespaces.by_handle(self.view.handle).id

    def tiers(self, number: int) -> dict[TierKind, int]:
        return dict(self.store.match(self.view.handle, chain(number, self.spec)).tiers)

    @property
    def counters(self) -> dict[str, int]:
        return self.store.stat().counters


@pytest.fixture
def filled() -> Iterator[Filled]:
    with opened() as store:
        yield Filled(store)
        still(store)
        audit(store)
        audit_tiers(store)


class Gate:
    """Holds writes to NVMe up until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: BlockStore) -> None:
        self.entered, self._open = threading.Event(), threading.Event()
        nvme: Any = store._state.placement.nvme  # type: ignore[union-attr]
        persist = nvme.persist

        def held(*arguments: object) -> object:
            self.entered.set()
            assert self._open.wait(PATIENCE)
            return persist(*arguments)

        monkeypatch.setattr(nvme, "persist", held)

    def open(self) -> None:
        self._open.set()


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
