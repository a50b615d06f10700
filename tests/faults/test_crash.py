"""Nothing acknowledged as durable is lost, and no byte is wrong, whenever the power or the process goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.crash import Crash, Mode
from tests.faults.disks import LoopDisk

ROUNDS = int(os.environ.get("KVSTORE_CRASH_ROUNDS", "20"))


@pytest.mark.timeout(60 + 20 * ROUNDS)
@pytest.mark.parametrize("mode", ["power", "kill"])
def test_a_crash_under_load_loses_no_durable_block_and_gives_no_wrong_byte(
    disk: LoopDisk, tmp_path: Path, mode: Mode
) -> None:
    crash = Crash(disk, tmp_path / "log", mode, seed=ROUNDS)
    for _ in range(ROUNDS):
        crash.round()
    print(crash.score.line(mode))
    assert crash.score.acknowledged > ROUNDS
    assert not crash.score.lost
    assert not crash.score.wrong
