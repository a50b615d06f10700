"""One late call is no reason to leave a node alone; a node that answers nothing is."""

from __future__ import annotations

import pytest

from kvstore.transport import late
from kvstore.transport.late import HUNG_SECONDS, Silence


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(late.time, "monotonic", lambda: now[0])
    return now


def test_calls_in_a_hurry_do_not_make_a_node_hung(clock: list[float]) -> None:
    silence = Silence()
    for _ in range(1000):
        clock[0] += 60.0
        silence.waited(clock[0] - 0.0002)
    assert not silence.hung


def test_a_call_that_waited_long_does_and_several_shorter_ones(clock: list[float]) -> None:
    for calls in (1, 4):
        silence = Silence()
        for _ in range(calls):
            assert not silence.hung
            clock[0] += HUNG_SECONDS / calls
            silence.waited(clock[0] - HUNG_SECONDS / calls)
        assert silence.hung
        silence.failed()
        assert not silence.hung


def test_any_answer_begins_anew(clock: list[float]) -> None:
    silence = Silence()
    for _ in range(100):
        clock[0] += 0.3
        silence.waited(clock[0] - 0.3, answered=clock[0] - 0.1)
    assert not silence.hung


def test_calls_that_wait_at_the_same_time_count_once(clock: list[float]) -> None:
    silence = Silence()
    clock[0] += 0.1
    for _ in range(64):
        silence.waited(clock[0] - 0.1)
    assert not silence.hung
