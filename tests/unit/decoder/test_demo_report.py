"""The demo's verdict: any different output, or no hit, is a failure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvstore.cli.demo_report import Answer, Outcome, Screen
from kvstore.cli.demo_run import Stage

STAGE = Stage(Path("model"), Path("document"), 8, 1, "64MiB")
COLD = Answer("uncached", "why?", 900, 0, 900, 2.0, [1, 2, 3], "because")
FIRST = replace(COLD, process="A", seconds=2.5)
WARM = replace(COLD, process="B", found=896, computed=4, seconds=0.1)


def test_equal_outputs_with_hits_are_good() -> None:
    outcome = Outcome([FIRST, WARM], [COLD], STAGE)
    assert outcome.good
    assert outcome.as_dict()["ok"]
    assert outcome.as_dict()["requests"][1]["ratio"] == pytest.approx(20)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([FIRST, replace(WARM, ids=[1, 2, 4])], "output of B differs"),
        ([replace(FIRST, ids=[1, 2]), WARM], "output of A differs"),
        ([FIRST, replace(WARM, found=0, computed=900)], "found nothing"),
        ([FIRST], "found nothing"),
    ],
)
def test_a_different_output_or_no_hit_is_not_good(
    answers: list[Answer], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Outcome(answers, [COLD], STAGE)
    assert not outcome.good
    Screen().table(outcome)
    assert said in capsys.readouterr().out


def test_a_quiet_screen_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(quiet=True)
    screen.note("started")
    screen.table(Outcome([FIRST, WARM], [COLD], STAGE))
    assert capsys.readouterr().out == ""
