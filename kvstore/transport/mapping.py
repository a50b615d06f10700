"""The node's memory file in this process: mapped once a node and mode, shared by all clients of the process."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import ProtocolError

Bytes: TypeAlias = npt.NDArray[np.uint8]
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_GRANULE_SHIFT = 16
_POPULATE_READ = 22  # MADV_POPULATE_READ and _WRITE (Linux 5.14), not yet named by the mmap module
_POPULATE_WRITE = 23
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # else hugetlbfs wants all pages of the file at once


class MemoryMap:
    """A shared mapping of a memory file; ``array`` is all of it as bytes. Unmapped with its last user."""

    def __init__(self, descriptor: int, size: int, writable: bool) -> None:
        have = os.fstat(descriptor).st_size
        if have < size:
            raise ProtocolError(f"the node announced a memory file of {size} bytes, it has {have}")
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(descriptor, size, mmap.MAP_SHARED | _NORESERVE, access)
        # A child must not keep the node's memory reachable, and could not prove that it lives.
        self._map.madvise(mmap.MADV_DONTFORK)
        self.size = size
        self.array: Bytes = np.frombuffer(self._map, dtype=np.uint8)
        self._address = int(self.array.__array_interface__["data"][0])
        self._advice = _POPULATE_WRITE if writable else _POPULATE_READ
        self._touched = bytearray((size >> _GRANULE_SHIFT) + 1)

    def fresh(self) -> Bytes:
        """A new array over all of it: the object whose death tells that no view made from it lives."""
        return np.frombuffer(self._map, dtype=np.uint8)

    def part(self, offset: int, length: int) -> Bytes:
        """Bytes of a slot. Raises ProtocolError when the file does not have them."""
        end = offset + length
        if end > self.size:
            raise ProtocolError(f"the node named bytes {offset} to {end} of a memory file of {self.size} bytes")
        if not self._touched[offset >> _GRANULE_SHIFT]:
            self._touch(offset, length)
        return self.array[offset:end]

    def _touch(self, offset: int, length: int) -> None:
        """Sets up the page tables of a slot on its first use, in one call instead of a fault a page. That takes up to a
        millisecond for 2 MiB; mmap.madvise would keep all other threads of the process waiting."""
        self._touched[offset >> _GRANULE_SHIFT] = 1
        start = offset & -mmap.PAGESIZE
        size = offset + length - start
        _libc.madvise(self._address + start, size, self._advice)  # an older kernel refuses: the first access does it


def map_memory(descriptor: int, size: int, writable: bool) -> MemoryMap:
    """The mapping of a received descriptor, which is closed. Shared when this process has the same one already."""
    try:
        status = os.fstat(descriptor)
        with _lock:
            known = (status.st_dev, status.st_ino, size, writable)
            found = _maps.get(known)
            if found is None:
                found = _maps[known] = MemoryMap(descriptor, size, writable)
            return found
    finally:
        os.close(descriptor)


_lock = threading.Lock()
_maps: weakref.WeakValueDictionary[tuple[int, int, int, bool], MemoryMap] = weakref.WeakValueDictionary()
_inherited: list[MemoryMap] = []


def _keep_inherited() -> None:
    """In the child the mappings are gone, and their addresses may be used again: unmapping them would hit others."""
    global _lock, _maps
    _lock = threading.Lock()
    _inherited.extend(_maps.values())
    _maps = weakref.WeakValueDictionary()


os.register_at_fork(after_in_child=_keep_inherited)
