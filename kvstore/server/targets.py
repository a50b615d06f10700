"""Which nodes blocks are to be copied to: as they are named, or as placement says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvstore.cluster.cell import Cell
from kvstore.cluster.member import Member
from kvstore.cluster.membership import State
from kvstore.cluster.neighbours import Neighbour, neighbours
from kvstore.cluster.placement import replicas
from kvstore.cluster.prefix_index import Holders
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


def next_targets(
    cell: Cell, found: Holders, key: bytes, blocks: int, copies: int, fits: Callable[[Neighbour], bool] = bool
) -> tuple[list[Member], int]:
    """Where to copy a chain so that ``copies`` other nodes have it, and how many of them are missing: first to those
    that have most of it already. One that is draining does not count.

    ``key``: of its last block. ``fits``: whether a node is to take it. Fewer when there are no more nodes.
    """
    there = neighbours(cell.peers(), cell.taken.by_node())
    known = {number: one.room for number, one in there.items()}
    full = (known[number] for number, prefix in found.prefix.items() if prefix >= blocks and number in known)
    have = [room for room in full if room.takes]
    missing = copies - len(have)
    if missing <= 0:
        return [], 0
    known = {number: room for number, room in known.items() if room in have or (room.takes and fits(there[number]))}
    begun = sorted(
        (room for room in known.values() if room not in have and 2 * found.prefix.get(room.node, 0) >= blocks),
        key=lambda room: (-found.prefix.get(room.node, 0), room.node_id),
    )
    chosen = begun[:missing]
    chosen += replicas(key, [*have, *chosen], known.values(), copies)
    return [there[room.node].member for room in chosen[:missing]], missing


def best_holder(cell: Cell, found: Holders) -> Member:
    """The node to copy from that has most of a chain. Raises Unavailable."""
    for number in sorted(found.prefix, key=lambda number: -found.prefix[number]):
        member = cell.holder(number)
        if member is not None:
            return member
    raise Unavailable("no node of the cell has this chain")
