"""The other nodes of a cell as placement sees them."""

from __future__ import annotations

from collections.abc import Iterable

from kvstore.cluster.cell import PeerView
from kvstore.cluster.membership import State
from kvstore.cluster.room import Room

_READ = (State.LIVE, State.DRAINING)


def rooms(peers: Iterable[PeerView]) -> dict[int, Room]:
    """By number in the index: those that can be read from; new blocks go to those that are live."""
    return {peer.number: _room(peer, peer.number) for peer in peers if peer.number is not None and peer.state in _READ}


def _room(peer: PeerView, number: int) -> Room:
    member = peer.member
    return Room(
        node=number,
        node_id=member.node_id,
        capacity_bytes=member.capacity_bytes,
        free_bytes=peer.free_bytes,
        host=member.host,
        zone=member.zone,
        takes=peer.state is State.LIVE,
    )
