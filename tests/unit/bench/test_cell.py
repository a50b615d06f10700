"""The simulated cell: what it finds, what it may not know yet, and what it tells."""

from __future__ import annotations

import numpy as np

from bench.cell import COALESCED, TRANSPORT, Cell, fine
from kvstore.cli.bench.trace import Request, trace_keys


def request(seconds: float, *blocks: int) -> Request:
    keys = trace_keys(np.array(blocks, np.uint64))
    return Request(seconds, 16 * len(blocks), keys)


def chain(seconds: float, first: int, count: int) -> Request:
    return request(seconds, *range(first, first + count))


def test_a_cell_with_room_finds_all_that_was_stored() -> None:
    cell = Cell(4, 4000, 16)
    figures = cell.run(
        [chain(0, 0, 100), chain(5, 0, 150), chain(10, 500, 300), chain(15, 0, 150), chain(20, 500, 299)]
    )
    assert figures.hits == 100 + 150 + 299
    assert figures.blocks == 100 + 150 + 300 + 150 + 299
    assert figures.stored == sum(figures.resident) == 450
    assert figures.stale == 0
    assert figures.copied == figures.moved == 0, "each chain lies on one node, and goes on there"


def test_nobody_knows_of_a_block_before_its_events_have_come() -> None:
    soon, late = COALESCED / 2, COALESCED + 2 * TRANSPORT
    assert Cell(4, 4000, 16).run([chain(0, 0, 100), chain(soon, 0, 100)]).hits == 0
    assert Cell(4, 4000, 16).run([chain(0, 0, 100), chain(COALESCED, 9000, 1), chain(late, 0, 100)]).hits == 100


def test_a_node_keeps_of_a_chain_what_fits() -> None:
    figures = Cell(4, 400, 16).run([chain(0, 0, 160), chain(5, 0, 160)])
    assert figures.hits == 100
    assert sorted(figures.resident) == [0, 0, 0, 100]


def test_what_many_begin_with_is_copied_to_where_they_go_on() -> None:
    trace = [request(float(at), *range(10), *range(1000 * (at + 1), 1000 * (at + 1) + 90)) for at in range(12)]
    cell = Cell(4, 4000, 16)
    figures = cell.run([*trace, *(Request(20.0 + one.seconds, one.tokens, one.keys) for one in trace)])
    assert figures.hits == 11 * 10 + 12 * 100
    begun = sum(len(node.follow(trace[0].keys[:10])) == 10 for node in cell.nodes)
    assert begun > 1
    assert figures.copied == (begun - 1) * 10
    assert sum(figures.resident) == figures.stored == 12 * 90 + begun * 10


def test_what_is_evicted_is_told_and_never_counted_as_found() -> None:
    trace = [chain(at, 1000 * (at % 9), 40) for at in range(60)]
    cell = Cell(2, 200, 16)
    figures = cell.run(trace)
    told = figures.keys + sum(len(keys) for node in cell.nodes for _, keys in node.told)
    removed = figures.stored - sum(figures.resident)
    assert removed > 0
    assert told == figures.stored + removed
    assert 0 < figures.hits < figures.blocks
    assert max(figures.resident) <= 100


def test_a_trace_in_smaller_blocks_is_spread_over_the_steps_of_its_clock() -> None:
    given = [
        Request(0.0, 1024, trace_keys(np.array([0, 1], np.uint64))),
        Request(0.0, 512, trace_keys(np.array([0], np.uint64))),
    ]
    made = fine([*given, Request(3.0, 512, given[1].keys)], 16)
    assert [one.seconds for one in made] == [0.0, 1.5, 3.0]
    assert [len(one.keys) for one in made] == [64, 32, 32]
    assert (made[0].keys[:32] == made[1].keys).all()
    assert len({one.tobytes() for one in made[0].keys}) == 64
