"""Many crashes: ``python -m tests.faults --rounds 200 --seed 1``. Needs root. Prints what was acknowledged, checked."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.faults.crash import Crash, Mode
from tests.faults.disks import loop_disk

MODES: tuple[Mode, ...] = ("power", "kill")


def run(mode: Mode, rounds: int, seed: int) -> bool:
    """One series; whether nothing was lost or wrong."""
    with tempfile.TemporaryDirectory() as place, loop_disk(Path(place), 64) as disk:
        crash = Crash(disk, Path(place) / "log", mode, seed)
        for number in range(rounds):
            crash.round()
            if number % 20 == 19:
                print(crash.score.line(mode), flush=True)
        print(crash.score.line(mode), flush=True)
        for problem in crash.score.lost + crash.score.wrong:
            print(" ", problem)
        return not (crash.score.lost or crash.score.wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=MODES, action="append")
    options = parser.parse_args()
    good = [run(mode, options.rounds, options.seed) for mode in options.mode or MODES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
