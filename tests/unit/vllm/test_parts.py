"""The small parts: options, breaker, rates, memory of failures, statistics, staging, weights, pages."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from kvstore.connector.vllm.breaker import CLOSED, HALF_OPEN, LONGEST_PAUSE_S, OPEN, Breaker
from kvstore.connector.vllm.memory import FAILURE_S, FailureMemory, SaveMemory
from kvstore.connector.vllm.options import CHOICES, Options
from kvstore.connector.vllm.rates import TRY_ANYWAY, Rates
from kvstore.connector.vllm.staging import Staging
from kvstore.connector.vllm.stats import COUNTERS, GAUGES, LABELS, TIMES, Recorder, kind, merge, summary
from kvstore.connector.vllm.track import Handoff, handoff_of, tag_of
from kvstore.core.errors import ConfigError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# --- options


def test_defaults_are_valid_and_every_option_says_what_it_does() -> None:
    assert Options.parse({}) == Options()
    assert all(f.metadata["doc"] for f in dataclasses.fields(Options))
    assert CHOICES.keys() <= {f.name for f in dataclasses.fields(Options)}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"targte": "x"}, "did you mean 'target'"),
        ({"zzz": 1}, "known: target"),
        ({"load": "sometimes"}, "one of always, auto, never"),
        ({"min_hit_tokens": 0}, "at least 1"),
        ({"min_hit_tokens": "64"}, "must be int"),
        ({"multimodal": 1}, "must be bool"),
        ({"head_parts": 65}, "0 to 64"),
    ],
)
def test_a_wrong_option_is_refused_by_name(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Options.parse(given)


def test_whole_numbers_are_fine_where_seconds_are_wanted() -> None:
    assert Options.parse({"load_timeout_s": 3}).load_timeout_s == 3.0


# --- breaker


def test_a_hard_failure_opens_at_once_and_one_caller_tries_after_the_pause() -> None:
    clock = Clock()
    breaker = Breaker("x", 1.0, clock=clock)
    assert breaker.allow()
    breaker.failure("gone")
    assert (breaker.state, breaker.blocked, breaker.allow()) == (OPEN, True, False)
    clock.now = 1.1
    assert not breaker.blocked
    assert breaker.allow()
    assert (breaker.state, breaker.allow()) == (HALF_OPEN, False)
    breaker.success()
    assert (breaker.state, breaker.allow(), breaker.level) == (CLOSED, True, 0)


def test_the_pause_doubles_up_to_its_bound_and_starts_anew_after_a_success() -> None:
    clock = Clock()
    breaker = Breaker("x", 1.0, clock=clock)
    pauses = []
    for _ in range(8):
        breaker.failure("gone")
        before = clock.now
        while not breaker.allow():
            clock.now += 0.25
        pauses.append(clock.now - before)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert LONGEST_PAUSE_S == 30
    breaker.success()
    breaker.failure("gone")
    clock.now += 1.0
    assert breaker.allow()


def test_slowness_opens_only_when_it_lasts() -> None:
    breaker = Breaker("x", 1.0, soft_limit=3)
    breaker.failure("slow", soft=True)
    breaker.failure("slow", soft=True)
    breaker.success()
    for _ in range(2):
        breaker.failure("slow", soft=True)
        assert breaker.state == CLOSED
    breaker.failure("slow", soft=True)
    assert breaker.state == OPEN


def test_a_caller_that_never_reports_back_does_not_block_the_others_for_ever() -> None:
    clock = Clock()
    breaker = Breaker("x", 1.0, clock=clock)
    breaker.failure("gone")
    clock.now = 1.5
    assert breaker.allow()
    clock.now = 3.0
    assert breaker.allow()


# --- load or recompute


def test_until_both_rates_are_known_blocks_are_loaded() -> None:
    rates = Rates()
    assert rates.worth_loading(1000)
    rates.prefilled(1000, 0.001)
    rates.prefilled(1000, 0.001)
    assert rates.worth_loading(1000)


def test_the_faster_way_is_taken_and_the_other_measured_now_and_then() -> None:
    rates = Rates()
    for _ in range(3):
        rates.prefilled(1000, 0.1)
        rates.loaded(1000, 0.2, 0.25)
    assert [rates.worth_loading(1000) for _ in range(2 * TRY_ANYWAY)].count(True) == 2
    for _ in range(20):
        rates.loaded(1000, 0.01, 0.011)
    assert rates.worth_loading(1000)


def test_small_steps_say_nothing_about_the_prefill_rate() -> None:
    rates = Rates()
    rates.prefilled(8, 0.1)
    assert rates.prefill_seconds(100) is None


# --- memory


def test_a_failed_block_cuts_hits_for_a_while_longer_each_time() -> None:
    memory, keys = FailureMemory(), [bytes([i]) * 16 for i in range(5)]
    memory.failed([keys[2]], now=0.0)
    assert memory.cut(keys, 5, now=FAILURE_S - 0.1) == 2
    assert memory.cut(keys, 5, now=FAILURE_S + 0.1) == 5
    assert memory.cut(keys, 2, now=0.0) == 2
    memory.failed([keys[2]], now=20.0)
    assert memory.cut(keys, 5, now=20 + 2 * FAILURE_S - 0.1) == 2


def test_memories_are_bounded() -> None:
    failures, saves = FailureMemory(bound=3), SaveMemory(bound=3)
    keys = [bytes([i]) * 16 for i in range(9)]
    failures.failed(keys, 0.0)
    saves.send(keys)
    saves.dropped(keys[:6])
    assert len(failures) == 3
    assert [saves.sent(key) for key in keys] == [False] * 6 + [True] * 3
    assert [saves.gap(key) for key in keys] == [False] * 3 + [True] * 3 + [False] * 3


def test_what_a_lookup_did_not_find_is_saved_again() -> None:
    saves, key = SaveMemory(), b"k" * 16
    saves.send([key])
    saves.absent([key])
    assert not saves.sent(key)
    saves.dropped([key])
    saves.send([key])
    assert not saves.gap(key)


# --- statistics


def test_statistics_add_up_over_ranks_and_survive_pickling() -> None:
    a, b = Recorder(), Recorder()
    for recorder in (a, b):
        recorder.add("saved_tokens", 10)
        recorder.add("dropped_tokens", 3, "pressure")
        recorder.time("load_seconds", 0.5)
        recorder.gauge("breaker_state", 2 if recorder is b else 0, "worker")
        recorder.gauge("namespace_open", 0 if recorder is b else 1, "worker")
    left, right = a.take(), b.take()
    assert left is not None
    assert right is not None
    total = merge(pickle.loads(pickle.dumps(left)), right)
    assert total["saved_tokens"] == 20
    assert total["dropped_tokens:pressure"] == 6
    assert total["load_seconds"] == [0.5, 0.5]
    assert total["breaker_state:worker"] == 2
    assert total["namespace_open:worker"] == 0
    assert a.take() is None
    shown = summary(total)
    assert shown["breaker_state:worker"] == "open"
    assert shown["load_ms"] == 500.0


def test_gauges_are_reported_when_they_change() -> None:
    recorder = Recorder()
    recorder.gauge("breaker_state", 0, "worker")
    assert recorder.take() == {"breaker_state:worker": 0}
    recorder.gauge("breaker_state", 0, "worker")
    assert recorder.take() is None


def test_every_metric_has_one_kind_and_a_text() -> None:
    names = [*COUNTERS, *TIMES, *GAUGES]
    assert len(names) == len(set(names))
    assert set(LABELS) <= set(names)
    assert {kind(name) for name in TIMES} == {"time"}
    assert {kind(f"{name}:x") for name in GAUGES} == {"gauge"}


# --- staging


def test_staging_is_bounded_and_waits_no_longer_than_asked() -> None:
    staging = Staging(32 << 20, largest=100)
    pieces = [staging.take() for _ in range(4)]
    assert all(piece is not None for piece in pieces)
    assert staging.take() is None
    assert staging.take(0.01) is None
    threading.Timer(0.05, staging.give, [pieces[0]]).start()
    assert staging.take(5.0) is pieces[0]
    assert staging.in_use == 4


def test_a_block_larger_than_a_piece_makes_larger_pieces() -> None:
    assert Staging(1 << 20, largest=50 << 20).piece_bytes == 50 << 20


# --- handoff


def test_only_our_own_announcements_are_taken() -> None:
    ours = {"do_remote_prefill": True, "kvstore": {"blocks": 3, "namespace": "n", "node": "x"}}
    assert handoff_of(ours) == Handoff(3, "n", "x")
    theirs = [None, {}, {"do_remote_prefill": True}, {**ours, "do_remote_prefill": False}]
    broken = [{**ours, "kvstore": value} for value in ({"blocks": -1}, {"blocks": "3"}, 3)]
    for other in [*theirs, *broken]:
        assert handoff_of(other) is None


def test_request_ids_on_the_wire_are_never_zero() -> None:
    assert all(0 < tag_of(str(i)) < 1 << 64 for i in range(100))


# --- the manual


def test_the_manual_lists_every_option_with_its_default_and_every_metric() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "vllm.md").read_text()
    for option in dataclasses.fields(Options):
        shown = str(option.default).lower() if isinstance(option.default, bool) else option.default
        default = f"`{shown}`" if shown != "" else "empty"
        assert f"| `{option.name}` | {default} | {option.metadata['doc']} |" in text
    for name in [*COUNTERS, *TIMES, *GAUGES]:
        assert f"kvstore_{name}" in text or f"`_{name}`" in text, name
