"""Admission to NVMe: a threshold that is steered by a write budget."""

from __future__ import annotations

import pytest

from kvstore.tiers.admission import Admission, write_budget

MIB = 1 << 20


def run(admission: Admission, seconds: int, offered: int, scores: list[float], start: float = 0.0) -> int:
    """Offers ``offered`` blocks of 1 MiB a second, with scores in turn; bytes let in."""
    written = 0
    for tick in range(seconds * offered):
        now = start + tick / offered
        if not admission.refuses(scores[tick % len(scores)], MIB, now):
            admission.wrote(MIB, now)
            written += MIB
    return written


def test_without_a_budget_only_the_score_counts() -> None:
    admission = Admission(0.5, 0.0, 0.0)
    assert admission.refuses(0.49, MIB, 1.0) == "score"
    assert admission.refuses(0.5, 1 << 40, 1.0) == ""


def test_the_threshold_rises_until_the_budget_is_kept_and_comes_down_again() -> None:
    admission = Admission(0.0, 10 * MIB, 0.0)
    scores = [0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5]
    written = run(admission, 600, 40, scores)
    assert written <= 10 * MIB * (600 + 60)
    assert written >= 10 * MIB * 600 * 0.7
    assert admission.threshold > 0.5
    run(admission, 600, 2, scores, 600.0)
    assert admission.threshold == 0.0


def test_the_better_blocks_are_written_when_the_budget_is_short() -> None:
    admission = Admission(0.0, 10 * MIB, 0.0)
    run(admission, 300, 40, [0.2, 1.0])
    assert admission.refuses(0.2, MIB, 300.0) in ("score", "budget")
    assert admission.threshold <= 8.0


def test_a_burst_beyond_what_is_left_of_the_budget_is_refused() -> None:
    admission = Admission(0.0, MIB, 0.0)
    assert admission.refuses(5.0, 61 * MIB, 0.0) == "budget"
    assert admission.refuses(5.0, 60 * MIB, 0.0) == ""


@pytest.mark.parametrize(
    ("rate", "drive_writes", "capacity", "budget"),
    [(0, 0.0, 100, 0.0), (500, 0.0, 100, 500.0), (0, 1.0, 86_400, 1.0), (500, 2.0, 86_400, 2.0)],
)
def test_the_budget_is_the_tighter_of_its_two_bounds(
    rate: int, drive_writes: float, capacity: int, budget: float
) -> None:
    assert write_budget(rate, drive_writes, capacity) == budget
