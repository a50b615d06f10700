"""Which nodes blocks are to be copied to: as they are named, or as placement says."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.cluster.cell import Cell, PeerView
from kvstore.cluster.member import Member
from kvstore.cluster.membership import State
from kvstore.cluster.placement import replicas
from kvstore.cluster.prefix_index import Holders
from kvstore.cluster.room import Room
from kvstore.cluster.rooms import rooms
from kvstore.core.errors import InvalidArgument, Unavailable


def named(cell: Cell, names: Sequence[str]) -> list[Member]:
    """Live nodes by the beginning of their id, or by an address. Raises InvalidArgument."""
    return [_named(cell, name) for name in names]


def _named(cell: Cell, name: str) -> Member:
    live = [peer.member for peer in cell.peers() if peer.state is State.LIVE]
    found = [one for one in live if name and _is(one, name)]
    if len(found) == 1:
        return found[0]
    if name and _is(cell.member, name) and not found:
        raise InvalidArgument(f"{name!r} is the node asked itself; name another one", field="to")
    known = ", ".join(f"{one.node_id.hex()[:8]} ({one.control_address})" for one in live) or "none"
    raise InvalidArgument(f"{len(found)} live nodes match {name!r}; live here are: {known}", field="to")


def _is(member: Member, name: str) -> bool:
    return member.node_id.hex().startswith(name.lower()) or name in (member.control_address, member.data_address)


def whole_holders(known: dict[int, Room], found: Holders, blocks: int) -> list[Room]:
    """Those that have a whole chain of ``blocks``, and stay: one that is draining does not count."""
    full = (known[number] for number, prefix in found.prefix.items() if prefix >= blocks and number in known)
    return [room for room in full if room.takes]


def next_targets(cell: Cell, found: Holders, key: bytes, blocks: int, copies: int) -> list[Member]:
    """Where to copy a chain so that ``copies`` other nodes have it: first to those that have most of it already.

    ``key``: of its last block. Fewer when there are no more nodes, none when enough have it.
    """
    peers = cell.peers()
    known = rooms(peers)
    have = whole_holders(known, found, blocks)
    missing = copies - len(have)
    if missing <= 0:
        return []
    begun = sorted(
        (room for room in known.values() if room.takes and 2 * found.prefix.get(room.node, 0) >= blocks),
        key=lambda room: (-found.prefix[room.node], room.node_id),
    )
    chosen = [room for room in begun if room not in have][:missing]
    chosen += replicas(key, [*have, *chosen], known.values(), copies)
    members = _members(peers)
    return [members[room.node] for room in chosen[:missing]]


def _members(peers: Sequence[PeerView]) -> dict[int, Member]:
    return {peer.number: peer.member for peer in peers if peer.number is not None}


def best_holder(cell: Cell, found: Holders) -> Member:
    """The node to copy from that has most of a chain. Raises Unavailable."""
    for number in sorted(found.prefix, key=lambda number: -found.prefix[number]):
        member = cell.holder(number)
        if member is not None:
            return member
    raise Unavailable("no node of the cell has this chain")
