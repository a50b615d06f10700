"""Movement between tiers: what to move next, for whom, and who still wants it.

``MoveSchedule`` decides and is pure: no threads, no clock, no bytes. ``Mover`` runs its decisions on threads through
a function of the store, which copies first and changes the location afterwards.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from kvstore.core.errors import Busy, Closed
from kvstore.tiers.tier import TierKind

log = logging.getLogger(__name__)
Unit: TypeAlias = int  # what is moved: a part row of the index
DONE, CANCELLED, EXPIRED, FAILED = "done", "cancelled", "expired", "failed"  # outcomes; a store may add its own


class Priority(IntEnum):
    """Why something is moved; smaller goes first."""

    READER = 0
    PREFETCH = 1
    DEMOTION = 2


class MoveTicket:
    """One request's hold on a move. ``outcome`` is '' until the move ends."""

    def __init__(self, move: Move, owner: Hashable, deadline: float | None) -> None:
        self.move, self.owner, self.deadline = move, owner, deadline
        self.outcome = ""
        self._ended = threading.Event()
        self._callback: Callable[[MoveTicket], None] | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> str:
        """The outcome, or '' on timeout."""
        self._ended.wait(timeout)
        return self.outcome

    def on_end(self, callback: Callable[[MoveTicket], None]) -> None:
        """Calls back once the move has ended, at once if it has. On a mover's thread: be quick."""
        with self._lock:
            if not self.outcome:
                self._callback = callback
                return
        callback(self)

    def end(self, outcome: str) -> None:
        """For the mover."""
        with self._lock:
            self.outcome = outcome
            callback = self._callback
        self._ended.set()
        if callback is not None:
            callback(self)


@dataclass(eq=False)
class Move:
    """One part on its way from ``source`` to ``target``. ``context`` is what the store needs to carry it out. ``owed``:
    it is carried out whoever waits for it."""

    unit: Unit
    source: TierKind
    target: TierKind
    size: int
    priority: Priority
    context: object = None
    running: bool = False
    owed: bool = False
    since: float = 0.0  # when it was asked for
    tickets: list[MoveTicket] = field(default_factory=list)

    @property
    def key(self) -> tuple[Unit, TierKind]:
        """At most one move of a part to a tier exists."""
        return self.unit, self.target

    @property
    def wanted(self) -> bool:
        """Somebody still waits for it; a demotion needs nobody, also when somebody had made it more urgent."""
        return bool(self.tickets) or self.owed or self.priority is Priority.DEMOTION


@dataclass(frozen=True, slots=True)
class MoveBounds:
    """``queued``: moves waiting per priority. ``batch_moves``, ``batch_bytes``: what one thread takes at a time.
    ``workers``: batches under way; demotions always get one of them, readers the others first."""

    queued: tuple[int, int, int] = (65_536, 16_384, 65_536)
    batch_moves: int = 64
    batch_bytes: int = 64 << 20
    workers: int = 4


