"""From whom to fetch what."""

from __future__ import annotations

from kvstore.cluster.fetch_plan import ranked, reach
from kvstore.cluster.prefix_index import Span

A, B, C = 1, 2, 4
SPANS = (Span(0, 10, A | B, A), Span(10, 20, B, 0), Span(20, 30, B | C, C))


def test_a_chain_reaches_as_far_as_somebody_usable_holds_each_next_block() -> None:
    assert reach(SPANS, 0, A | B | C) == 30
    assert reach(SPANS, 0, A) == 10
    assert reach(SPANS, 0, A | C) == 10
    assert reach(SPANS, 10, A | C) == 10
    assert reach(SPANS, 20, C) == 30  # what comes before is here
    assert reach(SPANS, 15, C) == 15
    assert reach(SPANS, 25, C) == 30
    assert reach(SPANS, 40, A | B | C) == 40
    assert reach((), 3, A) == 3
    assert reach((Span(4, 8, A, A),), 2, A) == 2  # nobody holds 2 and 3


def test_memory_comes_before_nvme_and_the_whole_before_a_piece() -> None:
    assert ranked(SPANS, 0, 10, A | B | C, 0) == [0, 1]
    assert ranked(SPANS, 5, 15, A | B | C, 0) == [1, 0]
    assert ranked(SPANS, 22, 28, A | B | C, 0) == [2, 1]
    assert ranked(SPANS, 0, 30, A | C, 0) == [0, 2]
    assert ranked(SPANS, 10, 20, A, 0) == []


def test_equal_holders_take_turns() -> None:
    alike = (Span(0, 10, A | B | C, A | B | C),)
    assert [ranked(alike, 0, 4, A | B | C, turn)[0] for turn in range(4)] == [0, 1, 2, 0]
    assert sorted(ranked(alike, 0, 4, A | B | C, 1)) == [0, 1, 2]
