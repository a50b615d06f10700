"""The tier's directory: who may use it (lock, node id, format), and whether the disk under it works (probe)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path

from kvstore.core.errors import ConfigError
from kvstore.tiers.nvme.files import is_at
from kvstore.tiers.nvme.format import FORMAT_FILE, INDEX_DIRECTORY, LOCK_FILE, PROBE_FILE, DirectoryFormat
from kvstore.tiers.tier import GRANULE

_LOCK_PATIENCE = 5.0  # seconds: an index process that outlived its killed node is gone by then


@dataclass(frozen=True, slots=True)
class NvmeConfig:
    """``capacity_bytes`` bounds everything below ``directory``, the index included. ``segment_bytes``: 0 gives 256 MiB
    or, for small capacities, the power of two that makes 16 segments. ``commit_interval`` and ``probe_interval`` in
    seconds; ``scrub_bytes``: bytes a second that the scrubber reads, 0: none."""

    directory: Path
    capacity_bytes: int
    node_id: str = ""
    segment_bytes: int = 0
    io_threads: int = 8
    queue_depth: int = 1024
    read_window: int = 16
    commit_interval: float = 0.1
    commit_entries: int = 1000
    max_backlog: int = 65_536
    index_timeout: float = 30.0
    probe_interval: float = 0.5
    scrub_bytes: int = 32 << 20

    def segment_size(self) -> int:
        """The segment size that follows. Raises ConfigError when it is of no use."""
        size = self.segment_bytes
        if not size:
            size = 256 << 20
            while size > 1 << 20 and size * 16 > self.capacity_bytes:
                size //= 2
        if size < 1 << 20 or size & (size - 1):
            raise ConfigError(f"nvme segment_bytes must be a power of two of at least 1 MiB, not {size}", got=size)
        if self.capacity_bytes < 2 * size:
            raise ConfigError(
                f"nvme_capacity {self.capacity_bytes} does not hold a segment of {size} bytes and the index; "
                f"give it at least {2 * size}",
                got=self.capacity_bytes,
            )
        return size


class NvmeDirectory:
    """A directory that is locked by us. Raises ConfigError when it is not for us, OSError when the disk fails."""

    def __init__(self, path: Path, node_id: str, segment_bytes: int) -> None:
        self.path = path
        self.readonly = False
        self._make()
        self.lock_fd = self._lock()
        try:
            self.format = DirectoryFormat.open(path, node_id, segment_bytes)
            self._identity = self._identify()
        except BaseException:
            self.unlock()
            raise

    @property
    def index(self) -> Path:
        return self.path / INDEX_DIRECTORY

    def unlock(self) -> None:
        """Lets go of the directory."""
        fd, self.lock_fd = self.lock_fd, -1
        if fd >= 0:
            os.close(fd)

    def lock_again(self) -> None:
        """After ``unlock``: the same directory, or OSError that says what is wrong with it."""
        self._same()  # before anything is made in what may be an empty mount point
        fd = self._lock(patience=0.0)
        try:
            self._same()
            self._identity = self._identify()
        except BaseException:
            os.close(fd)
            raise
        self.lock_fd = fd

    def _same(self) -> None:
        found = DirectoryFormat.load(self.path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no NVMe tier is there; is the disk mounted?", str(self.path))
        if found.instance != self.format.instance:
            raise OSError(errno.ESTALE, "another directory is in its place; restart the node", str(self.path))

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(parents=True, mode=0o700)

    def _lock(self, patience: float = _LOCK_PATIENCE) -> int:
        fd = self._open_lock()
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                if time.monotonic() >= deadline or _lives(holder):
                    os.close(fd)
                    raise ConfigError(
                        f"{self.path} is in use by a living node (process {holder}); stop it, or give this node a "
                        "directory of its own",
                        process=holder,
                    ) from None
                time.sleep(0.02)
        if not self.readonly:
            os.pwrite(fd, f"{os.getpid():<31}\n".encode(), 0)
        return fd

    def _open_lock(self) -> int:
        path = self.path / LOCK_FILE
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            self.readonly = True
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    # --- probes ------------------------------------------------------------------------------------------------

    def _identify(self) -> tuple[int, int]:
        found = os.stat(self.path / FORMAT_FILE)
        return found.st_dev, found.st_ino

    def displaced(self) -> str:
        """What is not there any more of what we opened, or is another; "" when all is, or the disk does not say."""
        try:
            if self.lock_fd >= 0 and not is_at(self.lock_fd, self.path / LOCK_FILE):
                return f"{self.path / LOCK_FILE} is another file than the one that the node has locked"
            if self._identify() != self._identity:
                return f"{self.path / FORMAT_FILE} is another file than at the start"
        except (FileNotFoundError, NotADirectoryError) as error:
            return f"{error.filename} is not there any more"
        except OSError:
            return ""
        return ""

    def can_write(self) -> OSError | None:
        """Writes, syncs and reads back a small file; None when that works."""
        path = self.path / PROBE_FILE
        stamp = os.urandom(GRANULE)
        with mmap.mmap(-1, GRANULE) as memory:
            memory[:] = stamp
            try:
                fd = _open_direct(path, os.O_RDWR | os.O_CREAT)
                try:
                    os.pwritev(fd, [memory], 0)
                    os.fdatasync(fd)
                    os.preadv(fd, [memory], 0)
                finally:
                    os.close(fd)
            except OSError as error:
                return error
            return None if memory[:] == stamp else OSError(errno.EIO, "a write did not stick", os.fspath(path))

    def can_read(self) -> OSError | None:
        """Reads a small file from the device, not from the page cache; None when that works."""
        try:
            fd = _open_direct(self.path / FORMAT_FILE, os.O_RDONLY)
            try:
                with mmap.mmap(-1, GRANULE) as memory:
                    os.preadv(fd, [memory], 0)
            finally:
                os.close(fd)
        except OSError as error:
            return error
        return None


def _open_direct(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _lives(pid: str) -> bool:
    # a killed node may leave its index process behind for some milliseconds, and that holds the lock too
    return pid.isdigit() and os.path.exists(f"/proc/{pid}")
