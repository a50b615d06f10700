"""The memory file: opened, checked, locked against a second node, and mapped."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import ConfigError
from kvstore.tiers.layout import FORMAT, MAGIC, SUPERBLOCK, Layout, shown
from kvstore.tiers.memopen import (
    HUGETLBFS_MAGIC,
    TMPFS_MAGIC,
    UNFINISHED,
    file_system_type,
    in_memory,
    lock_path,
    open_locked,
    purge,
)

__all__ = ["HUGETLBFS_MAGIC", "TMPFS_MAGIC", "MemoryFile", "file_system_type", "lock_path", "purge"]
MADV_REMOVE = 9
log = logging.getLogger(__name__)
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # else hugetlbfs wants all pages of the file at once
MADV_POPULATE_WRITE = 23
_STEP = 8 << 20  # bytes populated at a time: the kernel holds locks meanwhile
_GEOMETRY = ("capacity", "page", "segment_bytes", "segments", "max_namespaces", "max_sessions", "max_leased_slots")
_libc = ctypes.CDLL(None, use_errno=True)  # mmap.madvise keeps the GIL while the kernel clears pages; ctypes does not
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class MemoryFile:
    """One node's memory file, created or taken over. ``fresh``: there is nothing in it to recover.

    ``words`` and ``half_words`` are the whole file as u64 and u32. Raises ConfigError when the file is on a disk,
    too large for its file system, in use by a living node, or of another format.
    """

    def __init__(self, path: Path, node_id: bytes, product: str, plan: Callable[[int], Layout]) -> None:
        """``plan`` gives the layout for a page size (bytes)."""
        self.path = path
        _check_file_system(path.parent)
        page = os.statvfs(path.parent).f_bsize if file_system_type(path.parent) == HUGETLBFS_MAGIC else 4096
        self.layout = plan(page)
        self._fd = open_locked(path)
        try:
            self.fresh = not self._adopt(node_id)
            if self.fresh:
                self._replace_if_used()
                self._create(node_id, product)
            else:
                _check_room(path, self.layout.capacity, os.fstat(self._fd).st_blocks * 512)
            self._map()
            if self.fresh:
                self._write_superblock(node_id, product)
        except BaseException:
            os.close(self._fd)
            raise

    # --- opening -------------------------------------------------------------------------------------------

    def _adopt(self, node_id: bytes) -> bool:
        """True when the file is this node's, of this format and geometry."""
        raw = os.pread(self._fd, SUPERBLOCK.itemsize, 0)
        if not raw or raw.startswith(UNFINISHED):
            return False  # new, or its node died before it was ready
        if not raw.startswith(MAGIC):
            raise ConfigError(
                f"{self.path} is no memory file of kvstore, and stays as it is; give another path or remove it"
            )
        if len(raw) < SUPERBLOCK.itemsize or int(np.frombuffer(raw, SUPERBLOCK)[0]["crc"]) != _superblock_crc(raw):
            raise ConfigError(f"{self.path} is damaged; give another path, or remove it with `kvstore purge`")
        block = np.frombuffer(raw, SUPERBLOCK)[0]
        if int(block["format"]) != FORMAT:
            raise ConfigError(
                f"{self.path} has format {block['format']}, this version reads {FORMAT}; run `kvstore purge`, or "
                "the version that made it"
            )
        if bytes(block["node_id"]) != node_id:
            raise ConfigError(f"{self.path} belongs to node {bytes(block['node_id']).hex()}, not {node_id.hex()}")
        return self._same_geometry(block)

    def _same_geometry(self, block: Any) -> bool:
        differs = [name for name in _GEOMETRY if int(block[name]) != getattr(self.layout, name)]
        if not differs:
            return os.fstat(self._fd).st_size == self.layout.file_bytes
        log.warning(
            "%s was made with other sizes (%s): all its blocks are dropped; start with the old values to keep them",
            self.path,
            ", ".join(_change(name, int(block[name]), getattr(self.layout, name)) for name in differs),
        )
        return False

    def _replace_if_used(self) -> None:
        """A file of another geometry gives way to a new one; clients that still map the old one keep it."""
        if os.fstat(self._fd).st_size == 0:
            return
        self.path.unlink()
        old, self._fd = self._fd, open_locked(self.path)
        os.close(old)

    def _create(self, node_id: bytes, product: str) -> None:
        _check_room(self.path, self.layout.capacity, 0)
        os.pwrite(self._fd, UNFINISHED, 0)  # a node that dies from here on leaves a file that is known as ours
        os.ftruncate(self._fd, self.layout.file_bytes)
        try:  # now, because later a full file system would answer a table's first touch with SIGBUS
            for start, end in self._dense():
                os.posix_fallocate(self._fd, start, end - start)
        except OSError as error:
            raise ConfigError(
                f"{self.path.parent} has no room for the {self.layout.tables_bytes} bytes of tables: {error.strerror}"
            ) from error

    def _dense(self) -> list[tuple[int, int]]:
        """Start and end of the tables that are backed from the start."""
        layout = self.layout
        if not layout.sparse:
            return [(0, layout.headers_at)]
        return [(0, layout.namespaces_at), (layout.sessions_at, layout.headers_at)]

    def _map(self) -> None:
        fd = self.open_writer()  # mmap keeps a duplicate, which would hold the lock for as long as the mapping lives
        self.map = mmap.mmap(fd, self.layout.file_bytes, mmap.MAP_SHARED | _NORESERVE)
        os.close(fd)
        self.map.madvise(getattr(mmap, "MADV_DONTFORK", 10))
        self.words: npt.NDArray[np.uint64] = np.frombuffer(self.map, "<u8")
        self.half_words: npt.NDArray[np.uint32] = np.frombuffer(self.map, "<u4")
        self.address = self.words.ctypes.data

    def _write_superblock(self, node_id: bytes, product: str) -> None:
        block = np.zeros(1, SUPERBLOCK)
        block["magic"], block["format"], block["product"] = MAGIC, FORMAT, product.encode()[:32]
        block["node_id"] = np.void(node_id)
        for name in _GEOMETRY:
            block[name] = getattr(self.layout, name)
        block["crc"] = _superblock_crc(block.tobytes())
        raw = block.tobytes()
        self.map[len(MAGIC) : len(raw)] = raw[len(MAGIC) :]
        self.map[: len(MAGIC)] = MAGIC  # last: a file without it is taken for one that was never finished

    # --- use -----------------------------------------------------------------------------------------------

    def array(self, dtype: npt.DTypeLike, offset: int, count: int, stride: int = 0) -> npt.NDArray[Any]:
        """Records in the file, as a writable array of shape (count,)."""
        step = stride or np.dtype(dtype).itemsize
        return np.ndarray((count,), dtype, self.map, offset, (step,))

    def populate(self, offset: int, length: int) -> None:
        """Backs a range with memory. Slow (about 1 s for 2 to 4 GiB); OSError(ENOSPC) when there is none."""
        for at in range(offset, offset + length, _STEP):
            size = min(_STEP, offset + length - at)
            os.posix_fallocate(self._fd, at, size)  # fails with an error where touching would be SIGBUS
            _libc.madvise(self.address + at, size, MADV_POPULATE_WRITE)  # older kernels: faults come later

    def discard(self, offset: int, length: int) -> None:
        """Gives the memory of a range back; it reads as zeros."""
        if _libc.madvise(self.address + offset, length, MADV_REMOVE):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self.path))

    def is_backed(self, offset: int, length: int) -> bool:
        """Some page of a range is backed with memory."""
        try:
            return os.lseek(self._fd, offset, os.SEEK_DATA) < offset + length
        except OSError:  # nothing from there to the end
            return False

    @property
    def backed_bytes(self) -> int:
        """Memory the file takes."""
        return os.fstat(self._fd).st_blocks * 512

    def open_reader(self) -> int:
        """A read-only descriptor to pass to a client; the caller closes it."""
        return self._reopen(os.O_RDONLY)

    def open_writer(self) -> int:
        """A writable descriptor to pass to a client; the caller closes it."""
        return self._reopen(os.O_RDWR)

    def _reopen(self, flags: int) -> int:
        # by descriptor, not by path: the path may have been given another file meanwhile
        return os.open(f"/proc/self/fd/{self._fd}", flags | os.O_CLOEXEC)

    def close(self) -> None:
        """Unmaps and unlocks; the file stays. Views that callers still hold stay valid until they go."""
        del self.words, self.half_words
        with contextlib.suppress(BufferError):  # a caller holds a view; the mapping goes with it
            self.map.close()
        os.close(self._fd)


