from __future__ import annotations

import json

import pytest

from kvstore.cli.bench.report import Report, interleave, row


def test_a_rate_is_compared_with_the_best_way_of_the_machine() -> None:
    found = row("a", "GB/s", [3.0, 1.0, 2.0], ceilings={"slow": [1.0, 9.0, 1.0], "fast": [4.0, 4.0, 4.0]})
    assert (found.value, found.ceiling, found.share) == (2.0, 4.0, 0.5)
    assert (found.min, found.max, found.runs) == (1.0, 3.0, 3)
    assert found.params == {"ceiling": "fast", "ceilings": {"slow": 1.0, "fast": 4.0}}


def test_a_duration_at_twice_the_ceiling_has_half_the_share() -> None:
    assert row("a", "us", [20.0], ceilings={"memcpy": [10.0], "slower": [15.0]}).share == 0.5


def test_a_row_without_ceiling_says_so() -> None:
    found = row("a", "ratio", [0.5])
    assert found.ceiling is None
    assert found.share is None


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="GB/s, us, s, ratio, bytes"):
        row("a", "MiB/s", [1.0])


def test_runs_of_all_measurements_alternate() -> None:
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = interleave({"a": lambda: measure("a"), "b": lambda: measure("b")}, 3)
    assert order == ["a", "b"] * 3
    assert found == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}


def test_the_json_is_one_object_in_the_common_language() -> None:
    report = Report("local", {"cores": 2}, [row("shm.get.2MiB.x16", "GB/s", [1.0], params={"batch": 16})])
    assert json.loads(report.to_json()) == {
        "bench": "local",
        "machine": {"cores": 2},
        "rows": [
            {
                "case": "shm.get.2MiB.x16",
                "params": {"batch": 16},
                "value": 1.0,
                "unit": "GB/s",
                "ceiling": None,
                "share": None,
                "min": 1.0,
                "max": 1.0,
                "runs": 1,
            }
        ],
    }


def test_the_table_has_a_line_a_row_and_the_facts_of_the_machine() -> None:
    lines = Report("local", {"cores": 2}, [row("a", "us", [1234.5]), row("bb", "GB/s", [0.5])]).to_text().splitlines()
    assert "cores: 2" in lines[1]
    assert lines[-2].split()[:3] == ["a", "1,234", "us"]
    assert lines[-1].split()[:3] == ["bb", "0.50", "GB/s"]


def test_this_machine_is_described() -> None:
    machine = Report("local").machine
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] > 0
    assert {"cpu", "kernel", "python", "numpy", "xxhash", "load"} <= set(machine)
