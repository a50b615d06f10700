"""A put storm of twice the DRAM size from 8 processes: ``python -m bench.put_storm [--json]``.

Exits 1 when a put was dropped, a block cannot be got back as it was, or the node's memory kept growing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvstore.cli.bench.storm import Storm, run

MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.put_storm", description=__doc__)
    parser.add_argument("--dram", type=int, default=512, help="MiB of DRAM that the node has")
    parser.add_argument("--block", type=int, default=2048, help="KiB of a block")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--times", type=float, default=2.0, help="of the DRAM size are put")
    parser.add_argument("--directory", type=Path, help="on the disk to use; default: the current one")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    report = run(Storm(given.dram * MIB, given.block << 10, given.processes, given.times), given.directory)
    print(report.to_json() if given.json else report.to_text())
    values = {row.case: row.value for row in report.rows}
    bad = [name for name in ("storm.dropped", "storm.missing", "storm.wrong") if values[name]]
    if values["storm.node.private.growth_in_second_half"] > 32 * MIB:
        bad.append("storm.node.private.growth_in_second_half")
    if bad:
        print("not as it must be: " + ", ".join(bad), file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
