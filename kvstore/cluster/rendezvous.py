"""Rendezvous hashing: everybody who knows the same nodes puts them in the same order for a key, without asking anybody.

A node's weight is the share of the keys it comes first for; when a node comes or goes, only its own keys change place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import xxhash

from kvstore.cluster.room import Room

_UNIT = 2.0**-64


def ranked(key: bytes, rooms: Iterable[Room]) -> list[Room]:
    """Nodes in the order of a key, best first, weighted by capacity."""
    scored = [(_score(key, room), room.node_id, room) for room in rooms]
    return [room for _, _, room in sorted(scored, key=lambda one: one[:2])]


def _score(key: bytes, room: Room) -> float:
    """Drawn from an exponential distribution with the weight as rate: each is the least in share of its weight."""
    drawn = (xxhash.xxh3_64_intdigest(key, seed=room.seed) + 0.5) * _UNIT
    return -math.log(min(drawn, 1 - 2.0**-53)) / max(room.capacity_bytes, 1)
