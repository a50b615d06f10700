"""What a store tells others about its blocks: ordered batches of what came, moved and went, kept for a while.

While nobody watches, nothing is noted. Else the store marks rows that changed, under its lock; a thread compares them
ten times a second with what was told last, and makes the difference a batch. So a block that came and went in between
is never mentioned. What is kept is bounded; who falls behind begins again with a snapshot.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvstore.core.keys import KEY_BYTES
from kvstore.tiers.columns import IntArray, column
from kvstore.tiers.runs import Dropped, Event, Removed, Seen, Stored, joined, runs, see, tiers_of

if TYPE_CHECKING:
    from kvstore.tiers.namespaces import Namespace
    from kvstore.tiers.state import State

COALESCE = 0.1  # seconds over which changes are gathered
LINGER = 60.0  # seconds that batches are kept for a watcher that may come back
RING_BYTES = 16 << 20  # of batches kept, about
BATCH_KEYS = 8192  # of one batch, about

_PIECE = 256  # rows looked at under the lock
_SWEEP = 4096  # the same, where nothing is copied
_SCAN = 32_768  # the same, of a single column; blocks of a snapshot that are sorted into runs together
_EVENT_BYTES = 256  # of an event, beside its keys
_NOTE_BYTES = 32  # of a row that changed, or a key that went, and was not told yet


@dataclass(frozen=True, slots=True)
class Batch:
    """Events in their order. Sequence numbers have no holes. ``bytes``: that it takes, about."""

    sequence: int
    events: tuple[Event, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Known:
    """A namespace: how often it was rotated, and which of the rotations that led there it was."""

    root: bytes
    canonical: bytes
    generation: int
    rotation: int


class Outrun(LookupError):
    """Batches past this sequence number are not kept any more: a snapshot must come first."""


class Journal:
    """``changed``, ``row_changed``, ``gone`` and ``voided`` are called under the store's lock, all else without it."""

    def __init__(self, state: State) -> None:
        self.on = False
        self.ring_bytes = RING_BYTES
        self.wake = threading.Event()  # the thread that calls ``step`` waits for it
        self._state = state
        self._told = column(state.index.max_blocks, np.uint8)  # tiers that watchers know of, by row
        self._noted = column(state.index.max_blocks, np.uint8)  # 1: the row is in ``_rows``
        self._told_at, self._noted_at = memoryview(self._told), memoryview(self._noted)
        self._rows: list[int] = []
        self._gone: dict[bytes, bytearray] = {}  # root -> keys
        self._void: dict[bytes, None] = {}  # roots
        self._gone_keys = 0
        self._spilt = False
        self._turn = threading.Lock()  # one thread at a time makes batches
        self._news = threading.Condition()  # guards what follows
        self._ring: deque[Batch] = deque()
        self._ring_used = 0
        self._sequence = self._floor = 0
        self._watchers = 0
        self._left = 0.0

    # --- what the store says, under its lock -----------------------------------------------------------------

    def changed(self, rows: IntArray) -> None:
        """(Distinct) rows have parts that they had not, or in other tiers."""
        if self.on:
            new = rows[self._noted[rows] == 0]
            self._noted[new] = 1
            self._rows += new.tolist()
            self._check_room()

    def row_changed(self, row: int) -> None:
        """The same for one row."""
        if self.on and not self._noted_at[row]:
            self._noted_at[row] = 1
            self._rows.append(row)
            self._check_room()

    def gone(self, row: int) -> None:
        """A block is being dropped."""
        if not self.on or not self._told_at[row]:
            return
        self._told_at[row] = 0
        namespace = self._state.namespace_of(row)
        if namespace.void:
            return
        self._gone.setdefault(namespace.root, bytearray()).extend(self._state.index.key(row))
        self._gone_keys += 1
        self._check_room()

    def voided(self, root: bytes) -> None:
        """Nobody finds a block of a namespace any more; they will be dropped one by one."""
        if self.on:
            self._void[root] = None

    def _check_room(self) -> None:
        """Too much happened before it could be told: all watchers need a snapshot."""
        if (len(self._rows) + self._gone_keys) * _NOTE_BYTES > self.ring_bytes:
            self._spill()

    def _spill(self) -> None:
        self.on = False
        self._spilt = True
        self._forget()

    def _forget(self) -> None:
        self._rows, self._gone, self._void, self._gone_keys = [], {}, {}, 0

    # --- making batches --------------------------------------------------------------------------------------

    def step(self) -> float | None:
        """What the thread does; seconds until it wants to be called again (None: when woken)."""
        self.flush()
        with self._turn:
            with self._news:
                wanted = self._watchers or time.monotonic() - self._left < LINGER
            if self.on and not wanted:
                self._stop()
            return COALESCE if self.on else None

    def flush(self) -> None:
        """Makes a batch, or several, of what has changed."""
        with self._turn, self._whole():
            if self._spilt:
                self._start()
            elif self.on:
                self._flush()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What fails midway has lost notes: all is begun again."""
        try:
            yield
        except BaseException:
            with self._state.lock:
                self._spill()
            raise

    def _flush(self) -> None:
        with self._state.lock:
            rows, self._rows = np.array(self._rows, np.int64), []
        events: list[Event] = []
        keys = 0
        for start in range(0, max(len(rows), 1), _PIECE):
            for event in self._piece(rows[start : start + _PIECE]):
                events.append(event)
                keys += len(event)
                if keys >= BATCH_KEYS:
                    self._publish(events, keys)
                    events, keys = [], 0
        if events:
            self._publish(events, keys)

    def _piece(self, rows: IntArray) -> Iterator[Event]:
        """What of some rows was not told yet, after all that went until now: a key may have come back since."""
        with self._state.lock:
            seen = self._differing(rows)
            gone, void = self._gone, self._void
            self._gone, self._void, self._gone_keys = {}, {}, 0
        for root, keys in gone.items():
            step = BATCH_KEYS * KEY_BYTES
            for start in range(0, len(keys), step):
                yield Removed(root, bytes(keys[start : start + step]))
        yield from map(Dropped, void)
        yield from runs(seen)

    def _differing(self, rows: IntArray) -> Seen:
        self._noted[rows] = 0
        told, now = self._told[rows], tiers_of(self._state, rows)
        for row in rows[(now == 0) & (told != 0)].tolist():  # lost a part
            self.gone(row)
        here = np.flatnonzero((now != told) & (now != 0))
        rows, now = rows[here], now[here]
        self._told[rows] = now
        return see(self._state, rows, now, told[here] != 0)

    def _publish(self, events: list[Event], keys: int) -> None:
        size = keys * KEY_BYTES + len(events) * _EVENT_BYTES
        with self._news:
            self._sequence += 1
            self._ring.append(Batch(self._sequence, tuple(events), size))
            self._ring_used += size
            while self._ring_used > self.ring_bytes and len(self._ring) > 1:
                old = self._ring.popleft()
                self._ring_used -= old.bytes
                self._floor = old.sequence
            self._news.notify_all()
        with self._state.lock:
            self._state.counters["event_batches"] += 1
            self._state.counters["event_keys"] += keys

    # --- beginning and ending --------------------------------------------------------------------------------

    def _start(self) -> None:
        """From now on changes are noted; what is here is told by snapshots."""
        state = self._state
        with state.lock:
            used = state.index.rows_used
            self._noted[:used] = 0
            self._forget()
            self._spilt, self.on = False, True
        self._skip()
        for start in range(0, used, _SWEEP):
            rows = np.arange(start, min(start + _SWEEP, used))
            with state.lock:
                self._told[rows] = tiers_of(state, rows)

    def _stop(self) -> None:
        with self._state.lock:
            self.on = False
            self._forget()
        self._skip()

    def _skip(self) -> None:
        """Whoever followed until now has missed something."""
        with self._news:
            self._sequence += 1
            self._floor = self._sequence
            self._ring.clear()
            self._ring_used = 0
            self._news.notify_all()

    # --- watching --------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While it is entered, nothing that happens goes untold."""
        with self._news:
            self._watchers += 1
        try:
            with self._turn, self._whole():
                if not self.on:
                    self._start()
            self.wake.set()
            yield
        finally:
            with self._news:
                self._watchers -= 1
                self._left = time.monotonic()

    @property
    def sequence(self) -> int:
        """Number of the last batch."""
        with self._news:
            return self._sequence

    def next(self, sequence: int, timeout: float) -> Batch | None:
        """The batch after a sequence number; None: none came in time, or ``stir`` was called. Raises Outrun."""
        with self._news:
            if sequence == self._sequence and timeout > 0:
                self._news.wait(timeout)
            if not self._floor <= sequence <= self._sequence:
                raise Outrun(f"events after {sequence} are gone; the oldest kept is {self._floor + 1}")
            return self._ring[sequence - self._floor] if sequence < self._sequence else None

    def stir(self) -> None:
        """Those who wait in ``next`` look up."""
        with self._news:
            self._news.notify_all()

    def snapshot(self) -> tuple[int, Iterator[Stored]]:
        """All blocks that were told of, and the sequence number past which events make up for what changes while they
        are looked at. To be used within ``watching``."""
        sequence = self.sequence
        with self._state.lock:
            self._state.counters["event_snapshots"] += 1
        return sequence, self._all()

    def _all(self) -> Iterator[Stored]:
        state = self._state
        for start in range(0, state.index.rows_used, _SCAN):
            with state.lock:
                rows = start + np.flatnonzero(self._told[start : start + _SCAN])
            pieces = []
            for at in range(0, len(rows), _PIECE):
                with state.lock:
                    pieces.append(self._known(rows[at : at + _PIECE]))
            if pieces:
                yield from runs(joined(pieces))

    def _known(self, rows: IntArray) -> Seen:
        """Rows that are still told of, in namespaces that are still found."""
        rows = rows[(self._told[rows] != 0) & (tiers_of(self._state, rows) != 0)]
        return see(self._state, rows, self._told[rows], np.zeros(len(rows), np.bool_))

    # --- beside the events -----------------------------------------------------------------------------------

    def known(self, root: bytes) -> Known | None:
        """A namespace as watchers are told of it; None: it is not here (any more)."""
        with self._state.lock:
            found = self._state.namespaces.at(root)
            return None if found is None else _known(found)

    def rotated(self) -> list[Known]:
        """All that were ever rotated, also those without a block."""
        with self._state.lock:
            return [_known(one) for one in self._state.namespaces if one.generation]

    def room(self) -> tuple[int, int]:
        """Bytes that blocks can take, in all tiers, and those of them that are free."""
        with self._state.lock:
            stats = [tier.stat() for tier in self._state.tiers]
        capacity = sum(one.capacity_bytes for one in stats)
        return capacity, capacity - sum(one.used_bytes for one in stats)


def _known(namespace: Namespace) -> Known:
    return Known(namespace.root, namespace.canonical, namespace.generation, namespace.rotation)
