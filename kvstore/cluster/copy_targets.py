"""Which nodes a chain is copied to. Pure.

Nodes in other zones and on other machines come first; among equals the one that has the most of the chain already, so
that the copies of a growing chain stay together. Unless that is a small part, as many chains share their beginning, or
the node took much more than others lately: then rendezvous on the first block that no other node has says where.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kvstore.cluster.placement import CHOICES, SLACK
from kvstore.cluster.rendezvous import ranked
from kvstore.cluster.room import Room

BEGUN = 1 / 2  # of a chain that a node must have before the rest follows


def branch(prefix: Mapping[int, int], blocks: int) -> int:
    """The first block of a chain that no other node has; the last one, when some have it all."""
    return min(max(prefix.values(), default=0), blocks - 1)


def preferred(
    key: bytes, chosen: Collection[Room], rooms: Iterable[Room], prefix: Mapping[int, int], blocks: int
) -> list[Room]:
    """The nodes to copy a chain of ``blocks`` to, best first. ``chosen``: that have it, this one among them.
    ``prefix``: by number, leading blocks that others have. ``key``: of the block at ``branch``."""
    had = {room.node_id for room in chosen}
    takers = [room for room in rooms if room.takes and room.capacity_bytes > 0 and room.node_id not in had]
    if not takers:
        return []
    zones, machines = {room.zone for room in chosen}, {room.machine for room in chosen}
    mean = sum(room.load for room in takers) / len(takers)
    place = {room.node_id: nth for nth, room in enumerate(_by_key(key, takers))}

    def order(room: Room) -> tuple[bool, bool, int, int]:
        known = prefix.get(room.node, 0)
        follows = known >= BEGUN * blocks and room.load <= mean + SLACK
        near = bool(room.zone) and room.zone in zones
        return room.machine in machines, near, -known if follows else 0, place[room.node_id]

    return sorted(takers, key=order)


def _by_key(key: bytes, takers: Collection[Room]) -> list[Room]:
    """In the order of a key, but of the first few those with the most room first."""
    order = ranked(key, takers)
    return sorted(order[:CHOICES], key=lambda room: room.load) + order[CHOICES:]


def held_by(have: Iterable[int], copies: int) -> int:
    """How many leading blocks ``copies`` nodes hold, of which each holds so many."""
    counts = sorted(have, reverse=True)
    return counts[copies - 1] if len(counts) >= copies else 0
