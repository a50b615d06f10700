"""Fixtures of the suite that breaks disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disks import LoopDisk, loop_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """64 MiB of ext4 that turns read-only on an error."""
    with loop_disk(tmp_path, 64, "loop,errors=remount-ro") as found:
        yield found
