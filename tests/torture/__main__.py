"""`make torture`: many rounds. Prints acknowledged, checked, lost and wrong, and exits 1 unless both are zero.

python -m tests.torture [--rounds N] [--seed N] [--only SCENARIO]
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.torture.suite import SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of every scenario")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="name of one scenario")
    options = parser.parse_args()
    total = {"rounds": 0, "acknowledged": 0, "checked": 0, "lost": 0, "wrong": 0}
    for number in range(options.rounds):
        for scenario in SCENARIOS:
            if options.only not in ("", scenario.__name__):
                continue
            begun = time.monotonic()
            tally, lost = scenario(options.seed + number)
            values = (1, tally.acknowledged, tally.checked, lost, tally.wrong)
            for name, value in zip(total, values, strict=True):
                total[name] += value
            print(
                f"{scenario.__name__:28} seed {options.seed + number:4}  acknowledged {tally.acknowledged:6}  "
                f"checked {tally.checked:7}  lost {lost}  wrong {tally.wrong}  {time.monotonic() - begun:5.1f} s",
                flush=True,
            )
    print("total: " + "  ".join(f"{name} {value}" for name, value in total.items()))
    return 0 if total["lost"] == total["wrong"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
