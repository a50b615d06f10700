"""What former nodes have left is told in few words, however much it is."""

from __future__ import annotations

from pathlib import Path

from kvstore.server.leftovers import listed
from kvstore.tiers.memopen import Orphan


def test_the_first_ten_files_are_named_and_all_are_counted() -> None:
    former = [Orphan(Path(f"/dev/shm/kvstore-{nth}.mem"), 1 << 30) for nth in range(500)]
    said = listed(former)
    assert said.startswith("500 files, 500GiB together: /dev/shm/kvstore-0.mem (1GiB), ")
    assert said.endswith(" and 490 more")
    assert said.count(".mem") == 10
    assert listed(former[:1]) == "1 file, 1GiB together: /dev/shm/kvstore-0.mem (1GiB)"
