"""Who serves which blocks of a chain: every block that anybody has, once, from a node that has it."""

from __future__ import annotations

import random

from kvstore.client.shares import LEAST_BYTES, Share, Source, shares

BLOCK = 1 << 20
FEW = LEAST_BYTES // BLOCK


def test_little_comes_from_the_one_node_that_has_most() -> None:
    sources = [Source(b"a", 3), Source(b"b", 4), Source(b"c", 2)]
    assert shares(0, 4, BLOCK, sources) == [Share(0, 4, (b"b", b"a", b"c"))]


def test_of_equal_nodes_the_one_on_this_machine_comes_first() -> None:
    sources = [Source(b"a", 4), Source(b"b", 4, near=True)]
    assert shares(0, 4, BLOCK, sources) == [Share(0, 4, (b"b", b"a"))]


def test_much_is_cut_into_even_shares_with_the_others_behind_each() -> None:
    sources = [Source(b"a", 100), Source(b"b", 100), Source(b"c", 100)]
    found = shares(10, 100, BLOCK, sources)
    assert [(one.first, one.end) for one in found] == [(10, 40), (40, 70), (70, 100)]
    assert {one.names[0] for one in found} == {b"a", b"b", b"c"}
    assert all(set(one.names) == {b"a", b"b", b"c"} for one in found)


def test_who_has_only_the_beginning_serves_the_beginning() -> None:
    found = shares(0, 60, BLOCK, [Source(b"long", 60), Source(b"short", 10)])
    assert found == [Share(0, 10, (b"short", b"long")), Share(10, 60, (b"long",))]


def test_what_nobody_has_is_in_no_share() -> None:
    assert shares(5, 9, BLOCK, [Source(b"a", 5), Source(b"b", 2)]) == []
    assert shares(5, 5, BLOCK, [Source(b"a", 9)]) == []
    assert shares(0, 9, BLOCK, []) == []
    assert [one.end for one in shares(0, 99, BLOCK, [Source(b"a", 7)])] == [7]


def test_any_nodes_in_any_state() -> None:
    dice = random.Random(5)
    for _ in range(3000):
        sources = [Source(b"%d" % at, dice.randrange(80), dice.random() < 0.3) for at in range(dice.randrange(6))]
        first, end = sorted(dice.sample(range(80), 2))
        block = dice.choice([1, BLOCK, 3 * BLOCK])
        found = shares(first, end, block, sources)
        most = max([one.blocks for one in sources], default=0)
        at = first
        for share in found:
            assert share.first == at < share.end
            at = share.end
            blocks = {one.name: one.blocks for one in sources}
            assert blocks[share.names[0]] >= share.end
            assert set(share.names) == {name for name, has in blocks.items() if has > share.first}
        assert at == max(first, min(end, most))
        assert len({share.names[0] for share in found}) == len(found)
        assert len(found) <= max(1, (end - first) * block // LEAST_BYTES)
