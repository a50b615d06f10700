"""`kvstore bench local` runs from end to end in short, and speaks the common language."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROW = {"case", "params", "value", "unit", "ceiling", "share", "min", "max", "runs"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvstore.cli", "bench", "local", "--working-set", "64", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def report() -> dict[str, object]:
    before = set(Path("/dev/shm").iterdir())
    cases = ("shm.*.2MiB.x16", "shm.put.64KiB.x16.c2", "tcp.*.64KiB.x16", "shm.*.2MiB.x16.full", "*.latency", "match.*")
    done = bench("--json", "--runs", "1", "--clients", "2", *(word for case in cases for word in ("--case", case)))
    assert done.returncode == 0, done.stderr
    left = {path for path in set(Path("/dev/shm").iterdir()) - before if path.name.startswith("kvstore-bench-")}
    assert left == set()
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_the_cases_asked_for_are_measured_against_a_ceiling(report: dict[str, list[dict[str, object]]]) -> None:
    assert [row["case"] for row in report["rows"]] == [
        "shm.get.2MiB.x16",
        "shm.put.2MiB.x16",
        "tcp.get.64KiB.x16",
        "tcp.put.64KiB.x16",
        "shm.put.64KiB.x16.c2",
        "shm.get.2MiB.latency",
        "match.8192",
        "shm.get.2MiB.x16.full",
        "shm.put.2MiB.x16.full",
    ]
    assert all(row["ceiling"] and row["share"] for row in report["rows"])


def test_every_row_has_the_fields_of_the_common_language(report: dict[str, list[dict[str, object]]]) -> None:
    assert set(report) == {"bench", "machine", "rows"}
    assert {frozenset(row) for row in report["rows"]} == {frozenset(ROW)}
    units = {row["case"]: row["unit"] for row in report["rows"]}
    assert units["shm.get.2MiB.x16"] == "GB/s"
    assert units["match.8192"] == units["shm.get.2MiB.latency"] == "us"


def test_a_working_set_that_batches_do_not_fill_is_refused() -> None:
    done = bench("--working-set", "65")
    assert done.returncode == 2
    assert "multiple of 64" in done.stderr
