"""Counters, reasons, log lines and results."""

from __future__ import annotations

import logging

import pytest

from kvstore import PutResult
from kvstore.client import counters
from kvstore.client.counters import Counters, Reporter, Skipped, reason_of
from kvstore.client.results import failed_at, tally
from kvstore.core import errors
from kvstore.transport.outcome import merged, miss_name, outcome_name
from kvstore.v1 import types_pb2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.DeadlineExceeded("x"), "deadline"),
        (errors.Busy("x"), "busy"),
        (errors.NoSpace("x"), "no_space"),
        (errors.SessionLost("x"), "session"),
        (errors.Unavailable("x"), "unavailable"),
        (Skipped("x"), "backoff"),
        (errors.VersionMismatch("x"), "version"),
        (errors.FrameTooLarge("x"), "protocol"),
        (errors.InternalError("x"), "internal"),
        (errors.ChecksumMismatch("x"), "checksum"),
    ],
)
def test_each_failure_has_a_reason(error: errors.KVStoreError, reason: str) -> None:
    assert reason_of(error) == reason


def test_each_outcome_and_reason_of_the_wire_has_a_name_also_unknown_ones() -> None:
    assert {miss_name(value) for value in types_pb2.MissReason.values()} >= {"", "absent", "pending", "part", "busy"}
    assert outcome_name(types_pb2.PUT_OUTCOME_PARENT_MISSING) == "parent_missing"
    assert outcome_name(200) == "code_200"
    assert miss_name(99) == "code_99"


def test_every_block_not_found_is_counted_with_its_reason() -> None:
    counts = Counters()
    assert counts.last_miss is None
    counts.lookup("get", 5, 5, "")
    assert counts.last_miss is None
    counts.lookup("get", 5, 2, "pending")
    counts.lookup("get", 4, 0, "")
    assert counts.last_miss == "absent"
    assert counts.snapshot() == {"get_blocks": 14, "get_hits": 7, "get_misses.pending": 3, "get_misses.absent": 4}


def test_a_line_of_a_kind_is_logged_once_and_then_says_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(counters.time, "monotonic", lambda: now[0])
    reporter = Reporter()
    with caplog.at_level(logging.WARNING, "kvstore.client"):
        for _ in range(5):
            reporter.warn("down", "the node is away")
        reporter.warn("other", "something else")
        now[0] += 11
        reporter.warn("down", "the node is away")
    assert caplog.messages == ["the node is away", "something else", "the node is away (4 more like it)"]


def test_outcomes_become_a_result() -> None:
    assert tally(bytes([1, 1, 2, 3, 4, 4, 5])) == PutResult(2, 1, 1, 3, {"no_space": 2, "parent_missing": 1})
    assert tally(bytes([1, 4]), 3, "no_space") == PutResult(1, 0, 0, 4, {"no_space": 4})
    assert tally(b"", 2, "deadline") == PutResult(failed=2, reasons={"deadline": 2})
    assert tally(bytes([1, 2])).complete
    assert not tally(bytes([1, 3])).complete
    assert failed_at(bytes([1, 2, 3, 6, 1])) == 3
    assert failed_at(bytes([1, 2, 3])) == 3
    assert failed_at(bytes([8, 9, 1, 4])) == 3  # not durable, not replicated: there all the same


def test_outcomes_of_a_commit_replace_those_of_its_reservation() -> None:
    assert merged(bytes([2, 1, 3, 1]), [1, 3], bytes([1, 7])) == bytes([2, 1, 3, 7])
    with pytest.raises(errors.ProtocolError, match="committed 1"):
        merged(bytes([1, 1]), [0, 1], bytes([1]))
