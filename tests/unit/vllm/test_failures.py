"""Scheduler and worker half together when things go wrong: nothing is wrong, nothing waits for long."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from kvstore.connector.vllm.breaker import Breaker
from kvstore.connector.vllm.link import Link
from kvstore.connector.vllm.options import Options
from kvstore.connector.vllm.stats import GAUGES
from kvstore.core.errors import DeadlineExceeded, InternalError, Unavailable

from .conftest import Make
from .fakes import FakeStore, Request, group, rank

HYBRID = (group(0), group(1, "window", window=32))


def test_several_groups_fail_by_request_one_group_by_page(make: Make, store: FakeStore) -> None:
    for groups in ((group(0),), HYBRID):
        a, b = make([rank(groups=groups)]), make([rank(groups=groups)])
        a.prefill(Request("a", 100, seed=len(groups)))
        chain = [key for key, part in store.blocks if part == 0][-6:]
        request = Request("b", 100, seed=len(groups))
        b.arrive(request)
        tokens = b.matched(request)
        b.allocate(request)
        store.damaged = {chain[3]}
        b.promise(request, tokens)
        b.until_received(request)
        if len(groups) == 1:
            assert (b.failed, b.bad) == (set(), set(b.tables["b"][0][3:6]))
        else:
            assert (b.failed, b.bad) == ({"b"}, set())
        assert b.matched(request) == 0, "the same request does not ask again"


def test_a_damaged_block_is_not_tried_in_a_loop_and_saved_again(make: Make, store: FakeStore) -> None:
    a, b = make(), make()
    a.prefill(Request("a", 65))
    chain = [key for key, _ in store.blocks]
    store.damaged = {chain[1]}
    request = Request("b", 65)
    b.load(request)
    assert b.bad == set(b.tables["b"][0][1:4])
    plan = b.step((request, 16, 48))
    assert [(op.run.first, op.run.count) for op in plan.saves] == [(1, 3)], "recomputed blocks are stored again"
    b.settle()
    store.damaged = set()
    assert b.load(Request("c", 65)) == 16, "the block that failed is left alone for a while"
    counts = b.counts()
    assert counts["failed_tokens:checksum"] == 48


@pytest.mark.parametrize("error", [Unavailable("gone"), DeadlineExceeded("late"), InternalError("bug")])
def test_a_node_that_fails_during_a_load_is_computed_around(make: Make, store: FakeStore, error: Exception) -> None:
    a, b = make(), make()
    a.prefill(Request("a", 65))
    request = Request("b", 65)
    b.arrive(request)
    tokens = b.matched(request)
    b.allocate(request)
    store.error = error  # type: ignore[assignment]
    b.promise(request, tokens)
    b.until_received(request)
    assert b.bad == set(b.tables["b"][0][:4])
    b.step()
    assert b.matched(Request("c", 65)) == 0


def test_after_a_failure_the_node_is_left_alone_and_then_used_again(make: Make, store: FakeStore) -> None:
    a = make(breaker_seconds=1.0)
    a.prefill(Request("a", 65))
    store.error = Unavailable("gone")
    request = Request("b", 65)
    a.arrive(request)
    assert a.matched(request) == 0
    store.calls.clear()
    a.arrive(Request("c", 65))
    assert a.matched(Request("c", 65)) == 0
    assert store.calls == [], "the breaker is open"
    store.error = None
    end = time.monotonic() + 10
    count = 0
    while True:
        count += 1
        request = Request(f"d{count}", 65)
        a.arrive(request)
        if a.matched(request):
            break
        assert time.monotonic() < end
        time.sleep(0.01)
    assert a.counts()["lookup_misses:breaker"] >= 1


def test_a_lookup_that_hangs_is_a_miss_after_its_few_milliseconds(make: Make, store: FakeStore) -> None:
    a = make(lookup_timeout_ms=20.0)
    a.prefill(Request("a", 65))
    store.gate.clear()
    request = Request("b", 65)
    a.arrive(request)
    began = time.monotonic()
    assert a.matched(request) == 0
    assert time.monotonic() - began < 5
    store.gate.set()
    assert a.counts()["lookup_misses:deadline"] == 1


def test_a_load_that_hangs_is_given_up_and_never_writes_afterwards(make: Make, store: FakeStore) -> None:
    a, b = make(seed=1), make(seed=2, load_timeout_s=0.1)
    a.prefill(Request("a", 65))
    request = Request("b", 65)
    b.arrive(request)
    tokens = b.matched(request)
    b.allocate(request)
    before = b.content(request)
    store.gate.clear()
    b.promise(request, tokens)
    b.until_received(request)
    assert b.bad == set(b.tables["b"][0][:4])
    store.gate.set()
    time.sleep(0.05)
    assert b.content(request) == before


def test_without_a_node_everything_runs_and_it_is_used_once_it_is_there(make: Make, store: FakeStore) -> None:
    store.error = Unavailable("not yet")
    a = make()
    request = Request("a", 65)
    a.arrive(request)
    assert a.matched(request) == 0
    a.allocate(request)
    a.step((request, 0, 64))
    store.error = None
    end = time.monotonic() + 10
    while a.scheduler._link.namespace is None or a.workers[0]._link.namespace is None:
        a.step()
        assert time.monotonic() < end
        time.sleep(0.01)
    a.settle()
    a.prefill(Request("b", 65, seed=3))
    assert a.load(Request("c", 65, seed=3)) == 64


def test_saves_without_room_in_staging_are_dropped_and_the_chain_is_not_continued(make: Make, store: FakeStore) -> None:
    a = make()
    first = Request("x", 65, seed=9)
    a.prefill(first)
    saver = a.workers[0]._saver
    assert saver is not None
    taken = [saver._staging.take() for _ in range(saver._staging.pieces)]
    request = Request("a", 200)
    a.arrive(request)
    a.matched(request)
    a.allocate(request)
    a.step((request, 0, 64))
    a.step((request, 64, 16))
    for piece in taken:
        saver._staging.give(piece)
    plan = a.step((request, 80, 64))
    assert plan.saves == []
    counts = a.counts()
    assert counts["dropped_tokens:pressure"] >= 64
    assert counts["dropped_tokens:gap"] == 16
    assert len(store.blocks) == 4


def test_a_reset_makes_a_new_namespace_and_leaves_running_requests_alone(make: Make, store: FakeStore) -> None:
    a = make()
    a.prefill(Request("a", 65))
    running = Request("r", 65, seed=5)
    a.arrive(running)
    a.matched(running)
    a.allocate(running)
    assert a.scheduler.reset()
    plan = a.step((running, 0, 64))
    assert plan.saves == []
    assert plan.namespace is not None
    a.settle()
    assert a.load(Request("b", 65)) == 0
    a.prefill(Request("c", 65))
    assert a.load(Request("d", 65)) == 64
    assert len(store.specs) == 2


def test_a_promise_that_cannot_be_planned_ends_as_a_failed_load(make: Make) -> None:
    a = make()
    request = Request("a", 65)
    a.arrive(request)
    a.matched(request)
    a.allocate(request)
    a.promise(request, 64)  # nothing was promised
    a.until_received(request)
    assert a.failed == {"a"}


def test_an_aborted_request_leaves_nothing_behind(make: Make, store: FakeStore) -> None:
    a = make()
    a.prefill(Request("x", 65))
    request = Request("a", 65)
    a.arrive(request)
    tokens = a.matched(request)
    a.allocate(request)
    a.promise(request, tokens)
    a.step()
    assert a.scheduler.finished(request) is None
    a.until_received(request)
    a.scheduler.finished(Request("x", 65))
    a.step()
    assert a.scheduler._tracks == {}
    assert a.workers[0]._chains == {}
    assert all(held.closed for held in store.held)


def test_an_engine_that_is_refused_runs_without_caching_and_says_why(
    make: Make, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    a = make([rank(refusals=("the layout is strange",))])
    assert a.scheduler.refused == "the layout is strange"
    a.prefill(Request("a", 65))
    assert store.blocks == {}
    assert "the layout is strange" in caplog.text
    assert a.counts()["namespace_open:scheduler"] == -1
    assert "namespace_open" in GAUGES


def test_after_an_error_while_planning_promised_loads_end_as_failed(make: Make) -> None:
    a = make()
    a.prefill(Request("x", 65))
    request, other = Request("a", 65), Request("b", 65, seed=4)
    for one in (request, other):
        a.arrive(one)
        a.matched(one)
        a.allocate(one)
    a.promise(request, 64)
    with pytest.raises(ZeroDivisionError):
        a.scheduler.plan([("b", 0, 64)], lambda name: 1 / 0, set())
    plan = a.scheduler.bare_plan()
    assert [(op.request, op.refused) for op in plan.loads] == [("a", "planning")]
    assert a.scheduler.bare_plan().loads == []


def test_blocks_announced_for_another_namespace_are_not_waited_for(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    a = make(handoff_timeout_s=60.0)
    params = {"do_remote_prefill": True, "kvstore": {"blocks": 4, "namespace": "00" * 16, "node": "n"}}
    request = Request("a", 70, kv_transfer_params=params)
    a.arrive(request)
    assert a.matched(request) == 0
    assert "stored its blocks in namespace 0000" in caplog.text


def test_how_often_the_breaker_opened_is_counted(make: Make, store: FakeStore) -> None:
    a = make()
    a.prefill(Request("x", 65))
    store.error = Unavailable("gone")
    request = Request("a", 65)
    a.arrive(request)
    a.matched(request)
    a.scheduler.gauges()
    a.scheduler.gauges()
    counts = a.counts()
    assert counts["breaker_opened:scheduler"] == 1
    assert counts["breaker_state:scheduler"] == 2


def test_the_workers_client_is_made_before_a_load_needs_it(store: FakeStore) -> None:
    made = threading.Event()

    def client(options: Options) -> Any:
        made.set()
        return store.client(options)

    link = Link(Options(), Breaker("worker", 1.0), logging.getLogger("test"), client)
    link.prepare()
    assert made.wait(10)
    assert link.namespace is None, "there is none to open yet"
    link.close()
