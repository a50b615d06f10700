"""Scheduler and worker half together, over a store in memory: what is saved, loaded, handed over."""

from __future__ import annotations

import time

import pytest

from .conftest import Make
from .fakes import FakeStore, Request, group, rank


def test_what_one_engine_saved_another_loads_byte_for_byte(make: Make) -> None:
    a, b = make(seed=1), make(seed=2)
    a.prefill(Request("a", 70))
    b_request = Request("b", 70)
    assert b.load(b_request) == 64
    assert b.content(b_request) == a.content(Request("a", 70))
    assert b.content(b_request, partial=True) != a.content(Request("a", 70), partial=True), "the unfilled page stays"
    assert (b.failed, b.bad) == (set(), set())
    counts = b.counts()
    assert (counts["hits"], counts["hit_tokens"], counts["loaded_tokens"]) == (1, 64, 64)
    assert a.counts()["saved_tokens"] == 64


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_block_is_left_to_compute_of_a_prompt_of_whole_blocks(make: Make, mode: str) -> None:
    a, b = make(), make(load_mode=mode)
    a.prefill(Request("a", 64))
    b.arrive(Request("b", 64))
    assert b.matched(Request("b", 64)) == 48


def test_a_synchronous_load_ends_in_its_step(make: Make) -> None:
    a, b = make(), make(seed=5, load_mode="sync")
    a.prefill(Request("a", 65))
    request = Request("b", 65)
    b.arrive(request)
    assert b.matched(request) == 64
    b.allocate(request)
    b.promise(request, 64)
    b.step((request, 64, 1))
    assert b.content(request) == a.content(Request("a", 65))
    assert b.received == {}, "synchronous loads are not reported as received"


def test_tokens_cached_in_the_engine_are_not_loaded_again(make: Make) -> None:
    a, b = make(), make(seed=2)
    a.prefill(Request("a", 97))
    request = Request("b", 97)
    b.arrive(request)
    assert b.matched(request, computed=32) == 64
    b.allocate(request)
    before = b.content(request)
    b.promise(request, 64)
    b.until_received(request)
    assert b.content(request)[:2] == before[:2]
    assert b.content(request)[2:] == a.content(Request("a", 97))[2:]


def test_blocks_are_saved_as_chunks_of_the_prompt_fill_them(make: Make, store: FakeStore) -> None:
    a = make()
    request = Request("a", 70)
    a.arrive(request)
    a.matched(request)
    a.allocate(request)
    seen = []
    for computed, count in ((0, 20), (20, 20), (40, 30)):
        plan = a.step((request, computed, count))
        seen += [(op.run.first, op.run.count) for op in plan.saves]
    assert seen == [(0, 1), (1, 1), (2, 2)]
    a.settle()
    assert len(store.blocks) == 4


