"""Long series of crashes of a node with two tiers: ``python -m tests.torture.crashes --rounds 200 --seed 1``.

Half of the crashes of each mode have the write rule clean, half through, unless --rule says one. Exits 1 when anything
was lost or wrong.
"""

from __future__ import annotations

import argparse
import signal
import sys

from tests.torture.tiers import MODES, Mode, Score, crashes

PIECE = 10  # crashes of one node


def series(mode: Mode, rounds: int, seed: int, only: str = "") -> Score:
    """All crashes of a mode, on a node after another. ``only``: one write rule."""
    total = Score()
    for start in range(0, rounds, PIECE):
        rule = only or ("clean" if start * 2 < rounds else "through")
        score = crashes(mode, seed + start, min(PIECE, rounds - start), rule)
        for name in ("crashes", "acknowledged", "durable", "checked", "lost", "wrong"):
            setattr(total, name, getattr(total, name) + getattr(score, name))
        total.notes += score.notes
        print(total.line(f"{mode}, {rule}"), flush=True)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="crashes of each mode")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--rule", choices=("clean", "through"), default="")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unmounts and removes what there is
    scores = [series(mode, options.rounds, options.seed, options.rule) for mode in options.mode or MODES]
    for note in (note for score in scores for note in score.notes):
        print(" ", note)
    return 1 if any(score.lost or score.wrong for score in scores) else 0


if __name__ == "__main__":
    sys.exit(main())
