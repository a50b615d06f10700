"""Which nodes a chain is copied to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.cluster.copy_targets import branch, held_by, preferred
from kvstore.cluster.room import Room

OWN = Room(-1, b"own-own-own-own-", 1000, host="here", zone="home")


def rooms(count: int, **facts: object) -> list[Room]:
    return [Room(n, b"%016d" % n, 1000, host=f"h{n}", zone=f"z{n}", **facts) for n in range(count)]  # type: ignore[arg-type]


def order(found: list[Room]) -> list[int]:
    return [room.node for room in found]


@given(st.lists(st.integers(0, 50), max_size=6), st.integers(1, 6))
def test_so_many_nodes_hold_as_many_blocks(have: list[int], copies: int) -> None:
    blocks = held_by(have, copies)
    assert sum(one >= blocks for one in have) >= copies or blocks == 0
    assert sum(one >= blocks + 1 for one in have) < copies


def test_who_has_most_of_the_chain_comes_first() -> None:
    assert order(preferred(b"k", [OWN], rooms(5), {3: 60, 4: 70}, 100))[:2] == [4, 3]


def test_a_beginning_that_many_chains_share_does_not_draw_them_all_to_one_node() -> None:
    firsts = {preferred(b"%d" % n, [OWN], rooms(8), {3: 10}, 100)[0].node for n in range(200)}
    assert len(firsts) == 8


def test_a_node_that_took_much_more_than_others_is_left_out_of_it() -> None:
    nodes = rooms(8)
    nodes[3] = replace(nodes[3], taken_bytes=2000)
    assert preferred(b"k", [OWN], nodes, {3: 90}, 100)[0].node != 3


def test_other_machines_and_zones_come_before_all_else() -> None:
    nodes = rooms(3)
    nodes[0] = replace(nodes[0], host="here")
    nodes[1] = replace(nodes[1], zone="home")
    assert order(preferred(b"k", [OWN], nodes, {0: 100, 1: 100}, 100)) == [2, 1, 0]
    second = preferred(b"k", [OWN, nodes[2]], nodes, {}, 100)
    assert order(second) == [1, 0]


@given(st.binary(max_size=4), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_who_holds_it_or_takes_nothing_is_never_named_and_all_others_are(
    key: bytes, chosen: set[int], takes: set[int]
) -> None:
    nodes = [replace(room, takes=room.node in takes) for room in rooms(6)]
    found = preferred(key, [OWN, *(nodes[n] for n in chosen)], nodes, {}, 10)
    assert sorted(order(found)) == sorted(takes - chosen)
    assert found == preferred(key, [OWN, *(nodes[n] for n in chosen)], nodes[::-1], {}, 10)


@pytest.mark.parametrize(("prefix", "at"), [({}, 0), ({1: 4, 2: 7}, 7), ({1: 10}, 9)])
def test_the_branch_is_the_first_block_that_nobody_else_has(prefix: dict[int, int], at: int) -> None:
    assert branch(prefix, 10) == at