def _change(name: str, old: int, new: int) -> str:
    show = shown if name in ("capacity", "page", "segment_bytes") else str
    return f"{name} was {show(old)}, now {show(new)}"


def _check_file_system(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"the folder {folder} of the memory file does not exist")
    if not in_memory(folder):
        raise ConfigError(
            f"{folder} is on a file system of type {file_system_type(folder):#x}, neither tmpfs nor hugetlbfs; the "
            "memory file would be written to disk. Put it under /dev/shm"
        )


def _check_room(path: Path, capacity: int, already: int) -> None:
    """``already``: bytes of the file that are backed."""
    state = os.statvfs(path.parent)
    free, size = state.f_bavail * state.f_frsize + already, state.f_blocks * state.f_frsize
    if state.f_blocks and capacity > free:
        raise ConfigError(
            f"a capacity of {capacity} bytes does not fit in {path.parent}: it has {size} bytes, {free} of them free; "
            f"lower the capacity, or enlarge it (mount -o remount,size=... {path.parent}; containers: --shm-size)"
        )


def _superblock_crc(raw: bytes) -> int:
    field = SUPERBLOCK.fields["crc"][1] if SUPERBLOCK.fields else 0
    return zlib.crc32(raw[:field] + b"\0\0\0\0" + raw[field + 4 : SUPERBLOCK.itemsize])
