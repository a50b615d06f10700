"""Opening and removing memory files: no other file may be changed, whatever a configuration names."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from kvstore.core.errors import ConfigError
from kvstore.tiers.layout import MAGIC

TMPFS_MAGIC = 0x01021994
HUGETLBFS_MAGIC = 0x958458F6
UNFINISHED = b"KVSTNEW1"  # stands where the magic will, while the file is being made
_MOMENT = 0.02  # seconds
PATTERN = "kvstore-*.mem"  # names that nodes choose themselves
_libc = ctypes.CDLL(None, use_errno=True)
_libc.statfs.argtypes = (ctypes.c_char_p, ctypes.c_void_p)


def file_system_type(path: Path) -> int:
    """Magic number of the file system that holds ``path``."""
    buffer = ctypes.create_string_buffer(512)
    if _libc.statfs(os.fsencode(path), buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], "little") & 0xFFFFFFFF


def in_memory(folder: Path) -> bool:
    """Whether a folder is on tmpfs or hugetlbfs."""
    return file_system_type(folder) in (TMPFS_MAGIC, HUGETLBFS_MAGIC)


def lock_path(path: Path) -> Path:
    """The lock file beside a memory file: byte i proves that session i lives."""
    return path.with_name(path.name + ".lock")


def open_locked(path: Path, create: bool = True, tries: int = 10) -> int:
    """A private descriptor with the exclusive lock of the regular file at ``path`` now. Nothing in it is changed.

    Raises FileNotFoundError (not ``create``), or ConfigError: a link, no regular file, in use.
    """
    while True:
        fd = _opened(path, os.O_CREAT if create else 0)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            tries -= 1
            if tries > 0:  # a node that starts looks for orphans, and has each for a moment
                time.sleep(_MOMENT)
                continue
            raise ConfigError(
                f"{path} is in use by a living node; stop it, or give this node its own memory file"
            ) from None
        if _is_at(fd, path):
            return fd
        os.close(fd)  # replaced between open and lock


def _opened(path: Path, flags: int) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o600)
    except FileNotFoundError:
        if not flags:
            raise
        raise ConfigError(f"cannot open the memory file {path}: there is no such folder") from None
    except OSError as error:
        why = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise ConfigError(f"cannot open the memory file {path}: {why}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(f"{path} is no regular file, so no memory file of kvstore")
    return fd


def _is_at(fd: int, path: Path) -> bool:
    mine = os.fstat(fd)
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def is_ours(fd: int) -> bool:
    """Whether an open file begins as a memory file does."""
    return os.pread(fd, len(MAGIC), 0) in (MAGIC, UNFINISHED)


def check_ours(path: Path) -> None:
    """Raises ConfigError when a node could not take a memory file at ``path``, because another file is there."""
    if not os.path.lexists(path):
        return
    fd = _opened(path, 0)
    try:
        if os.fstat(fd).st_size and not is_ours(fd):
            raise ConfigError(f"{path} is no memory file of kvstore, and stays as it is; give another path")
    finally:
        os.close(fd)


def purge(path: Path, force: bool = False) -> bool:
    """Removes a memory file and its lock file; False when there was none.

    Raises ConfigError while a node uses it, and for any file that does not begin as memory files do; ``force`` also
    takes damaged ones that are called NAME.mem and lie on tmpfs or hugetlbfs.
    """
    try:
        fd = open_locked(path, create=False)
    except FileNotFoundError:
        if path.suffix == ".mem":
            _remove_lock(path)
        return False
    try:
        if not is_ours(fd) and not (force and _may_be_damaged(path)):
            raise ConfigError(
                f"{path} is no memory file of kvstore: nothing was removed. (--force takes damaged memory files, "
                "called NAME.mem, on tmpfs or hugetlbfs)"
            )
        path.unlink(missing_ok=True)
        _remove_lock(path)
    finally:
        os.close(fd)
    return True


def _may_be_damaged(path: Path) -> bool:
    return path.suffix == ".mem" and in_memory(path.parent)


def _remove_lock(path: Path) -> None:
    """Ours are empty regular files."""
    lock = lock_path(path)
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(lock)
        if stat.S_ISREG(found.st_mode) and not found.st_size:
            lock.unlink()


@dataclass(frozen=True, slots=True)
class Orphan:
    """A memory file that no living node uses, and the memory it takes."""

    path: Path
    bytes: int


def orphans(folder: Path, own: Path) -> list[Orphan]:
    """Memory files of this user's former nodes in a folder, by name; ``own`` is left out."""
    found = []
    for path in sorted(folder.glob(PATTERN)):
        if path == own:
            continue
        with contextlib.suppress(OSError, ConfigError):
            fd = open_locked(path, create=False, tries=1)
            if is_ours(fd):
                found.append(Orphan(path, os.fstat(fd).st_blocks * 512))
            os.close(fd)
    return found
