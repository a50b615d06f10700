"""`kvstore bench transport` measures all four transports, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_four_transports_are_measured_side_by_side() -> None:
    before = set(Path("/dev/shm").iterdir())
    command = [sys.executable, "-m", "kvstore.cli", "bench", "transport", "--json", "--runs", "1", "--clients", "2"]
    cases = ("*.get.64KiB.x16", "nixl.put.2MiB.x1", "nixl.get.64KiB.x1.c2")
    words = [word for case in cases for word in ("--case", case)]
    done = subprocess.run(
        [*command, "--working-set", "64", *words], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bench"] == "transport"
    assert {row["case"] for row in found["rows"]} == {
        *(f"{name}.get.64KiB.x16" for name in ("shm", "tcp", "nixl", "ucx")),
        "nixl.put.2MiB.x1",
        "nixl.get.64KiB.x1.c2",
    }
    assert all(row["unit"] == "GB/s" and row["value"] > 0 and row["share"] for row in found["rows"])
    left = {path for path in set(Path("/dev/shm").iterdir()) - before if path.name.startswith("kvstore-bench-")}
    assert left == set()