def test_keys_travel_to_the_workers_once(make: Make) -> None:
    a = make()
    request = Request("a", 160)
    a.arrive(request)
    a.matched(request)
    a.allocate(request)
    plans = [a.step((request, at, 32)) for at in range(0, 160, 32)]
    sent = [(first, len(keys) // 16) for plan in plans for _, first, keys in plan.chains]
    assert sent == [(0, 2), (2, 2), (4, 2), (6, 2), (8, 2)]


@pytest.mark.parametrize(("save", "blocks"), [("all", 5), ("prompt", 4), ("none", 0)])
def test_generated_tokens_are_saved_by_choice(make: Make, store: FakeStore, save: str, blocks: int) -> None:
    a = make(save=save)
    request = Request("a", 65)
    a.arrive(request)
    a.matched(request)
    a.allocate(Request("a", 200))
    a.step((request, 0, 64))
    for _ in range(17):
        request.tokens += 1
        a.step((request, request.tokens - 1, 1))
    a.settle()
    assert len(store.blocks) == blocks


def test_what_the_store_has_is_not_saved_again(make: Make, store: FakeStore) -> None:
    a, b = make(), make()
    a.prefill(Request("a", 65))
    store.calls.clear()
    b.prefill(Request("b", 65))
    assert "put" not in store.calls


def test_two_requests_with_one_prefix_save_it_once(make: Make) -> None:
    a = make()
    first, second = Request("a", 65), Request("b", 65)
    for request in (first, second):
        a.arrive(request)
        a.matched(request)
        a.allocate(request)
    plan = a.step((first, 0, 64), (second, 0, 64))
    assert [op.request for op in plan.saves] == ["a"]


def test_tp_ranks_save_and_load_their_own_parts(make: Make) -> None:
    ranks = [rank(tp, 2) for tp in range(2)]
    a, b = make(ranks, seed=1), make(ranks, seed=7)
    a.prefill(Request("a", 65))
    request = Request("b", 65)
    assert b.load(request) == 64
    for index in range(2):
        assert b.content(request, rank_index=index) == a.content(Request("a", 65), rank_index=index)


def test_a_hit_needs_the_parts_of_every_rank(make: Make, store: FakeStore) -> None:
    ranks = [rank(tp, 2) for tp in range(2)]
    a, b = make(ranks), make(ranks)
    a.prefill(Request("a", 65))
    key = next(key for key, part in list(store.blocks) if part == 1)
    chain = [key for key, part in store.blocks if part == 1]
    del store.blocks[chain[2], 1]
    assert b.load(Request("b", 65)) == 32
    assert key in chain


def test_mla_is_saved_by_one_rank_and_loaded_by_all(make: Make, store: FakeStore) -> None:
    groups = (group(kind="mla", heads=0),)
    ranks = [rank(tp, 2, groups, replicas=2) for tp in range(2)]
    a, b = make(ranks, seed=1), make(ranks, seed=5)
    a.prefill(Request("a", 65))
    assert len(store.blocks) == 4
    request = Request("b", 65)
    assert b.load(request) == 64
    assert b.content(request, rank_index=0) == b.content(request, rank_index=1) == a.content(Request("a", 65))


def test_tp_sizes_share_head_ranges(make: Make) -> None:
    whole = [rank(groups=(group(page_bytes=256, heads=4),))]
    halves = [rank(tp, 2, (group(page_bytes=128, heads=2),)) for tp in range(2)]
    a, b = make(whole, seed=1, head_parts=2), make(halves, seed=9, head_parts=2)
    a.prefill(Request("a", 65))
    request = Request("b", 65)
    assert b.load(request) == 64
    joined = [x + y for x, y in zip(b.content(request, rank_index=0), b.content(request, rank_index=1), strict=True)]
    assert joined == a.content(Request("a", 65))


HYBRID = (group(0), group(1, "window", window=32))


def test_of_a_window_only_the_tail_is_loaded(make: Make) -> None:
    a, b = make([rank(groups=HYBRID)], seed=1), make([rank(groups=HYBRID)], seed=4)
    a.prefill(Request("a", 100))
    request = Request("b", 100)
    assert b.load(request, nulls={1: 4}) == 96
    for index in (0, 1):
        first = 4 if index else 0
        assert b.content(request, index)[first:6] == a.content(Request("a", 100), index)[first:6]


def test_a_hole_in_the_window_shortens_the_hit(make: Make, store: FakeStore) -> None:
    a, b = make([rank(groups=HYBRID)]), make([rank(groups=HYBRID)])
    a.prefill(Request("a", 100))
    chain = [key for key, part in store.blocks if part == 1]
    del store.blocks[chain[5], 1]
    assert b.load(Request("b", 100), nulls={1: 3}) == 80


def test_prefill_hands_over_and_decode_waits_for_the_blocks(make: Make, store: FakeStore) -> None:
    p, d = make(seed=1), make(seed=2, handoff_timeout_s=5.0, lookup_timeout_ms=1.0)
    request = Request("p", 70, kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False})
    store.gate.clear()
    p.arrive(request)
    p.allocate(request)
    p.step((request, 0, 70))
    params = p.scheduler.finished(request)
    assert params is not None
    assert params["do_remote_prefill"] is True
    assert params["kvstore"]["blocks"] == 4
    other = Request("d", 70, kv_transfer_params=params)
    d.arrive(other)
    assert d.scheduler.matched_tokens(other, 0) is None
    store.gate.set()
    assert d.matched(other) == 64


def test_a_request_that_may_not_read_the_cache_is_not_looked_up(make: Make, store: FakeStore) -> None:
    a = make()
    a.prefill(Request("a", 65))
    store.calls.clear()
    request = Request("b", 65, skip_reading_prefix_cache=True)
    a.arrive(request)
    assert a.matched(request) == 0
    assert "match" not in store.calls


def test_adapters_with_other_content_never_share(make: Make, store: FakeStore) -> None:
    a = make()
    request = Request("a", 65)
    a.arrive(request, salt=b"one")
    a.matched(request)
    a.allocate(request)
    a.step((request, 0, 64))
    a.settle()
    for salt, tokens in ((b"two", 0), (b"", 0), (b"one", 64)):
        other = Request(f"o{salt!r}", 65)
        a.arrive(other, salt=salt)
        assert a.matched(other) == tokens
    unknown = Request("u", 65)
    a.arrive(unknown, salt=None)
    assert a.matched(unknown) == 0


def test_a_namespace_that_differs_is_explained_by_field(
    make: Make, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    a = make()
    a.prefill(Request("a", 65))
    make([rank(shared={**rank().shared, "weights": "other"})]).prefill(Request("a", 65))
    assert "differs in: extra.weights" in caplog.text


def test_blocks_that_are_not_in_memory_start_on_their_way_with_the_lookup(make: Make, store: FakeStore) -> None:
    a, b, c = make(), make(seed=2), make(seed=3)
    a.prefill(Request("a", 70))
    b.load(Request("b", 70))
    assert "prefetch" not in store.calls, "all of it is leased in memory"
    keys = [key for key, _ in store.blocks]
    store.cold = set(keys[2:])
    c.load(request := Request("c", 70))
    assert c.content(request) == a.content(Request("a", 70))
    end = time.monotonic() + 10  # the lookup is answered first
    while not store.prefetched and time.monotonic() < end:
        time.sleep(0.001)
    assert store.prefetched == keys[2:]


def test_short_hits_are_computed(make: Make) -> None:
    a, b = make(), make(min_hit_tokens=64)
    a.prefill(Request("a", 48))
    request = Request("b", 65)
    b.arrive(request)
    assert b.matched(request) == 0


def test_load_or_recompute_goes_by_measured_rates(make: Make) -> None:
    a = make(load="auto")
    a.prefill(Request("a", 641))
    for _ in range(4):
        a.scheduler.rates.prefill.add(1e6)
        a.scheduler.rates.transfer.add(1e3)
        a.scheduler.rates.overhead_s.add(0.0)
    request = Request("b", 641)
    a.arrive(request)
    assert a.matched(request) == 0
    assert a.matched(request) == 0, "the answer does not change while the request waits"
    assert a.counts()["recomputed_tokens"] == 640
