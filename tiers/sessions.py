"""Sessions: their records in the memory file, and the lock file that proves which of them live."""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvstore.tiers.layout import FREE, LIVE, SESSION
from kvstore.tiers.memfile import MemoryFile
from kvstore.tiers.tier import SlotArray

if TYPE_CHECKING:
    from kvstore.tiers.leases import Lease, Reservation

_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid
_F_OFD_GETLK = 36
_EMPTY = np.empty(0, np.uint32)


class LockFile:
    """Byte i is locked (shared) by the process of session i, for as long as it lives.

    ``descriptor`` is read-only and meant to be passed to clients. Whoever shares this process with a client must
    not close it before the client is done: closing any descriptor of a file drops the process's record locks on it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # A second open file: asking with F_OFD_GETLK also sees locks of our own process, F_GETLK would not.
        self._probe = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        state = os.fstat(self.descriptor)
        self.device, self.inode = state.st_dev, state.st_ino

    def locked(self, index: int) -> bool:
        """A process holds the byte of this session."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0)
        answer: bytes = fcntl.fcntl(self._probe, _F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        os.close(self._probe)
        os.close(self.descriptor)


class Session:
    """One client of the store. Everything but ``index``, ``token``, ``shared_memory`` and ``name`` is the store's.

    ``own``: of the node itself, for its readers; it stores also while the node takes no new blocks.
    ``orphan``: of an earlier boot; only its lock and the slots in its lease table are known.
    """

    __slots__ = (
        "_free", "_top", "bytes_held", "closed", "index", "leases", "loose", "name", "orphan", "own",
        "reservations", "shared_memory", "slots_held", "token",
    )  # fmt: skip

    def __init__(self, index: int, shared_memory: bool, name: str, limit: int, orphan: bool = False) -> None:
        """``limit``: length of its lease table."""
        self.index = index
        self.token = secrets.token_bytes(16)
        self.shared_memory = shared_memory
        self.name = name
        self.orphan = orphan
        self.own = False
        self.closed = False
        self.leases: dict[int, Lease] = {}
        self.reservations: dict[int, Reservation] = {}
        self.slots_held = 0
        self.bytes_held = 0
        self.loose: SlotArray = _EMPTY  # slots in no block that an orphan session may still write to
        self._top = min(256, limit)
        self._free = np.arange(self._top - 1, -1, -1)  # free positions in its lease table, the last goes first

    def take_positions(self, count: int, limit: int) -> npt.NDArray[np.int64]:
        """``count`` free positions of the lease table. The caller has checked that ``limit`` leaves as many."""
        while self._top < count:
            size = len(self._free)
            more = np.arange(min(2 * size, limit) - 1, size - 1, -1)
            self._free = np.concatenate((more, self._free[: self._top], np.empty(size - self._top, np.int64)))
            self._top += len(more)
        self._top -= count
        return self._free[self._top : self._top + count].copy()

    def give_positions(self, positions: npt.NDArray[np.int64]) -> None:
        self._free[self._top : self._top + len(positions)] = positions
        self._top += len(positions)


class SessionTable:
    """Records of shared-memory sessions, and which slots each may touch. Written before the client is answered."""

    def __init__(self, file: MemoryFile) -> None:
        layout = file.layout
        self.max_sessions = layout.max_sessions
        self.max_leased_slots = layout.max_leased_slots
        self._rows = file.array(SESSION, layout.sessions_at, self.max_sessions)
        flat = file.array("<u4", layout.leases_at, self.max_sessions * self.max_leased_slots)
        self._leased = flat.reshape(self.max_sessions, self.max_leased_slots)

    def write(self, index: int, boot_id: bytes, name: str) -> None:
        row = self._rows[index : index + 1]
        row["opened"], row["boot_id"], row["name"] = int(time.time()), np.void(boot_id), name.encode()[:32]
        row["state"] = LIVE

    def close(self) -> None:
        """Lets go of the file."""
        del self._rows, self._leased

    def clear(self, index: int) -> None:
        """The session's process is gone: it may touch nothing."""
        if self._rows["state"][index] != FREE:
            self._leased[index][self._leased[index] != 0] = 0
            self._rows["state"][index] = FREE

    def recorded(self) -> list[tuple[int, str]]:
        """Index and name of each session that an earlier boot had."""
        found = np.flatnonzero(self._rows["state"] == LIVE).tolist()
        return [(at, bytes(self._rows["name"][at]).decode(errors="replace")) for at in found]

    def permit(self, session: Session, slots: SlotArray) -> npt.NDArray[np.int64]:
        """The session may touch these slots. Answers where that is noted."""
        positions = session.take_positions(len(slots), self.max_leased_slots)
        self._leased[session.index][positions] = slots
        return positions

    def withdraw(self, session: Session, positions: npt.NDArray[np.int64]) -> None:
        self._leased[session.index][positions] = 0
        session.give_positions(positions)

    def permitted(self, index: int) -> SlotArray:
        """Slots that a session may touch."""
        row = self._leased[index]
        return np.asarray(row[row != 0], np.uint32)
