"""Segment files: opened O_DIRECT where the file system can, preallocated, addressed in granules."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from kvstore.tiers.nvme.format import sync_directory
from kvstore.tiers.tier import GRANULE

Buffers: TypeAlias = Sequence[memoryview]
_NAME = "segment-{:06d}.dat"


def is_at(fd: int, path: Path) -> bool:
    """An open file is the one at a path. Raises OSError."""
    return os.path.samestat(os.fstat(fd), os.stat(path))


class Detached(OSError):
    """The files were let go of because the disk failed."""

    def __init__(self) -> None:
        super().__init__(errno.ENODEV, "the NVMe directory is detached since its disk failed")


class SegmentFiles:
    """The segment files of one directory. Every I/O either moves all its bytes or raises OSError."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.direct = True
        self._granules = segment_bytes // GRANULE
        self._fds: dict[int, int] = {}
        self.known: set[int] = set()  # segments of this tier, open or not
        self._in_use = 0
        self._stale: list[int] = []  # files of removed segments, closed once no I/O is under way
        self._attached = True
        self._changed = threading.Condition()

    def existing(self) -> list[int]:
        """Numbers of the segment files there are, ascending."""
        return sorted(int(path.stem.split("-")[1]) for path in self.directory.glob("segment-*.dat"))

    def open(self, number: int, readonly: bool = False) -> None:
        """Opens an existing segment file."""
        self.known.add(number)
        self._fds[number] = self._open_file(self.path(number), os.O_RDONLY if readonly else os.O_RDWR)

    def create(self, number: int) -> None:
        """Makes a segment: file, disk space and name durable. Raises OSError (ENOSPC ...) and leaves nothing."""
        path = self.path(number)
        with self.using():
            fd = self._open_file(path, os.O_RDWR | os.O_CREAT)
            try:
                os.posix_fallocate(fd, 0, self.segment_bytes)
                os.fsync(fd)
                sync_directory(self.directory)
            except OSError:
                os.close(fd)
                path.unlink(missing_ok=True)
                raise
            self._fds[number] = fd
            self.known.add(number)

    def remove(self, number: int) -> None:
        """Gives a segment's disk space back."""
        self.known.discard(number)
        with self._changed:
            fd = self._fds.pop(number, None)
            if fd is not None:
                self._stale.append(fd)
            self._close_stale()
        self.path(number).unlink(missing_ok=True)

    def path(self, number: int) -> Path:
        return self.directory / _NAME.format(number)

    def __len__(self) -> int:
        return len(self.known)

    def displaced(self) -> str:
        """A segment file that is not there any more, or is another; "" when all are, or the disk does not say. Not
        while segments are made or removed."""
        try:
            with self.using():
                for number, fd in list(self._fds.items()):
                    if not is_at(fd, self.path(number)):
                        return f"{self.path(number)} is another file than the one that the node has open"
        except (FileNotFoundError, NotADirectoryError) as error:
            return f"{error.filename} is not there any more"
        except OSError:
            return ""
        return ""

    # --- I/O -------------------------------------------------------------------------------------------------

    def read(self, slot: int, offset: int, buffers: Buffers) -> None:
        """Fills ``buffers`` from ``offset`` bytes after the start of ``slot``."""
        self._move(os.preadv, slot, offset, buffers)

    def write(self, slot: int, offset: int, buffers: Buffers) -> None:
        """Writes ``buffers``; durable after ``sync``."""
        self._move(os.pwritev, slot, offset, buffers)

    def sync(self, numbers: Sequence[int]) -> dict[int, OSError]:
        """Makes written bytes of these segments durable; gives the errors by segment. After an error the bytes
        written since the last sync must be taken for lost, also when a later sync succeeds."""
        failed: dict[int, OSError] = {}
        for number in numbers:
            try:
                with self.using():
                    os.fdatasync(self._fds[number])
                    if not os.fstat(self._fds[number]).st_nlink:
                        raise OSError(errno.ESTALE, "the segment file was removed", os.fspath(self.path(number)))
            except OSError as error:
                failed[number] = error
        return failed

    def _move(self, call: Callable[[int, Buffers, int], int], slot: int, offset: int, buffers: Buffers) -> None:
        number, within = divmod(slot, self._granules)
        want = sum(map(len, buffers))
        with self.using():
            if (fd := self._fds.get(number)) is None:  # removed: nothing was stored there any more
                raise Detached
            moved = call(fd, buffers, within * GRANULE + offset)
        if moved != want:
            raise OSError(errno.EIO, f"{moved} of {want} bytes moved", os.fspath(self.path(number)))

    def _open_file(self, path: Path, flags: int) -> int:
        flags |= os.O_CLOEXEC
        if self.direct:
            try:
                return os.open(path, flags | os.O_DIRECT, 0o600)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.direct = False  # a file system without O_DIRECT: slower, but as safe
        return os.open(path, flags, 0o600)

    # --- letting go of a dead disk -----------------------------------------------------------------------------

    @contextmanager
    def using(self) -> Iterator[None]:
        """While held, descriptors stay open. Raises Detached after ``detach``."""
        with self._changed:
            if not self._attached:
                raise Detached
            self._in_use += 1
        try:
            yield
        finally:
            self._done()

    def _done(self) -> None:
        with self._changed:
            self._in_use -= 1
            if not self._in_use:
                self._changed.notify_all()
            self._close_stale()

    def _close_stale(self) -> None:
        """Closes the files of removed segments when nobody can be reading them."""
        while self._stale and not self._in_use:
            os.close(self._stale.pop())

    def detach(self, timeout: float = 10.0) -> bool:
        """Closes all files, so that the file system can be unmounted. False while an I/O still hangs."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._attached = False
            while self._in_use:
                if not self._changed.wait(deadline - time.monotonic()):
                    return False
            fds, self._fds = list(self._fds.values()), {}
        for fd in fds:
            os.close(fd)
        return True

    def attach(self) -> None:
        """Opens the known segments again. Raises OSError and stays detached when one cannot be opened."""
        opened: dict[int, int] = {}
        try:
            for number in self.known:
                opened[number] = self._open_file(self.path(number), os.O_RDWR)
        except OSError:
            for fd in opened.values():
                os.close(fd)
            raise
        with self._changed:
            self._fds, self._attached = opened, True