class MoveSchedule:
    """The queue. Not thread-safe: the mover's lock guards it. ``now`` in seconds of any steady clock."""

    def __init__(self, bounds: MoveBounds) -> None:
        self.bounds = bounds
        self._queues: tuple[OrderedDict[tuple[Unit, TierKind], Move], ...] = tuple(OrderedDict() for _ in Priority)
        self._moves: dict[tuple[Unit, TierKind], Move] = {}
        self._batches = [0] * len(Priority)  # under way, by the priority they started with

    def __len__(self) -> int:
        return len(self._moves)

    def waiting(self, priority: Priority) -> int:
        """Moves of a priority that have not started."""
        return len(self._queues[priority])

    def next_since(self, priority: Priority) -> float | None:
        """Since when the next move of a priority waits; None: none does."""
        return next((move.since for move in self._queues[priority].values()), None)

    def find(self, unit: Unit, target: TierKind) -> Move | None:
        """The move of a part to a tier, waiting or under way."""
        return self._moves.get((unit, target))

    def request(self, move: Move, owner: Hashable = None, deadline: float | None = None) -> MoveTicket:
        """Queues a move, or joins the one there is, which takes the more urgent of both priorities. Raises Busy when
        the queue of that priority is full."""
        found = self._moves.get(move.key)
        if found is None:
            self._admit(move)
            found = move
        elif move.priority < found.priority and not found.running:
            self._admit_to(move.priority)
            del self._queues[found.priority][found.key]
            found.priority = move.priority
            self._queues[found.priority][found.key] = found
        ticket = MoveTicket(found, owner, deadline)
        found.tickets.append(ticket)
        return ticket

    def demote(self, move: Move) -> bool:
        """Queues a move that nobody waits for; False when there is one already. Raises Busy."""
        if move.key in self._moves:
            return False
        self._admit(move)
        move.owed = True
        return True

    def cancel(self, ticket: MoveTicket) -> list[tuple[MoveTicket, str]]:
        """Nobody waits behind this ticket any more. A move without others is dropped unless it is under way."""
        move = ticket.move
        if ticket not in move.tickets:
            return []
        move.tickets.remove(ticket)
        if not move.wanted and not move.running:
            self._drop(move)
        return [(ticket, CANCELLED)]

    def cancel_owner(self, owner: Hashable) -> list[tuple[MoveTicket, str]]:
        """All of an owner's requests end, because it has gone."""
        tickets = [ticket for move in self._moves.values() for ticket in move.tickets if ticket.owner == owner]
        return [pair for ticket in tickets for pair in self.cancel(ticket)]

    def next_batch(self, now: float) -> tuple[list[Move], list[tuple[MoveTicket, str]]]:
        """Moves to start now, all alike in source, target and priority, in the order of their requests; and the
        tickets that expired meanwhile."""
        ended: list[tuple[MoveTicket, str]] = []
        for priority in self._order():
            batch = self._take(priority, now, ended)
            if batch:
                self._batches[priority] += 1
                return batch, ended
        return [], ended

    def finished(self, move: Move, outcome: str) -> list[tuple[MoveTicket, str]]:
        """A started move has ended: whom to tell."""
        del self._moves[move.key]
        tickets, move.tickets = move.tickets, []
        return [(ticket, outcome) for ticket in tickets]

    def batch_finished(self, priority: Priority) -> None:
        """All moves of a batch have ended."""
        self._batches[priority] -= 1

    def clear(self) -> list[tuple[MoveTicket, str]]:
        """Drops what has not started."""
        waiting = [move for queue in self._queues for move in queue.values()]
        ended = [(ticket, CANCELLED) for move in waiting for ticket in move.tickets]
        for move in waiting:
            self._drop(move)
        return ended

    # --- inside ----------------------------------------------------------------------------------------------

    def _order(self) -> list[Priority]:
        """Most urgent first; but the last free worker waits for a demotion when none is under way. Loads wait for room
        in DRAM, which demotions make: if loads held every worker, neither would ever end."""
        running = sum(self._batches)
        if running >= self.bounds.workers:
            return []
        last = running == self.bounds.workers - 1 and self.bounds.workers > 1
        return [Priority.DEMOTION] if last and not self._batches[Priority.DEMOTION] else list(Priority)

    def _take(self, priority: Priority, now: float, ended: list[tuple[MoveTicket, str]]) -> list[Move]:
        queue, batch, size = self._queues[priority], list[Move](), 0
        while queue:
            move = next(iter(queue.values()))
            if not self._still_wanted(move, now, ended):
                continue
            if batch and (move.source, move.target) != (batch[0].source, batch[0].target):
                break
            if batch and (len(batch) >= self.bounds.batch_moves or size + move.size > self.bounds.batch_bytes):
                break
            del queue[move.key]
            move.running = True
            batch.append(move)
            size += move.size
        return batch

    def _still_wanted(self, move: Move, now: float, ended: list[tuple[MoveTicket, str]]) -> bool:
        late = [ticket for ticket in move.tickets if ticket.deadline is not None and ticket.deadline < now]
        for ticket in late:
            move.tickets.remove(ticket)
            ended.append((ticket, EXPIRED))
        if not move.wanted:
            self._drop(move)
        return move.wanted

    def _admit(self, move: Move) -> None:
        self._admit_to(move.priority)
        self._moves[move.key] = move
        self._queues[move.priority][move.key] = move

    def _admit_to(self, priority: Priority) -> None:
        if len(self._queues[priority]) >= self.bounds.queued[priority]:
            raise Busy(f"{self.bounds.queued[priority]} moves of priority {priority.name.lower()} wait; try later")

    def _drop(self, move: Move) -> None:
        del self._queues[move.priority][move.key]
        del self._moves[move.key]


Report: TypeAlias = Callable[[Move, str], None]
Execute: TypeAlias = Callable[[Sequence[Move], Report], None]  # reports each move once, from any thread, in any order


