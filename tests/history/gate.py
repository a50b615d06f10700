"""A door between the harness and its client processes: calls are made inside, and the harness can have it empty.

Two locks of the kernel's, which go with their process: one to enter by, so that a harness that waits is not kept
waiting by ever new calls, and one that is held while inside. The versions of the namespaces are written behind it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path


class Gate:
    def __init__(self, folder: Path, name: str = "calls") -> None:
        self._versions = folder / f"{name}.json"
        self._door, self._room = (
            os.open(folder / f"{name}.{lock}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC) for lock in ("door", "room")
        )

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """For one call."""
        with _held(self._door, fcntl.LOCK_EX):
            fcntl.flock(self._room, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def emptied(self) -> Iterator[None]:
        """All calls have ended, and none begins."""
        with _held(self._door, fcntl.LOCK_EX), _held(self._room, fcntl.LOCK_EX):
            yield

    def versions(self) -> dict[str, int]:
        """Of the namespaces by tenant; 0 for those that are not named."""
        if not self._versions.exists():
            return {}
        found: dict[str, int] = json.loads(self._versions.read_text())
        return found

    def turn(self, tenant: str) -> int:
        """To the next version; while the room is empty."""
        found = self.versions()
        found[tenant] = found.get(tenant, 0) + 1
        self._versions.write_text(json.dumps(found))
        return found[tenant]

    def close(self) -> None:
        os.close(self._door)
        os.close(self._room)


@contextlib.contextmanager
def _held(descriptor: int, kind: int) -> Iterator[None]:
    fcntl.flock(descriptor, kind)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
