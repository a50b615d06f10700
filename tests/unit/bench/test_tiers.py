"""`kvstore bench tiers` measures what it says, at a size that a test can afford."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvstore.cli import main

CASES = [
    "dram.put.2MiB",
    "dram.get.2MiB",
    "nvme.write.2MiB",
    "nvme.read.2MiB",
    "nvme.chain_read.pipelined",
    "nvme.chain_read.one_by_one",
    "recovery.3000_entries",
    "recovery.3000_entries.tier",
]


def test_every_case_has_a_row_and_nothing_is_left_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--blocks", "16", "--entries", "3000", "--runs", "1"]
    assert main(["bench", "tiers", "--json", "--directory", str(tmp_path), *size]) == 0
    rows = {row["case"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == CASES
    for case in CASES[:-2]:
        assert rows[case]["share"] == pytest.approx(rows[case]["value"] / rows[case]["ceiling"])
    assert {rows[case]["unit"] for case in CASES[-2:]} == {"s"}
    assert not list(tmp_path.iterdir())
