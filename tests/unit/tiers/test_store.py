"""The store as a whole: it closes promptly, its threads fail loudly and go on, and it says how it is."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import pytest

from kvstore.core.errors import Closed, ConfigError
from kvstore.tiers.background import Background
from kvstore.tiers.memfile import purge
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import AckLevel, ChainSlice, MissReason, PutOutcome
from kvstore.v1 import types_pb2
from tests.unit.tiers.stores import MIB, ONE, TWO, keys_of, opened, put, small


def threads_of_the_store() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kvstore-")]


def test_codes_are_those_of_the_wire_contract() -> None:
    for values, wire, prefix in (
        (PutOutcome, types_pb2.PutOutcome, "PUT_OUTCOME_"),
        (MissReason, types_pb2.MissReason, "MISS_REASON_"),
        (AckLevel, types_pb2.AckLevel, "ACK_LEVEL_"),
    ):
        ours = {value.name: value.value for value in values if value.name != "NONE"}
        theirs = {name.removeprefix(prefix): number for name, number in wire.items()}
        theirs.pop("UNSPECIFIED", None)
        assert ours == theirs


def test_closing_stops_all_threads_and_a_second_time_does_nothing() -> None:
    before = threads_of_the_store()
    with opened() as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(True)
        assert len(threads_of_the_store()) > len(before)
        store.close()
        assert threads_of_the_store() == before
        store.close()
        for call in (
            store.stat,
            store.namespaces,
            store.purge,
            store.shared_memory,
            store.open_reader,
            lambda: store.open_namespace(ONE.canonical()),
            lambda: store.open_session(False),
            lambda: store.match(view.handle, keys_of(ONE, (1,))),
            lambda: store.release(session, [1]),
            lambda: store.commit(session, 1, []),  # type: ignore[arg-type]
            lambda: store.close_session(session),
        ):
            with pytest.raises(Closed):
                call()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "belady"}, "'belady' does not exist"),
        ({"node_id": b"short"}, "node_id is 5 bytes"),
        ({"low_watermark": 0.9, "high_watermark": 0.8}, "in this order"),
        ({"max_sessions": 0}, "max_sessions is 0"),
        ({"capacity_bytes": 1000}, "too small"),
        ({"segment_bytes": 12345}, "power of two"),
    ],
)
def test_a_wrong_setting_is_named_and_leaves_nothing_behind(change: dict[str, object], message: str) -> None:
    config = small()
    before = threads_of_the_store()
    with pytest.raises(ConfigError, match=message):
        BlockStore(replace(config, **change))  # type: ignore[arg-type]
    assert threads_of_the_store() == before
    with opened(config) as store:
        assert store.stat().blocks == 0


def test_a_failing_background_step_is_logged_and_counted_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.tiers.background._PAUSE_AFTER_ERROR", 0.01)
    calls, failures = [], []

    def step() -> float:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("no luck")
        return 10.0

    with caplog.at_level(logging.ERROR):
        thread = Background("trying", step, failures.append)
        deadline = time.monotonic() + 20
        while len(calls) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        thread.stop()
    assert (len(calls), failures) == (3, ["kvstore-trying"] * 2)
    assert caplog.text.count("trying again") == 2


def test_a_sleeping_background_thread_stops_at_once_and_wakes_when_told() -> None:
    woken = threading.Event()
    calls: list[int] = []

    def step() -> float | None:
        calls.append(1)
        if len(calls) == 2:
            woken.set()
        return None

    thread = Background("sleeper", step, lambda name: None)
    thread.wake.set()
    assert woken.wait(20)
    thread.stop()
    assert "kvstore-sleeper" not in threads_of_the_store()


def test_stat_tells_what_is_there() -> None:
    with opened() as store:
        view, session = store.open_namespace(TWO.canonical()), store.open_session(True)
        keys = keys_of(TWO, (1, 2, 3))
        put(store, session, view, keys[:2])
        found = store.acquire(session, view.handle, keys[:2])
        store.reserve(session, view.handle, ChainSlice(keys[2:], keys[1].tobytes(), 2))
        stat = store.stat()
        assert (stat.blocks, stat.writing, stat.leases, stat.reservations, stat.sessions) == (2, 1, 1, 1, 1)
        assert (stat.leased_blocks, stat.orphan_sessions, stat.unverified) == (3, 0, 0)
        assert stat.ready_bytes == 2 * 79_000
        (tier,) = stat.tiers
        assert (tier.name, tier.slots_used, tier.trouble) == ("dram", 6, "")
        assert tier.used_bytes == 3 * (73_728 + 12_288)
        assert 0 < tier.backed_bytes <= 16 * MIB
        assert stat.counters["put_blocks_stored"] == 2
        assert 0 < stat.index_bytes < 10 * MIB
        assert len(stat.boot_id) == 16
        store.release(session, [found.lease])


def test_a_client_learns_what_it_needs_to_map_the_memory() -> None:
    with opened() as store:
        memory = store.shared_memory()
        assert memory.bytes == store.config.memory_file.stat().st_size
        assert memory.segment_bytes == MIB
        assert memory.data_offset % MIB == 0
        state = (store.config.memory_file.parent / f"{store.config.memory_file.name}.lock").stat()
        assert (memory.lock_device, memory.lock_inode) == (state.st_dev, state.st_ino)


def test_two_boots_have_different_ids_and_a_purged_file_is_gone() -> None:
    config = small()
    with opened(config) as store:
        first = store.boot_id
        store.close()
        again = BlockStore(config)
        assert again.boot_id != first
        again.close()
        assert purge(config.memory_file)
        assert list(config.memory_file.parent.glob(config.memory_file.name + "*")) == []
