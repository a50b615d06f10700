"""`kvstore bench cluster` runs from end to end in short: three real nodes, one of them killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PREFIXES = ("kvstore-bench-",)


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, object]]:
    before = set(Path("/dev/shm").iterdir())
    command = [sys.executable, "-m", "kvstore.cli", "bench", "cluster", "--json", "--runs", "1", "--working-set", "32"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    left = {path for path in set(Path("/dev/shm").iterdir()) - before if path.name.startswith(PREFIXES)}
    assert left == set()
    found = json.loads(done.stdout)
    assert found["bench"] == "cluster"
    return {row["case"]: row for row in found["rows"]}


def test_what_the_cell_costs_is_measured(rows: dict[str, dict[str, object]]) -> None:
    units = {case: row["unit"] for case, row in rows.items()}
    assert units == {
        "match.131072.cell": "us", "sent_per_served.first": "ratio", "sent_per_served.again": "ratio",
        "cpu.get.first": "s", "cpu.get.again": "s", "repair": "s", "repair.from_kill": "s",
    }  # fmt: skip
    assert all(row["share"] for row in rows.values() if row["ceiling"] is not None)


def test_a_byte_is_sent_once_and_then_served_from_the_readers_own_node(rows: dict[str, dict[str, object]]) -> None:
    assert rows["sent_per_served.first"]["value"] == pytest.approx(1.0, abs=0.01)
    assert rows["sent_per_served.again"]["value"] == 0.0


def test_a_working_set_that_chains_do_not_fill_is_refused() -> None:
    command = [sys.executable, "-m", "kvstore.cli", "bench", "cluster", "--working-set", "33"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 2
    assert "multiple of 32" in done.stderr
