"""The tables in README.md are what the benchmarks printed."""

from __future__ import annotations

import re

import pytest

from bench.tables import README, TABLES, filled


def test_the_readme_has_every_table_and_each_is_what_its_benchmark_printed() -> None:
    text = README.read_text()
    assert set(re.findall(r"<!-- (\w+): ", text)) == set(TABLES)
    assert filled(text) == text, "run: python -m bench.tables --write"


@pytest.mark.parametrize("name", TABLES)
def test_a_number_that_was_not_measured_is_found(name: str) -> None:
    text = README.read_text()
    start = text.index(f"<!-- {name}: ")
    at = next(place for place in range(text.index("-->", start), len(text)) if text[place].isdigit())
    changed = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
    assert filled(changed) == text
