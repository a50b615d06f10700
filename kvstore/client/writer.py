"""Puts that are written a range at a time: reserve, write layer by layer, commit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

from kvstore.client.buffers import rows
from kvstore.client.patience import patience
from kvstore.client.placing import Goal, goal
from kvstore.client.putting import can_bring, note, piece_blocks
from kvstore.client.results import PutResult, failed_at, tally
from kvstore.core.errors import InvalidArgument
from kvstore.core.keys import KEY_BYTES
from kvstore.transport.base import Reservation, Transport
from kvstore.transport.batch import PutCall
from kvstore.transport.outcome import STORED, outcome_name

if TYPE_CHECKING:
    from kvstore.client.namespace import Namespace, Parts, Span


@dataclass(slots=True)
class _Piece:
    """A reservation and the session it belongs to; blocks ``start`` to ``end`` of the put."""

    transport: Transport
    reservation: Reservation
    start: int
    end: int


class Writer:
    """What ``ns.writer`` returns. ``wanted[i]``: whether block ``first + i`` takes bytes (else it is there already,
    or failed). ``result`` is set when the ``with`` block has ended."""

    def __init__(self, namespace: Namespace, call: PutCall, chain: bytes, parts: Parts, timeout: float | None) -> None:
        self._namespace = namespace
        self._call = call
        self._chain = chain
        self._goal = Goal(namespace.client.link)
        self._parts = parts
        self._timeout = timeout
        self._pieces: list[_Piece] = []
        self._blocks = len(call.keys) // KEY_BYTES
        self._outcomes = b""
        self._state = "new"  # then "open" within the with block, "over" after it
        self._failure = ""  # why blocks behind `_outcomes` are not written
        self.result = PutResult()

    def __enter__(self) -> Writer:
        if self._state != "new":
            raise InvalidArgument("this writer was used already; call ns.writer again")
        self._state = "open"
        deadline = self._namespace.client.deadline(self._timeout)
        self._goal = goal(self._namespace, self._call, self._chain, deadline)
        step = piece_blocks(self._goal.link, self._call.plan)
        for start in range(0, self._blocks, step):
            if not self._reserve(start, min(start + step, self._blocks), deadline):
                break
        return self

    def _reserve(self, start: int, end: int, deadline: float) -> bool:
        got = self._reserved(start, end, self._goal.lacks and not start, deadline)
        if not self._goal.home and not start and not _begun(got):
            self._goal = Goal(self._namespace.client.link, lacks=bool(self._call.first))
            got = self._reserved(start, end, self._goal.lacks, deadline)
        if isinstance(got, str):
            self._failure = got
            return False
        self._pieces.append(got)
        self._outcomes += got.reservation.outcomes
        failed = failed_at(got.reservation.outcomes)
        if failed < end - start:
            self._failure = outcome_name(got.reservation.outcomes[failed])
        return not self._failure

    def _reserved(self, start: int, end: int, bring: bool, deadline: float) -> _Piece | str:
        link, piece = self._goal.link, self._call.cut(start, end)
        before = self._chain[: piece.first * KEY_BYTES] if bring else b""
        until = deadline if self._goal.home else patience(deadline, 0, waits=bring)

        def action(transport: Transport, handle: int) -> _Piece:
            call = replace(piece, handle=handle, before=before)
            return _Piece(transport, transport.reserve(call, until), start, end)

        got = self._namespace.served(until, action, link=link)
        if not bring and isinstance(got, _Piece) and can_bring(link, piece, got.reservation.outcomes):
            got.reservation.abort()
            return self._reserved(start, end, True, deadline)
        return got

    @property
    def wanted(self) -> list[bool]:
        """Whether each block takes bytes; others may be given any buffer, it is not read."""
        return [outcome == STORED for outcome in self._outcomes] + [False] * (self._blocks - len(self._outcomes))

    def write(self, range: Span, buffers: object, *, timeout: float | None = None) -> None:
        """Writes ``(offset, length)`` of each part of every block. ``buffers``: as for ``put``, of the range's size.

        A node that is lost on the way makes the rest of the put a failure that ``result`` counts.
        """
        if self._state != "open":
            when = "after its with block has ended" if self._state == "over" else "before `with ns.writer(...) as w:`"
            raise InvalidArgument(f"write() was called {when}")
        self._namespace.client.link.check_open()
        plan = self._namespace.plan(self._parts, range)
        sources = rows(buffers, self._blocks, plan, writable=False)
        deadline, pieces = self._namespace.client.deadline(timeout or self._timeout), len(plan.pieces)
        for piece in list(self._pieces):
            chosen = sources[piece.start * pieces : piece.end * pieces]
            reason = self._namespace.attempt(lambda: piece.reservation.write(plan, chosen, deadline))  # noqa: B023
            if reason:
                self._give_up(piece, reason)
                return

    def _give_up(self, piece: _Piece, reason: str) -> None:
        """This piece and those behind it will not be committed."""
        at = self._pieces.index(piece)
        for lost in self._pieces[at:]:
            lost.reservation.abort()
        del self._pieces[at:]
        self._outcomes = self._outcomes[: piece.start]
        self._failure = reason

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(error, self._timeout)

    def finish(self, error: BaseException | None, timeout: float | None) -> None:
        """Commits, or gives all back when there was an error."""
        self._state = "over"
        try:
            if error is None:
                self._commit(self._namespace.client.deadline(timeout))
        finally:
            for piece in self._pieces:
                piece.reservation.abort()
            self._pieces = []

    def _commit(self, deadline: float) -> None:
        done = b""
        while self._pieces:
            piece = self._pieces[0]
            outcome = self._namespace.attempt(lambda: piece.reservation.commit(deadline))  # noqa: B023
            if isinstance(outcome, str):
                self._failure = outcome
                break
            del self._pieces[0]
            done += outcome or b""
        self.result = tally(done, self._blocks - len(done), self._failure)
        if self.result.complete and self._blocks:
            note(self._namespace, self._chain, self._goal)
        self._namespace._count_put(self.result, self._call.plan)


def _begun(got: _Piece | str) -> bool:
    """Whether a node takes the first blocks, or has them."""
    return isinstance(got, _Piece) and failed_at(got.reservation.outcomes) > 0
