"""Proof of life: what another process sees of our byte of the lock file."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.transport.lockfile import LockFiles

_FLOCK = "hhqqi4x"


def locked(path: Path, index: int) -> bool:
    """Whether another process holds a lock on this byte (asked as a node does: F_GETLK for a write lock)."""
    script = (
        "import fcntl, os, struct, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        f"query = struct.pack('{_FLOCK}', fcntl.F_WRLCK, 0, int(sys.argv[2]), 1, 0)\n"
        f"print(struct.unpack('{_FLOCK}', fcntl.fcntl(fd, fcntl.F_GETLK, query))[0] != fcntl.F_UNLCK)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path), str(index)], capture_output=True, check=True)
    return done.stdout.strip() == b"True"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "memory.lock"
    file.write_bytes(bytes(16))
    return file


def opener(path: Path, opened: list[int]) -> Callable[[], int]:
    def receive() -> int:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        opened.append(descriptor)
        return descriptor

    return receive


def identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def test_two_clients_share_one_descriptor_and_the_close_of_one_leaves_the_others_byte(path: Path) -> None:
    files, opened = LockFiles(), []
    for index in (1, 2):
        assert files.lock(identity(path), index, opener(path, opened)) == identity(path)
    assert len(opened) == 1
    files.unlock(identity(path), 1)
    assert not locked(path, 1)
    assert locked(path, 2)
    files.unlock(identity(path), 2)
    assert not locked(path, 2)
    os.close(opened[0])


def test_a_byte_held_twice_is_unlocked_with_the_last(path: Path) -> None:
    files, opened = LockFiles(), []
    file = files.lock(identity(path), 5, opener(path, opened))
    files.lock(file, 5, opener(path, opened))
    files.unlock(file, 5)
    assert locked(path, 5)
    files.unlock(file, 5)
    files.unlock(file, 5)  # once too often does no harm
    assert not locked(path, 5)
    os.close(opened[0])


def test_a_wrongly_announced_file_is_known_by_what_it_is(path: Path) -> None:
    files, opened = LockFiles(), []
    assert files.lock((0, 0), 3, opener(path, opened)) == identity(path)
    assert locked(path, 3)
    files.unlock(identity(path), 3)
    os.close(opened[0])


def test_a_forked_child_holds_nothing_and_takes_nothing_from_its_parent(path: Path) -> None:
    from kvstore.transport.lockfile import LOCK_FILES

    opened: list[int] = []
    file = LOCK_FILES.lock(identity(path), 7, opener(path, opened))
    child = os.fork()
    if not child:  # the child closed its copy at once; its own lock is on its own descriptor
        own = LOCK_FILES.lock(file, 8, lambda: os.open(path, os.O_RDONLY)) == file
        LOCK_FILES.unlock(file, 7)  # not held here
        os._exit(0 if own else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert locked(path, 7)
    assert not locked(path, 8)
    LOCK_FILES.unlock(file, 7)


def test_the_kernel_drops_the_lock_of_a_killed_process_and_keeps_that_of_a_stopped_one(path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        LockFiles().lock(identity(path), 4, lambda: os.open(path, os.O_RDONLY))
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    assert locked(path, 4)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not locked(path, 4)
    os.close(reader)
    os.close(writer)


def test_struct_flock_has_the_size_of_this_platform() -> None:
    assert struct.calcsize(_FLOCK) == 32
    assert fcntl.F_GETLK == 5
