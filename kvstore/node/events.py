"""Serves WatchEvents: what the store's journal says, to other nodes and routers, each at its own pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass

from kvstore.core.errors import Busy, InvalidArgument
from kvstore.tiers.journal import BATCH_KEYS, Batch, Journal, Known, Outrun
from kvstore.tiers.runs import Dropped, Event, Removed, Stored
from kvstore.v1 import events_pb2 as pb

MAX_WATCHERS = 256
HEARTBEAT = 1.0  # seconds between signs of life
_ENCODED = 16  # batches that are kept as messages: watchers who keep up send the same ones


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A message for all, not to be changed. ``roots``: namespaces with blocks in it; ``drops``: it ends some."""

    message: pb.EventBatch
    roots: frozenset[bytes]
    drops: bool


class Events:
    """``draining`` says whether the node wants no new blocks, ``member`` who it is for its cell, ``age`` how long the
    block that goes next was not used. Thread-safe."""

    def __init__(
        self,
        journal: Journal,
        node_id: bytes,
        boot_id: bytes,
        draining: Callable[[], bool],
        member: Callable[[], bytes] = bytes,
        age: Callable[[], float] = float,
    ) -> None:
        self.boot_id = boot_id
        self.journal = journal
        self.closing = False
        self.member = member
        self.peers: Callable[[], tuple[bytes, ...]] = tuple  # other nodes that are heard, as JSON
        self.arrived: Callable[[bytes], None] = lambda member: None  # told who the watcher is, if it is a node
        self._node_id = node_id
        self._draining = draining
        self._age = age
        self._lock = threading.Lock()
        self.watchers = 0
        self._encoded: dict[int, _Encoded] = {}
        self._status = pb.NodeStatus()
        self._status_at = -HEARTBEAT

    def watch(self, request: pb.WatchEventsRequest) -> Iterator[pb.EventBatch]:
        """The stream of one watcher. Raises InvalidArgument, Busy."""
        if bad := [root for root in request.roots if len(root) != 16]:
            raise InvalidArgument(f"a namespace's root has 16 bytes, not {len(bad[0])}", field="roots")
        self._enter()
        try:
            with self.journal.watching():
                yield from _Stream(self, request).messages()
        finally:
            with self._lock:
                self.watchers -= 1

    def _enter(self) -> None:
        with self._lock:
            if self.watchers >= MAX_WATCHERS:
                raise Busy(f"{MAX_WATCHERS} watch the events of this node already; try later", bound="event_watchers")
            self.watchers += 1

    def close(self) -> None:
        """Says goodbye in all streams, and ends them."""
        self.closing = True
        self.journal.stir()

    def message(self, sequence: int, events: Iterable[pb.Event] = (), status: bool = False) -> pb.EventBatch:
        """A message of a stream. ``status``: with the state of the node."""
        found = self._state() if status else None
        return pb.EventBatch(
            node_id=self._node_id, boot_id=self.boot_id, sequence=sequence, events=events, status=found
        )  # fmt: skip

    def _state(self) -> pb.NodeStatus:
        """Asked for by all watchers, looked up for one of them."""
        with self._lock:
            if time.monotonic() - self._status_at > HEARTBEAT / 2:
                capacity, free = self.journal.room()
                self._status = pb.NodeStatus(
                    capacity_bytes=capacity, free_bytes=free, draining=self._draining(), eviction_age=self._age()
                )
                self._status_at = time.monotonic()
            return self._status

    def encoded(self, batch: Batch) -> _Encoded:
        """A batch as it is sent to those who want all of it."""
        with self._lock:
            found = self._encoded.get(batch.sequence)
        if found is None:
            roots = frozenset(event.root for event in batch.events if isinstance(event, Stored))
            drops = any(isinstance(event, Dropped) for event in batch.events)
            found = _Encoded(self.message(batch.sequence, map(_encode, batch.events)), roots, drops)
            with self._lock:
                self._encoded[batch.sequence] = found
                if len(self._encoded) > _ENCODED:
                    del self._encoded[min(self._encoded)]
        return found


