"""The alerts: each fires on what it is for, stays silent on what is like it and harmless, and says what to do."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.metrics.cases import CASES, Case
from tests.metrics.promql import names_in, wrong_names
from tests.metrics.rules import ALERTS, ROOT, Rule, rules

RULES = rules()


def promtool(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(ALERTS))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_when_it_should_and_not_else(tmp_path: Path) -> None:
    """All cases in one run of promtool."""
    file = tmp_path / "cases.yaml"
    file.write_text(promtool_test(CASES))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_case_that_does_not_hold_is_noticed(tmp_path: Path) -> None:
    """What the test above would miss if it could not fail."""
    wrong = Case(CASES[0].alert, not CASES[0].fires, CASES[0].series)
    file = tmp_path / "cases.yaml"
    file.write_text(promtool_test([*CASES[1:], wrong]))
    assert promtool("test", "rules", str(file)).returncode != 0


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_alert_has_a_case_of_both_kinds(rule: Rule) -> None:
    assert {case.fires for case in CASES if case.alert == rule.name} == {True, False}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_alert_says_what_to_do(rule: Rule) -> None:
    assert rule.severity in ("critical", "warning")
    assert 10 < len(rule.annotations["summary"]) < 100
    assert 60 < len(rule.annotations["description"]) < 400
    path, _, anchor = rule.annotations["runbook"].partition("#")
    headings = re.findall(r"^## (.*)$", (ROOT / path).read_text(), re.MULTILINE)
    assert anchor in [heading.lower() for heading in headings]


def test_the_page_of_alerts_has_no_others() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert headings == [rule.name for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_alerts_look_at_metrics_and_labels_that_there_are(rule: Rule) -> None:
    assert names_in(rule.expr)
    assert wrong_names(rule.expr) == []


def promtool_test(cases: Sequence[Case]) -> str:
    """All cases on one clock, each with a job of its own."""
    series, asked = [], []
    for nth, case in enumerate(cases):
        jobs = {job_of(name) or f"kvstore-{nth}" for name in case.series}
        assert len(jobs) == 1
        job = jobs.pop()
        series += [{"series": of_job(name, job), "values": values} for name, values in case.series.items()]
        firing = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing",job="{job}"}}) or vector(0)'
        expected = [{"labels": "{}", "value": int(case.fires)}]
        asked.append({"expr": firing, "eval_time": f"{case.minutes}m", "exp_samples": expected})
    one = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    return json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [one]})


def job_of(series: str) -> str:
    found = re.search(r'job="([^"]*)"', series)
    return found[1] if found else ""


def of_job(series: str, job: str) -> str:
    """With labels of a node."""
    name, _, labels = series.partition("{")
    own = [label for label in labels.removesuffix("}").split(",") if label and "job=" not in label]
    every = ",".join([f'job="{job}"', 'instance="n1"', *own])
    return f"{name}{{{every}}}"
