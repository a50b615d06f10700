"""The other nodes of a cell as the keeper of copies sees them now, and which of them are left alone for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvstore.cluster.cell import PeerView
from kvstore.cluster.member import Member
from kvstore.cluster.membership import State
from kvstore.cluster.room import Room

_FRESH = 0.1  # seconds that a view of the cell is used again
_FIRST, LONGEST = 0.1, 5.0  # seconds that a node is left alone


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another node that is not gone. ``room``: it takes blocks if it is live. ``eviction_age``: seconds that its next
    victim was not used; 0: nothing has to go."""

    member: Member
    room: Room
    state: State
    eviction_age: float = 0.0

    @property
    def boot(self) -> bytes:
        """Names this start of the node: what one holds says nothing of the next."""
        return self.member.node_id + self.member.boot_id


def neighbours(peers: Iterable[PeerView], taken: Mapping[int, int] | None = None) -> dict[int, Neighbour]:
    """By number in the index. ``taken``: bytes of new blocks that each took lately."""
    taken = taken or {}
    return {
        peer.number: Neighbour(
            peer.member, _room(peer, peer.number, taken.get(peer.number, 0)), peer.state, peer.eviction_age
        )
        for peer in peers
        if peer.number is not None and peer.state is not State.GONE
    }


def own_room(member: Member) -> Room:
    """This node, which has no number in its own index."""
    return Room(-1, member.node_id, member.capacity_bytes, host=member.host, zone=member.zone)


def _room(peer: PeerView, number: int, taken: int) -> Room:
    member = peer.member
    return Room(
        number, member.node_id, member.capacity_bytes, peer.free_bytes, taken,
        host=member.host, zone=member.zone, takes=peer.state is State.LIVE,
    )  # fmt: skip


class View:
    """``peers`` and ``taken`` (bytes of new blocks by number) ask the cell, not more often than it makes sense. Safe to
    use from several threads."""

    def __init__(
        self,
        peers: Callable[[], Iterable[PeerView]],
        taken: Callable[[], Mapping[int, int]],
        clock: Callable[[], float],
    ) -> None:
        self._peers = peers
        self._taken = taken
        self._clock = clock
        self._kept: tuple[float, dict[int, Neighbour]] = (float("-inf"), {})

    def now(self) -> dict[int, Neighbour]:
        """By number in the index."""
        at, found = self._kept
        if self._clock() - at > _FRESH:
            found = neighbours(self._peers(), self._taken())
            self._kept = (self._clock(), found)
        return found


class Backoffs:
    """Nodes that took no copy: each is left alone for a while, longer each time. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[bytes, tuple[float, float]] = {}  # node id: until when, and for how long that was

    def failed(self, node_id: bytes, most: float = LONGEST) -> None:
        """``most``: seconds that it is left alone at most."""
        with self._lock:
            now = self._clock()
            until, delay = self._until.get(node_id, (0.0, 0.0))
            if until <= now:  # several that fail together count once
                delay = min(most, max(_FIRST, 2 * delay))
                self._until[node_id] = (now + delay, delay)

    def worked(self, node_id: bytes) -> None:
        with self._lock:
            self._until.pop(node_id, None)

    def left(self, node_id: bytes) -> float:
        """Seconds that a node is still left alone."""
        until, _ = self._until.get(node_id, (0.0, 0.0))
        return max(0.0, until - self._clock())
