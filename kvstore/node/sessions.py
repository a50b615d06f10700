"""Sessions of the data path: one or more connections (lanes) that hold leases and reservations together."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvstore.core.errors import Closed, InvalidArgument, SessionLost

if TYPE_CHECKING:
    from kvstore.node.lane import Lane
    from kvstore.node.network_put import PendingPut
    from kvstore.tiers.store import BlockStore, Session


class NodeSession:
    """One client. ``seen`` is when it last sent something; ``pending`` its open reservations (network only). ``peer``:
    another node, which is answered from what is here alone."""

    def __init__(self, stored: Session, shared_memory: bool, name: str, peer: bool = False) -> None:
        self.stored = stored
        self.shared_memory = shared_memory
        self.name = name
        self.peer = peer
        self.seen = time.monotonic()
        self.ended = False
        self.lanes: set[Lane] = set()
        self.pending: dict[int, PendingPut] = {}
        self.lock = threading.Lock()  # guards `pending`
        self.transport = ""  # "nixl" or "ucx", when that moves its bytes
        self.fabric_peer = ""  # the client's name in the node's NIXL agent
        self.at_end: Callable[[], None] | None = None

    @property
    def leases(self) -> bool:
        """Whether its gets are answered with locations under a lease, not with bytes."""
        return self.shared_memory or self.transport == "nixl"

    @property
    def moved_by(self) -> str:
        """How its bytes move."""
        return "shm" if self.shared_memory else self.transport or "tcp"

    def living(self) -> bool:
        """Whether its client may still wait for an answer."""
        return not self.ended


class Sessions:
    """All living sessions, by token.

    A session's slots may be under the hands of any of its lanes, so the store is told of its end only when the
    last lane has left.
    """

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._by_token: dict[bytes, NodeSession] = {}

    def open(self, lane: Lane, shared_memory: bool, name: str, peer: bool = False) -> NodeSession:
        """A new session with its first lane. Raises Busy."""
        session = NodeSession(self._store.open_session(shared_memory, name), shared_memory, name, peer)
        with self._lock:
            session.lanes.add(lane)
            self._by_token[session.stored.token] = session
        lane.session = session
        return session

    def join(self, lane: Lane, token: bytes) -> NodeSession:
        """A further lane of a session. Raises SessionLost or InvalidArgument."""
        with self._lock:
            session = self._by_token.get(token)
            if session is None or session.ended:
                raise SessionLost(
                    "the session to join has ended, or is of an earlier start of the node; open a new one"
                )
            if session.shared_memory and not lane.local:
                raise InvalidArgument("a shared-memory session can only be joined through the unix socket")
            session.lanes.add(lane)
        lane.session = session
        return session

    def end(self, lane: Lane, cause: str) -> None:
        """The session says goodbye on one lane: this lane leaves, others are cut."""
        session = lane.session
        if session is not None:
            self.expire(session, cause, spare=lane)
            self.leave(lane)

    def expire(self, session: NodeSession, cause: str, spare: Lane | None = None) -> None:
        """Cuts all lanes; the session is gone when their threads have noticed."""
        with self._lock:
            session.ended = True
            lanes = [lane for lane in session.lanes if lane is not spare]
        for lane in lanes:
            lane.cut(cause)

    def leave(self, lane: Lane) -> None:
        """A lane's connection is over. With the last one the session ends, and its reservations are given up."""
        session, lane.session = lane.session, None
        if session is None:
            return
        with self._lock:
            session.lanes.discard(lane)
            if session.lanes:
                return
            session.ended = True
            self._by_token.pop(session.stored.token, None)
        with contextlib.suppress(Closed):  # the store of a node that stops: the next start takes back what was held
            self._store.close_session(session.stored)
        if session.at_end is not None:
            session.at_end()

    def by_transport(self) -> Counter[str]:
        """How many sessions there are of each."""
        with self._lock:
            return Counter(session.moved_by for session in self._by_token.values())

    def silent(self, seconds: float) -> list[NodeSession]:
        """Network sessions that sent nothing for so long and are in no request."""
        now = time.monotonic()
        with self._lock:
            return [
                session
                for session in self._by_token.values()
                if not session.shared_memory
                and now - session.seen > seconds
                and not any(lane.busy for lane in session.lanes)
            ]

    def __len__(self) -> int:
        return len(self._by_token)
