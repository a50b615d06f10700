"""Where new blocks go, and which copies are owed. Pure: whoever knows the same of the cell decides the same.

New blocks go to the node on the writer's own host, if there is one that takes blocks. Else to the holder of the block
before, so that chains stay together; unless most of the chain is new: then it only begins as many others do. And a
node takes no more than its share of one chain, and none while it has taken more than others lately. In these cases
the next run of the chain begins somewhere else. Where, rendezvous on the run's first key
says: of the few nodes that come first the one with the most room. Only new blocks are placed, so differing views of
the cell cost a copy too many and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from kvstore.cluster.rendezvous import ranked
from kvstore.cluster.room import Room

SHARE = 1 / 2  # of its capacity that a node takes of one chain in a row
KNOWN = 1 / 4  # of its new blocks that a chain has before them, else they are a branch off what many share
CHOICES = 4  # nodes of the rendezvous order that are compared: with more, writers who know the same crowd the same node
SLACK = 0.5  # of its capacity that a node may have taken more than the mean before branches move on


@dataclass(frozen=True, slots=True)
class Tail:
    """The last block before the new ones: who holds it, and how many blocks up to it each of those holds in a row."""

    runs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Run:
    """New blocks ``first`` to ``end`` of a chain go to ``node``."""

    node: int
    first: int
    end: int


def place(
    first: int, end: int, block_bytes: int, key_of: Callable[[int], bytes], rooms: Mapping[int, Room],
    tail: Tail | None = None, here: int | None = None,
) -> list[Run]:  # fmt: skip
    """Where blocks ``first`` to ``end`` go; empty: nobody takes any. ``here``: the node on the writer's host."""
    takers = {node: room for node, room in rooms.items() if room.takes and room.capacity_bytes > 0}
    if first >= end or not takers:
        return []
    if here in takers:
        return [Run(here, first, end)]
    found: list[Run] = []
    at = first
    if tail is not None and first >= KNOWN * (end - first):
        node, left = _holder(tail, takers, block_bytes)
        if left:
            at = min(end, first + left)
            found.append(Run(node, first, at))
    while at < end:
        room = next_room(key_of(at), takers.values())
        to = min(end, at + share_blocks(room, block_bytes))
        found.append(Run(room.node, at, to))
        at = to
    return found


def share_blocks(room: Room, block_bytes: int) -> int:
    """Blocks of one chain in a row that a node takes."""
    return max(1, int(room.capacity_bytes * SHARE) // block_bytes)


def next_room(key: bytes, takers: Collection[Room]) -> Room:
    """Of the first few nodes in the order of ``key`` the one that has the most room."""
    return min(ranked(key, takers)[:CHOICES], key=lambda room: room.load)


def _holder(tail: Tail, takers: Mapping[int, Room], block_bytes: int) -> tuple[int, int]:
    """The holder that goes on, and how many blocks it takes: 0 when the chain moves on."""
    mean = sum(room.load for room in takers.values()) / len(takers)
    best, most = -1, 0
    for node, run in sorted(tail.runs.items()):
        if node in takers and takers[node].load <= mean + SLACK:
            left = share_blocks(takers[node], block_bytes) - run
            if left > most:
                best, most = node, left
    return best, most


# --- copies ------------------------------------------------------------------------------------------------


def replicas(key: bytes, holders: Collection[Room], rooms: Iterable[Room], copies: int) -> list[Room]:
    """Which nodes are to get a copy so that there are ``copies``: in zones without one first, then on machines without
    one. ``key``: of the first block of a run, so that the copies of a run stay together too."""
    had = {room.node for room in holders}
    free = [room for room in ranked(key, rooms) if room.node not in had and room.takes and room.capacity_bytes > 0]
    return _spread(list(holders), free, copies)[len(holders) :]


def primaries(key: bytes, holders: Collection[Room], copies: int) -> list[Room]:
    """Which of the copies are owed, up to ``copies``: the others are extra, and go first. Spread like ``replicas``."""
    return _spread([], ranked(key, holders), copies)


def _spread(chosen: list[Room], candidates: list[Room], copies: int) -> list[Room]:
    """``chosen`` and so many of ``candidates``, best first, that share neither zone nor machine if that can be."""
    found, left = list(chosen), list(candidates)
    while len(found) < copies and left:
        zones, machines = {room.zone for room in found}, {room.machine for room in found}
        best = min(left, key=lambda room: (room.machine in machines, bool(room.zone) and room.zone in zones))
        found.append(best)
        left.remove(best)
    return found
