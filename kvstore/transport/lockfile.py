"""Proof of life: a shared record lock on one byte of the node's lock file (one byte a session).

The kernel drops a process's record locks when the process ends, and also when the process closes *any*
descriptor of that file. So a process holds one descriptor of each lock file, and never closes it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

FileId: TypeAlias = "tuple[int, int]"  # st_dev, st_ino


class LockFiles:
    """The lock files this process holds open, and the bytes it has locked in each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptors: dict[FileId, int] = {}
        self._held: Counter[tuple[FileId, int]] = Counter()

    def lock(self, file: FileId, index: int, receive: Callable[[], int]) -> FileId:
        """Locks byte ``index``. ``receive`` gets a descriptor of the file from the node; it is called only when this
        process has none, because a second one could never be closed. Returns the identity of the locked file.

        Raises OSError when the lock cannot be taken, and what ``receive`` raises.
        """
        with self._lock:
            if file not in self._descriptors:
                file = self._adopt(receive())
            if not self._held[file, index]:
                fcntl.lockf(self._descriptors[file], fcntl.LOCK_SH | fcntl.LOCK_NB, 1, index)
            self._held[file, index] += 1
        return file

    def _adopt(self, descriptor: int) -> FileId:
        status = os.fstat(descriptor)
        file = (status.st_dev, status.st_ino)
        self._descriptors.setdefault(file, descriptor)  # a duplicate stays open: closing it would drop our locks
        return file

    def unlock(self, file: FileId, index: int) -> None:
        """Gives one hold on a byte back; the byte is unlocked with the last."""
        with self._lock:
            if file not in self._descriptors or not self._held[file, index]:
                return
            self._held[file, index] -= 1
            if not self._held[file, index]:
                del self._held[file, index]
                fcntl.lockf(self._descriptors[file], fcntl.LOCK_UN, 1, index)

    def forget_after_fork(self) -> None:
        """In the child: the parent's locks are not ours. It has none yet, so closing its copies drops nothing."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self.__init__()  # type: ignore[misc]


LOCK_FILES = LockFiles()
os.register_at_fork(after_in_child=LOCK_FILES.forget_after_fork)