class Mover:
    """Threads that carry out what the schedule says. ``execute`` may return before it has reported every move; when it
    raises, what it has not reported has failed."""

    def __init__(self, execute: Execute, bounds: MoveBounds | None = None) -> None:
        self._schedule = MoveSchedule(bounds or MoveBounds())
        self._execute = execute
        self._changed = threading.Condition()
        self._closed = False
        self.outcomes: Counter[tuple[str, str]] = Counter()  # moves by priority and outcome
        self.moved_bytes: Counter[str] = Counter()  # by priority
        self._threads = [
            threading.Thread(target=self._work, name=f"mover-{n}", daemon=True)
            for n in range(self._schedule.bounds.workers)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, moves: Sequence[Move], owner: Hashable = None, deadline: float | None = None) -> list[MoveTicket]:
        """Moves somebody waits for; ``deadline`` on time.monotonic. As many tickets as were admitted: fewer than
        moves means that the queue is full."""
        tickets, now = list[MoveTicket](), time.monotonic()
        with self._changed:
            self._check_open()
            try:
                for move in moves:
                    move.since = now
                    tickets.append(self._schedule.request(move, owner, deadline))
            except Busy:
                pass
            self._changed.notify_all()
        return tickets

    def demote(self, moves: Sequence[Move]) -> int:
        """Moves nobody waits for; gives how many were new and admitted."""
        admitted, now = 0, time.monotonic()
        with self._changed:
            self._check_open()
            try:
                for move in moves:
                    move.since = now
                    admitted += self._schedule.demote(move)
            except Busy:
                pass
            self._changed.notify_all()
        return admitted

    def cancel(self, tickets: Sequence[MoveTicket]) -> None:
        """Their requesters do not wait any more."""
        with self._changed:
            ended = [pair for ticket in tickets for pair in self._schedule.cancel(ticket)]
        _tell(ended)

    def cancel_owner(self, owner: Hashable) -> None:
        """The client has gone."""
        with self._changed:
            ended = self._schedule.cancel_owner(owner)
        _tell(ended)

    def find(self, unit: Unit, target: TierKind) -> Move | None:
        """The move of a part to a tier, waiting or under way."""
        with self._changed:
            return self._schedule.find(unit, target)

    def waiting(self) -> dict[str, int]:
        """Moves waiting by priority."""
        with self._changed:
            return {priority.name.lower(): self._schedule.waiting(priority) for priority in Priority}

    def waiting_seconds(self) -> dict[str, float]:
        """How long the next move of each priority has waited; 0: none waits."""
        now = time.monotonic()
        with self._changed:
            since = {priority.name.lower(): self._schedule.next_since(priority) for priority in Priority}
        return {name: 0.0 if at is None else max(0.0, now - at) for name, at in since.items()}

    def waiting_max(self) -> dict[str, int]:
        """Moves that may wait by priority."""
        return {priority.name.lower(): self._schedule.bounds.queued[priority] for priority in Priority}

    def close(self) -> None:
        """Drops what has not started, waits for what has."""
        with self._changed:
            self._closed = True
            ended = self._schedule.clear()
            self._changed.notify_all()
        _tell(ended)
        for thread in self._threads:
            thread.join()
        with self._changed:
            self._changed.wait_for(lambda: not len(self._schedule))

    # --- threads -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                batch, ended = self._schedule.next_batch(time.monotonic())
                if not batch and not ended:
                    if self._closed:
                        return
                    self._changed.wait()
                    continue
            _tell(ended)
            if batch:
                self._run(batch)

    def _run(self, batch: list[Move]) -> None:
        open_moves, priority = set(batch), batch[0].priority

        def report(move: Move, outcome: str) -> None:
            with self._changed:
                if move not in open_moves:
                    return
                open_moves.discard(move)
                ended = self._schedule.finished(move, outcome)
                self.outcomes[priority.name.lower(), outcome] += 1
                self.moved_bytes[priority.name.lower()] += move.size if outcome == DONE else 0
                if not open_moves:
                    self._schedule.batch_finished(priority)
                self._changed.notify_all()
            _tell(ended)

        try:
            self._execute(batch, report)
        except Exception:
            log.exception("moving %d parts from %s to %s failed", len(batch), batch[0].source, batch[0].target)
            for move in list(open_moves):
                report(move, FAILED)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the mover is closed")


def _tell(ended: Sequence[tuple[MoveTicket, str]]) -> None:
    for ticket, outcome in ended:
        ticket.end(outcome)