class _Stream:
    """One watcher: where it is, and which namespaces it was told of."""

    def __init__(self, events: Events, request: pb.WatchEventsRequest) -> None:
        self._events = events
        self._journal = events.journal
        self._wanted = frozenset(request.roots)  # none: all
        self._known: set[bytes] = set()
        self._told = b""  # who the node is
        self._peer = request.member
        self._peers_told: set[bytes] = set()  # peers that it was told of
        self._resume = request.after_sequence if request.boot_id == events.boot_id else None

    def messages(self) -> Iterator[pb.EventBatch]:
        if self._peer:
            self._events.arrived(self._peer)
        at = self._resume
        if at is None:
            at = yield from self._snapshot()
        beat = 0.0
        while not self._events.closing:
            left = beat - time.monotonic()
            if left <= 0:
                yield self._signed(at)
                beat = time.monotonic() + HEARTBEAT
            try:
                batch = self._journal.next(at, max(0.0, left))
            except Outrun:
                at = yield from self._snapshot()
                continue
            if batch:
                at = batch.sequence
                yield self._message(batch)
        goodbye = self._events.message(at)
        goodbye.leaving = True
        yield goodbye

    def _signed(self, sequence: int, events: Iterable[pb.Event] = ()) -> pb.EventBatch:
        """A sign of life; with who the node is when this watcher does not know that."""
        message = self._events.message(sequence, events, status=True)
        member = self._events.member()
        if member != self._told:
            message.member = self._told = member
        if self._peer:
            peers = self._events.peers()
            message.peers.extend(one for one in peers if one not in self._peers_told)
            self._peers_told = set(peers)
        return message

    def _message(self, batch: Batch) -> pb.EventBatch:
        """What of a batch is for this watcher, namespaces introduced."""
        whole = self._events.encoded(batch)
        if whole.roots <= self._known and not whole.drops and not self._wanted:
            return whole.message
        return self._events.message(batch.sequence, self._chosen(batch.events, whole.message.events))

    def _chosen(self, events: Iterable[Event], messages: Iterable[pb.Event]) -> Iterator[pb.Event]:
        for event, message in zip(events, messages, strict=True):
            if not self._wants(event):
                continue
            if isinstance(event, Dropped):
                self._known.discard(event.root)
                yield message
                if (known := self._journal.known(event.root)) is not None:  # it was rotated
                    yield self._namespace(known)
                continue
            if isinstance(event, Stored) and event.root not in self._known:
                known = self._journal.known(event.root)
                if known is not None:  # else it was dropped meanwhile
                    yield self._namespace(known)
            yield message

    def _namespace(self, known: Known) -> pb.Event:
        self._known.add(known.root)
        return pb.Event(
            namespace_known=pb.NamespaceKnown(
                root=known.root, canonical=known.canonical, generation=known.generation, rotation=known.rotation
            )
        )

    def _wants(self, event: Event) -> bool:
        return self._asks_for(event.root)

    def _asks_for(self, root: bytes) -> bool:
        return not self._wanted or root in self._wanted

    def _snapshot(self) -> Generator[pb.EventBatch, None, int]:
        """Everything that is here; the sequence number from which to go on."""
        sequence, runs = self._journal.snapshot()
        rotated = [self._namespace(known) for known in self._journal.rotated() if self._asks_for(known.root)]
        yield self._signed(sequence, [pb.Event(snapshot_begun=pb.SnapshotBegun()), *rotated])
        held: list[Stored] = []
        entries = keys = 0
        for run in filter(self._wants, runs):
            held.append(run)
            keys += len(run)
            if keys >= BATCH_KEYS:
                yield self._events.message(sequence, self._chosen(held, map(_encode, held)))
                entries, keys, held = entries + keys, 0, []
                if self._events.closing:
                    return sequence
        done = pb.Event(snapshot_done=pb.SnapshotDone(entries=entries + keys))
        yield self._events.message(sequence, [*self._chosen(held, map(_encode, held)), done])
        return sequence


def _encode(event: Event) -> pb.Event:
    if isinstance(event, Dropped):
        return pb.Event(namespace_dropped=pb.NamespaceDropped(root=event.root))
    if isinstance(event, Removed):
        return pb.Event(removed=pb.BlockRun(root=event.root, keys=event.keys))
    run = pb.BlockRun(
        root=event.root, parent=event.parent, first_block=event.first_block, keys=event.keys, tiers=event.tiers
    )  # fmt: skip
    return pb.Event(moved=run) if event.moved else pb.Event(stored=run)
