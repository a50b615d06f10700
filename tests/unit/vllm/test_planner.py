"""What to load and save, as pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.connector.vllm.planner import (
    Geometry,
    Group,
    LoadRun,
    SaveRun,
    full_blocks,
    hit_limit,
    needed_from,
    plan_load,
    plan_saves,
    usable_hit,
)

ONE = Geometry(16, (Group(0, 16),))
HYBRID = Geometry(16, (Group(0, 16), Group(1, 16, window=32)))
MIXED = Geometry(16, (Group(0, 16), Group(1, 32)))


def test_unit_is_the_least_common_multiple_of_page_sizes() -> None:
    assert (ONE.unit, MIXED.unit) == (16, 32)
    assert [MIXED.pages(g) for g in MIXED.groups] == [2, 1]
    assert Geometry(8, (Group(0, 24), Group(1, 16))).unit == 48


def test_a_block_is_named_by_the_hash_of_its_last_hashed_run() -> None:
    hashes = [bytes([i]) * 4 for i in range(5)]
    assert MIXED.block_hashes(hashes, 0, 9) == [hashes[1], hashes[3]]
    assert ONE.block_hashes(hashes, 2, 4) == [hashes[2], hashes[3]]
    assert MIXED.hashed(5) == 2


@pytest.mark.parametrize(("tokens", "blocks"), [(64, 3), (65, 4), (80, 4), (1, 0), (16, 0), (0, 0)])
def test_a_hit_leaves_a_token_to_compute(tokens: int, blocks: int) -> None:
    assert hit_limit(ONE, tokens) == blocks


def test_a_window_needs_only_its_tail() -> None:
    full, window = HYBRID.groups
    assert needed_from(HYBRID, full, 10) == 0
    assert needed_from(HYBRID, window, 10) == (160 - 32 + 1) // 16 == 8


@given(blocks=st.integers(0, 40), window=st.integers(1, 400))
def test_the_needed_tail_covers_every_token_the_next_one_attends_to(blocks: int, window: int) -> None:
    geometry = Geometry(16, (Group(0, 16, window=window),))
    first = needed_from(geometry, geometry.groups[0], blocks)
    oldest = max(0, blocks * 16 - window + 1)
    assert first * 16 <= oldest
    assert oldest < (first + 1) * 16 or oldest == blocks * 16


def test_a_hit_ends_where_the_windows_tail_has_a_hole() -> None:
    held = [True] * 10
    assert usable_hit(HYBRID, 10, {1: held}, 10) == 10
    held[8] = False
    assert usable_hit(HYBRID, 10, {1: held}, 10) == 8
    assert usable_hit(HYBRID, 10, {1: [False] * 10}, 10) == 0
    assert usable_hit(HYBRID, 10, None, 10) == 10, "nothing said: the load will tell"


@given(held=st.lists(st.booleans(), max_size=24), matched=st.integers(0, 24), limit=st.integers(0, 24))
def test_a_usable_hit_is_the_longest_one_with_a_whole_tail(held: list[bool], matched: int, limit: int) -> None:
    window = HYBRID.groups[1]

    def good(n: int) -> bool:
        return n <= len(held) and all(held[needed_from(HYBRID, window, n) : n])

    best = max((n for n in range(min(matched, limit) + 1) if n == 0 or good(n)), default=0)
    assert usable_hit(HYBRID, matched, {1: held}, limit) == best


def test_draft_layers_recompute_the_last_block_of_a_hit() -> None:
    eagle = Geometry(16, (Group(0, 16),), eagle=True)
    assert usable_hit(eagle, 5, None, 10) == 4
    assert usable_hit(eagle, 0, None, 10) == 0
    assert full_blocks(eagle, 0, 64, 64, 4) == 3


def test_a_load_covers_every_promised_page_that_is_not_null() -> None:
    table = [[11, 12, 13, 14, 15]]
    assert plan_load(ONE, 16, 48, table) == (LoadRun(0, 1, 3, (12, 13, 14)),)
    assert plan_load(ONE, 0, 48, [[0, 12, 13]]) == (LoadRun(0, 1, 2, (12, 13)),)
    assert plan_load(ONE, 0, 48, [[11, 0, 13]]) == (LoadRun(0, 0, 3, (11, 0, 13)),)
    assert plan_load(ONE, 32, 0, table) == ()


def test_window_pages_outside_the_window_are_not_loaded() -> None:
    runs = plan_load(HYBRID, 0, 64, [[1, 2, 3, 4], [0, 0, 7, 8]])
    assert runs == (LoadRun(0, 0, 4, (1, 2, 3, 4)), LoadRun(1, 2, 2, (7, 8)))


def test_a_load_may_begin_and_end_inside_a_block() -> None:
    runs = plan_load(MIXED, 32, 48, [[1, 2, 3, 4, 5], [8, 9, 10]])
    assert runs == (LoadRun(0, 1, 2, (3, 4, 5, 0)), LoadRun(1, 1, 2, (9, 10)))


@given(computed=st.integers(0, 20), external=st.integers(1, 20), nulls=st.sets(st.integers(0, 40)))
def test_exactly_the_promised_pages_are_in_the_plan(computed: int, external: int, nulls: set[int]) -> None:
    table = [0 if i in nulls else 100 + i for i in range(40)]
    runs = plan_load(ONE, computed * 16, external * 16, [table])
    planned = {page for run in runs for page in run.pages if page}
    assert planned == {table[i] for i in range(computed, computed + external) if table[i]}
    for run in runs:
        assert len(run.pages) == run.count


@pytest.mark.parametrize(
    ("computed", "scheduled", "known", "hashes", "blocks"),
    [
        (0, 200, 700, 43, 12),  # a chunk of a prompt
        (200, 200, 700, 43, 25),
        (699, 4, 701, 43, 43),  # three drafts that may be rejected
        (0, 0, 0, 0, 0),
        (0, 64, 64, 3, 3),  # no hash yet: cannot be named
    ],
)
def test_only_final_bytes_are_saved(computed: int, scheduled: int, known: int, hashes: int, blocks: int) -> None:
    assert full_blocks(ONE, computed, scheduled, known, hashes) == blocks


def test_saves_are_runs_of_blocks_with_the_same_groups() -> None:
    runs, end = plan_saves(HYBRID, 0, 4, [[1, 2, 3, 4], [0, 0, 7, 8]])
    assert end == 4
    assert runs == (SaveRun(0, 2, (0,), ((1, 2),)), SaveRun(2, 2, (0, 1), ((3, 4), (7, 8))))


def test_blocks_the_store_has_are_left_out() -> None:
    runs, end = plan_saves(ONE, 0, 4, [[1, 2, 3, 4]], skip=lambda block: block in (1, 2))
    assert (runs, end) == ((SaveRun(0, 1, (0,), ((1,),)), SaveRun(3, 1, (0,), ((4,),))), 4)


def test_a_plan_ends_before_a_block_without_its_needed_page() -> None:
    runs, end = plan_saves(ONE, 0, 4, [[1, 2, 0, 4]])
    assert (runs, end) == ((SaveRun(0, 2, (0,), ((1, 2),)),), 2)
    runs, end = plan_saves(ONE, 0, 4, [[1, 2]])
    assert end == 2, "pages past the table are not there"


def test_a_model_of_windows_only_saves_blocks_that_have_their_pages() -> None:
    window = Geometry(16, (Group(0, 16, window=32),))
    runs, end = plan_saves(window, 2, 4, [[0, 0, 3, 4]], needed=(0,))
    assert (runs, end) == ((SaveRun(2, 2, (0,), ((3, 4),)),), 4)


def test_groups_with_larger_pages_save_whole_blocks() -> None:
    runs, end = plan_saves(MIXED, 0, 2, [[1, 2, 3, 4], [8, 9]])
    assert (runs, end) == ((SaveRun(0, 2, (0, 1), ((1, 2, 3, 4), (8, 9))),), 2)


@given(first=st.integers(0, 6), length=st.integers(0, 10), known=st.sets(st.integers(0, 16)))
def test_every_full_block_is_saved_once_and_in_order(first: int, length: int, known: set[int]) -> None:
    table = [[100 + i for i in range(16)]]
    runs, end = plan_saves(ONE, first, first + length, table, skip=known.__contains__)
    blocks = [block for run in runs for block in range(run.first, run.first + run.count)]
    assert blocks == [b for b in range(first, first + length) if b not in known]
    assert [p for run in runs for p in run.pages[0]] == [100 + b for b in blocks]
    assert end == first + length
