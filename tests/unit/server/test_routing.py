"""What placement is asked with: who has as much of a chain as anybody."""

from __future__ import annotations

from kvstore.cluster.placement import Tail
from kvstore.cluster.prefix_index import Holders
from kvstore.cluster.room import Room
from kvstore.server.routing import OWN, tail_of

ROOMS = {node: Room(node, b"%016d" % node, 1 << 30) for node in (OWN, 0, 1)}


def test_the_holders_of_most_are_where_a_chain_goes_on() -> None:
    assert tail_of(Holders(), 0, ROOMS) == (0, None)
    assert tail_of(Holders(), 4, ROOMS) == (4, Tail({OWN: 4}))
    assert tail_of(Holders(prefix={0: 9, 1: 9}), 4, ROOMS) == (9, Tail({0: 9, 1: 9}))
    assert tail_of(Holders(prefix={0: 9, 1: 3}), 9, ROOMS) == (9, Tail({0: 9, OWN: 9}))


def test_what_cannot_be_read_now_does_not_count() -> None:
    assert tail_of(Holders(prefix={5: 9, 1: 3}), 0, ROOMS) == (3, Tail({1: 3}))
