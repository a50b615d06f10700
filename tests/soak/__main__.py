"""`make soak`: many histories of a cell under load and random faults, each checked. Exits 1 unless all are clean.

python -m tests.soak [--seeds N] [--first SEED] [--faults N] [--keep DIR] [--out FILE]
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TextIO

from tests.history.checker import Violation
from tests.history.faults import random_faults
from tests.history.record import PUT, READS, History
from tests.history.run import Options, running


def options_of(seed: int) -> Options:
    """What a cell is like, by the seed."""
    dice = random.Random(f"{seed}/options")
    return Options(seed, etcd=dice.choice((0, 1)), nvme=True, chains=100, network_clients=dice.choice((1, 2)))


def one(seed: int, faults: int, keep: Path | None) -> tuple[str, bool]:
    """What became of a seed: a line for people, and whether it was clean."""
    began = time.monotonic()
    options = options_of(seed)
    with running(options) as run:
        run.load()
        try:
            random_faults(run, faults)
            violations = run.check()
        except AssertionError:
            violations = [Violation("harness", traceback.format_exc(limit=-3))]
        history = run.history()
        if violations and keep:
            shutil.copytree(run.folder, keep / f"seed-{seed}", ignore=_no_data, dirs_exist_ok=True)
    line = f"seed {seed:4}  {facts(history)}  {len(violations)} violations  {time.monotonic() - began:5.0f} s"
    return "\n".join([line, *(f"    {violation}" for violation in violations[:20])]), not violations


def facts(history: History) -> str:
    """What a history is made of."""
    acked = collections.Counter(op.ack for op in history.ops if op.kind == PUT and op.complete)
    checked = sum(len(op.seen) for op in history.ops if op.kind in READS)
    owed = sum(op.must for op in history.ops)
    faults = [event.detail for event in history.events if event.what == "note" and event.detail.isidentifier()]
    acks = " ".join(f"{acked[ack]:5} {ack}" for ack in ("visible", "replicated", "durable"))
    return f"{len(history.ops):6} calls  puts: {acks}  {checked:6} blocks read  {owed:5} audits  {' '.join(faults)}"


def _no_data(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith((".jsonl", ".log", ".err", ".toml")) and "." in name]


def say(text: str, out: TextIO | None) -> None:
    print(text, flush=True)
    if out is not None:
        print(text, file=out, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--faults", type=int, default=3, help="a seed")
    parser.add_argument("--keep", type=Path, help="where logs of seeds with violations are copied to")
    parser.add_argument("--out", type=Path, help="write the output here too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and leave nothing behind
    out = open(options.out, "w") if options.out else None  # noqa: SIM115 - as long as the process
    clean = 0
    say(f"{options.seeds} seeds, {options.faults} faults each, on three nodes that keep two copies", out)
    for seed in range(options.first, options.first + options.seeds):
        line, good = one(seed, options.faults, options.keep)
        clean += good
        say(line, out)
    say(f"{clean} of {options.seeds} histories without a violation", out)
    return 0 if clean == options.seeds else 1


if __name__ == "__main__":
    sys.exit(main())
