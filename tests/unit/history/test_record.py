"""Records of histories, and the world that they are of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.history.record import Event, Holding, Op, Reader, Writer
from tests.history.world import BLOCK_BYTES, TENANTS, World

WORLD = World(seed=7, chains=40)
TENANT = TENANTS[0]
ROOT = next(number for number in range(40) if WORLD.chain(number).parent < 0 and WORLD.chain(number).length >= 4)
FORK = next(number for number in range(40) if WORLD.chain(number).parent == ROOT)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    begun = Op("c", 1, "get", TENANT, ROOT, 3, 1.0, 2.0)
    ended = Op("c", 1, "get", TENANT, ROOT, 3, 1.0, 2.0, end=1.5, found=1, seen=[(0, "aa")], reasons={"x": 2})
    killed = Op("c", 2, "put", TENANT, ROOT, 3, 2.0, 2.0, version=4)
    writer = Writer(tmp_path / "a.jsonl")
    for record in (begun, ended, killed, Event("kill", 3.0, 1), Holding(4.0, 0, TENANT, ROOT, 3)):
        writer.add(record)
    writer.close()
    with open(tmp_path / "a.jsonl", "a") as torn:
        torn.write('{"record": "Op", "cli')
    found = Reader(tmp_path).history()
    assert found.ops == [ended, killed]
    assert found.events == [Event("kill", 3.0, 1)]
    assert found.holdings == [Holding(4.0, 0, TENANT, ROOT, 3)]


def test_a_record_is_read_on_from_where_it_was_read_to(tmp_path: Path) -> None:
    reader, writer = Reader(tmp_path), Writer(tmp_path / "a.jsonl")
    op = Op("c", 1, "get", TENANT, ROOT, 3, 1.0, 2.0)
    writer.add(op)
    assert reader.history().ops == [op]
    op.end = 1.5
    writer.add(op)
    writer.add(Event("kill", 3.0, 1))
    assert reader.history().ops == [op]
    assert len(reader.history().events) == 1
    writer.close()


def test_blocks_are_those_of_the_chain_they_were_new_in() -> None:
    shared = WORLD.chain(FORK).fork
    assert WORLD.blocks(FORK)[:shared] == WORLD.blocks(ROOT)[:shared]
    assert WORLD.blocks(FORK)[shared] == (FORK, shared)
    same = WORLD.tokens(FORK)[: 16 * shared] == WORLD.tokens(ROOT)[: 16 * shared]
    assert same.all()


@pytest.mark.parametrize("change", [lambda b: (b[0] + 1, b[1]), lambda b: (b[0], b[1] + 1)])
def test_no_two_blocks_hold_the_same(change: Callable[[tuple[int, int]], tuple[int, int]]) -> None:
    block = (3, 4)
    digests = {
        World(seed).digest(tenant, which, version)
        for seed in (1, 2)
        for tenant in TENANTS
        for which in (block, change(block))
        for version in (0, 1)
    }
    assert len(digests) == 16
    assert len(WORLD.content(TENANT, block, 0)) == BLOCK_BYTES
