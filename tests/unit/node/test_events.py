"""WatchEvents as the node serves it, without a network: who is told what, and how a stream begins and ends."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from kvstore.core.errors import Busy, InvalidArgument
from kvstore.node import events as events_module
from kvstore.node.events import Events
from kvstore.tiers.store import BlockStore
from kvstore.v1 import events_pb2 as pb
from tests.unit.tiers.stores import HYBRID, ONE, keys_of, opened, put

NODE_ID = bytes(range(16))


@pytest.fixture
def store() -> Iterator[BlockStore]:
    with opened() as found:
        found.journal.wake = threading.Event()  # batches are made when a test says so
        yield found


@pytest.fixture
def events(store: BlockStore) -> Events:
    return Events(store.journal, NODE_ID, store.boot_id, lambda: False)


def kinds(message: pb.EventBatch) -> list[str]:
    return [str(event.WhichOneof("what")) for event in message.events]


def with_events(stream: Iterator[pb.EventBatch], count: int) -> list[pb.EventBatch]:
    return list(itertools.islice((message for message in stream if message.events), count))


def fill(store: BlockStore, *paths: tuple[int, ...]) -> None:
    session = store.open_session(False)
    for spec, path in zip((ONE, HYBRID), paths, strict=False):
        put(store, session, store.open_namespace(spec.canonical()), keys_of(spec, path))
    store.journal.flush()


def test_a_stream_begins_with_a_snapshot_and_a_sign_of_life(store: BlockStore, events: Events) -> None:
    fill(store, (1, 2))
    stream = events.watch(pb.WatchEventsRequest())
    first, second, third = next(stream), next(stream), next(stream)
    assert kinds(first) == ["snapshot_begun"]
    assert kinds(second) == ["namespace_known", "stored", "snapshot_done"]
    assert second.events[0].namespace_known.canonical == ONE.canonical()
    run = second.events[1].stored
    assert (run.root, run.first_block, run.parent, run.keys, run.tiers) == (
        ONE.root, 0, b"", keys_of(ONE, (1, 2)).tobytes(), 1
    )  # fmt: skip
    assert second.events[2].snapshot_done.entries == 2
    assert first.status.capacity_bytes > first.status.free_bytes > 0
    assert (kinds(third), third.HasField("status")) == ([], True)
    assert {one.sequence for one in (first, second, third)} == {store.journal.sequence}
    assert {(one.node_id, one.boot_id) for one in (first, second, third)} == {(NODE_ID, store.boot_id)}


def test_who_has_seen_this_boot_goes_on_where_it_was(store: BlockStore, events: Events) -> None:
    with store.journal.watching():
        at = store.journal.sequence
        fill(store, (1, 2))
        fill(store, (1, 2, 3))
        later = next(
            iter(with_events(events.watch(pb.WatchEventsRequest(boot_id=store.boot_id, after_sequence=at + 1)), 1))
        )
        assert (kinds(later), later.sequence) == (["namespace_known", "stored"], at + 2)
        for request in (
            pb.WatchEventsRequest(boot_id=bytes(16), after_sequence=at + 1),  # another boot
            pb.WatchEventsRequest(boot_id=store.boot_id, after_sequence=at + 9),  # what never was
            pb.WatchEventsRequest(boot_id=store.boot_id),  # long ago
        ):
            assert kinds(with_events(events.watch(request), 1)[0]) == ["snapshot_begun"]


def test_a_namespace_is_introduced_once_and_again_when_it_was_dropped(store: BlockStore, events: Events) -> None:
    stream = events.watch(pb.WatchEventsRequest())
    with_events(stream, 2)
    found = []
    for path in ((1,), (1, 2)):
        fill(store, path)
        found += with_events(stream, 1)
    store.drop_namespace(ONE.root)
    fill(store, (1,))
    found += with_events(stream, 1)
    assert [kinds(message) for message in found] == [
        ["namespace_known", "stored"], ["stored"], ["namespace_dropped", "namespace_known", "stored"]
    ]  # fmt: skip


def test_watchers_of_a_namespace_hear_of_no_other(store: BlockStore, events: Events) -> None:
    fill(store, (1, 2), (1, 2, 3))
    stream = events.watch(pb.WatchEventsRequest(roots=[HYBRID.root]))
    begun, done = with_events(stream, 2)
    assert (kinds(begun), kinds(done)) == (["snapshot_begun"], ["namespace_known", "stored", "snapshot_done"])
    assert done.events[2].snapshot_done.entries == 3
    store.drop_namespace(ONE.root)
    store.journal.flush()
    store.evict(store.namespace_at(HYBRID.root).handle, keys_of(HYBRID, (1, 2, 3))[2:])
    store.journal.flush()
    messages = [next(stream) for _ in range(3)]
    assert [kinds(message) for message in messages] == [[], [], ["removed"]]
    at = store.journal.sequence
    assert [message.sequence for message in messages] == [at - 2, at - 1, at]  # without holes


def test_signs_of_life_come_without_events(store: BlockStore, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "HEARTBEAT", 0.02)
    draining: list[int] = []
    told = Events(store.journal, NODE_ID, store.boot_id, lambda: bool(draining))
    stream = told.watch(pb.WatchEventsRequest())
    with_events(stream, 2)
    signs = [next(stream) for _ in range(3)]
    assert all(not sign.events and sign.HasField("status") and not sign.status.draining for sign in signs)
    draining.append(1)
    assert any(next(stream).status.draining for _ in range(5))


def test_a_node_that_stops_says_so_in_every_stream(store: BlockStore, events: Events) -> None:
    streams = [events.watch(pb.WatchEventsRequest()) for _ in range(2)]
    for stream in streams:
        with_events(stream, 2)
    events.close()
    for stream in streams:
        *_, last = list(stream)
        assert last.leaving


def test_watchers_are_counted_and_bounded(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "MAX_WATCHERS", 2)
    events = Events(store.journal, NODE_ID, store.boot_id, lambda: False)
    one, two = (events.watch(pb.WatchEventsRequest()) for _ in range(2))
    assert next(one).events
    assert next(two).events
    with pytest.raises(Busy):
        next(events.watch(pb.WatchEventsRequest()))
    one.close()  # type: ignore[attr-defined]
    assert next(events.watch(pb.WatchEventsRequest())).events


def test_a_root_that_is_none_is_refused(events: Events) -> None:
    with pytest.raises(InvalidArgument):
        next(events.watch(pb.WatchEventsRequest(roots=[b"short"])))


def test_who_the_node_is_comes_first_and_when_it_changes(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "HEARTBEAT", 0.01)
    said = [b"one"]
    events = Events(store.journal, NODE_ID, store.boot_id, lambda: False, lambda: said[0])
    stream = events.watch(pb.WatchEventsRequest())
    signs = (message.member for message in stream if message.HasField("status"))
    assert [next(signs) for _ in range(3)] == [b"one", b"", b""]
    said[0] = b"two"
    assert [next(signs) for _ in range(3)] == [b"two", b"", b""]
    resumed = events.watch(pb.WatchEventsRequest(boot_id=store.boot_id, after_sequence=store.journal.sequence))
    assert next(resumed).member == b"two"
