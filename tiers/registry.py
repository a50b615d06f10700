"""Opening and ending sessions. What a session held comes back when it can touch it no more, and not before."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvstore.core.errors import Busy, SessionLost
from kvstore.tiers.committing import Committer
from kvstore.tiers.leases import Lease
from kvstore.tiers.sessions import Session
from kvstore.tiers.state import PIECE, State

POLL_SECONDS = 0.02


class Registry:
    """Sessions by index. Those whose client is gone but whose process still lives wait for its lock to go."""

    def __init__(self, state: State, committer: Committer) -> None:
        self._state = state
        self._committer = committer
        self._reaping = threading.Lock()
        self.waiting: list[Session] = []
        self.wake = threading.Event()
        self.ended: Callable[[Session], None] = lambda session: None  # told when a client has gone

    def open(self, shared_memory: bool, name: str) -> Session:
        """A new session. Raises Busy when there are ``max_sessions``."""
        state, table = self._state, self._state.holdings.table
        with state.lock:
            index = next((at for at in range(table.max_sessions) if self._is_free(at, shared_memory)), None)
            if index is None:
                raise Busy(
                    f"there are {len(state.sessions)} sessions, max_sessions is {table.max_sessions}; close some, or "
                    "raise it",
                    limit=table.max_sessions,
                    bound="max_sessions",
                )
            session = Session(index, shared_memory, name, table.max_leased_slots)
            if shared_memory:
                table.write(index, state.boot_id, name)
            state.sessions[index] = session
        return session

    def _is_free(self, index: int, shared_memory: bool) -> bool:
        # a process of an earlier boot may still hold the byte: its lock must not vouch for another session
        return index not in self._state.sessions and not (shared_memory and self._state.lock_file.locked(index))

    def check(self, session: Session) -> None:
        """Raises SessionLost when the session has ended."""
        if session.closed:
            raise SessionLost("the session has ended; open a new one")

    def close(self, session: Session) -> None:
        """The client is gone. A shared-memory session keeps what it holds until its process lets go of its lock."""
        with self._state.lock:
            if session.closed:
                return
            session.closed = True
            self.waiting.append(session)
        self.ended(session)
        self.reap()
        if self.waiting:
            self.wake.set()

    def adopt(self, session: Session) -> None:
        """A session of an earlier boot whose process lives."""
        session.closed = True
        self._state.sessions[session.index] = session
        self.waiting.append(session)

    def reap(self) -> bool:
        """Ends the waiting sessions that can touch nothing any more. False: none is waiting."""
        with self._reaping:
            for session in list(self.waiting):
                if not (session.shared_memory and self._state.lock_file.locked(session.index)):
                    self._end(session)
                    with self._state.lock:
                        self.waiting.remove(session)
        return bool(self.waiting)

    def _end(self, session: Session) -> None:
        state = self._state
        with state.lock:
            leases, session.leases = list(session.leases.values()), {}
            reservations, session.reservations = list(session.reservations.values()), {}
            if session.shared_memory:
                state.holdings.table.clear(session.index)
        for lease in leases:
            self._unhold(lease)
        for reservation in reservations:
            self._committer.give_up(reservation)
        with state.lock:
            if len(session.loose):
                state.dram.free(session.loose)
            del state.sessions[session.index]

    def release(self, session: Session, numbers: list[int]) -> list[bool]:
        """Gives leases back; for each whether it was held until now."""
        return [self._release(session, number) for number in numbers]

    def _release(self, session: Session, number: int) -> bool:
        with self._state.lock:
            lease = session.leases.pop(number, None)
            if lease is None:
                return False
            self._state.holdings.give(session, lease.slots, lease.bytes, lease.positions)
            if len(lease.rows) <= PIECE:
                self._state.unhold(lease.rows)
                return True
        self._unhold(lease)
        return True

    def _unhold(self, lease: Lease) -> None:
        for start in range(0, len(lease.rows), PIECE):
            with self._state.lock:
                self._state.unhold(lease.rows[start : start + PIECE])
