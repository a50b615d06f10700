"""The child process that owns the LMDB index: ``python -m kvstore.tiers.nvme.index_process DIRECTORY PARENT_PID``.

LMDB reads through a memory map, so a dying disk raises SIGBUS in whoever looks: here that ends this process and not
the node. It knows records only as (4-byte key, bytes), answers framed requests on its standard input one by one, and
ends when its parent does. Nothing but the standard library and lmdb is needed; the node itself never loads lmdb.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import BinaryIO

import lmdb

from kvstore.tiers.nvme.index_wire import (
    BYE,
    COMMIT,
    COMMIT_HEAD,
    FAILED,
    GET,
    HEAD,
    HELLO,
    META_HEAD,
    METAS,
    MORE,
    OK,
    PING,
    RESERVE,
    SCAN,
    SCAN_RECORDS,
    STATUS,
)

FIRST_MAP = 16 << 20
_PR_SET_PDEATHSIG = 1
_DATABASES = (b"entries", b"namespaces", b"settings")


def errno_of(error: Exception) -> int:
    """The errno inside an LMDB or OS error; EIO when it has none."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    known = (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EACCES, errno.EDQUOT)
    return next((number for number in known if os.strerror(number) in str(error)), errno.EIO)


class Index:
    """The LMDB environment and the operations on it."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.readonly = False
        try:
            self._open(readonly=False)
        except (lmdb.Error, OSError) as error:
            if errno_of(error) not in (errno.EROFS, errno.EACCES):
                raise
            self._open(readonly=True)  # a file system that turned read-only still has what is worth reading

    def _open(self, readonly: bool) -> None:
        if not readonly:
            os.makedirs(self.directory, exist_ok=True)
        # no LMDB lock file: the directory lock admits one node, and this process works on one request at a time
        self.env = lmdb.open(
            self.directory, map_size=FIRST_MAP, max_dbs=4, lock=False, readonly=readonly, sync=True, metasync=True
        )
        self.readonly = readonly
        self.entries, *self.metas = (self.env.open_db(name, create=not readonly) for name in _DATABASES)

    @property
    def path(self) -> str:
        return os.path.join(self.directory, "data.mdb")

    def path_bytes(self) -> int:
        """Size of the index file."""
        return int(os.stat(self.path).st_size)

    def status(self) -> bytes:
        """Answer of HELLO, COMMIT and RESERVE."""
        with self.env.begin() as txn:
            return STATUS.pack(self.path_bytes(), txn.stat(self.entries)["entries"], self.env.info()["map_size"])

    def commit(self, body: memoryview) -> bytes:
        """Puts, then deletes, then metas, in one synced transaction. The map doubles until it fits."""
        while True:
            try:
                with self.env.begin(write=True) as txn:
                    self._apply(txn, body)
                return self.status()
            except lmdb.MapFullError:
                self.env.set_mapsize(2 * self.env.info()["map_size"])

    def _apply(self, txn: lmdb.Transaction, body: memoryview) -> None:
        puts, deletes, record, metas = COMMIT_HEAD.unpack_from(body)
        at = COMMIT_HEAD.size
        size = 4 + record
        cursor = txn.cursor(self.entries)
        items = [(bytes(body[i : i + 4]), bytes(body[i + 4 : i + size])) for i in range(at, at + puts * size, size)]
        cursor.putmulti(items)
        at += puts * size
        for i in range(at, at + 4 * deletes, 4):
            txn.delete(bytes(body[i : i + 4]), db=self.entries)
        at += 4 * deletes
        for _ in range(metas):
            at = self._apply_meta(txn, body, at)

    def _apply_meta(self, txn: lmdb.Transaction, body: memoryview, at: int) -> int:
        database, key_bytes, value_bytes = META_HEAD.unpack_from(body, at)
        at += META_HEAD.size
        key, value = bytes(body[at : at + key_bytes]), bytes(body[at + key_bytes : at + key_bytes + value_bytes])
        if value:
            txn.put(key, value, db=self.metas[database])
        else:
            txn.delete(key, db=self.metas[database])
        return int(at + key_bytes + value_bytes)

    def scan(self) -> Iterator[bytes]:
        """All records in key order, some at a time."""
        with self.env.begin() as txn:
            values = txn.cursor(self.entries).iternext(keys=False, values=True)
            while batch := b"".join(islice(values, SCAN_RECORDS)):
                yield batch

    def get(self, body: memoryview) -> bytes:
        """Records of the keys that exist, one after the other."""
        with self.env.begin() as txn:
            found = (txn.get(bytes(body[i : i + 4]), db=self.entries) for i in range(0, len(body), 4))
            return b"".join(value for value in found if value is not None)

    def read_metas(self, body: memoryview) -> bytes:
        """Keys and values of one small database."""
        out = bytearray()
        with self.env.begin() as txn:
            for key, value in txn.cursor(self.metas[body[0]]):
                out += META_HEAD.pack(body[0], len(key), len(value)) + key + value
        return bytes(out)

    def reserve(self, body: memoryview) -> bytes:
        """Takes the disk space that the index may need, so that a full disk cannot stop a removal."""
        (size,) = struct.unpack("<Q", body)
        if size > self.path_bytes():
            fd = os.open(self.path, os.O_RDWR)
            try:
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)
        return self.status()

    def hello(self) -> bytes:
        return self.status() + bytes([self.readonly])


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when the parent thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def _answer(out: BinaryIO, status: int, body: bytes = b"") -> None:
    out.write(HEAD.pack(status, len(body)))
    out.write(body)
    out.flush()


def _fail(out: BinaryIO, error: Exception) -> None:
    _answer(out, FAILED, json.dumps({"errno": errno_of(error), "message": str(error)}).encode())


def serve(index: Index, requests: BinaryIO, out: BinaryIO) -> None:
    """Answers requests until BYE or end of input. After an error other than a full disk the state of the
    environment is unknown: the caller is told, and this process ends."""
    simple: dict[int, Callable[[memoryview], bytes]] = {
        HELLO: lambda _: index.hello(),
        COMMIT: index.commit,
        GET: index.get,
        METAS: index.read_metas,
        RESERVE: index.reserve,
        PING: lambda _: index.status(),
        BYE: lambda _: b"",
    }
    while len(head := requests.read(HEAD.size)) == HEAD.size:
        op, length = HEAD.unpack(head)
        body = memoryview(requests.read(length))
        if len(body) != length:
            return
        try:
            if op == SCAN:
                for batch in index.scan():
                    _answer(out, MORE, batch)
            _answer(out, OK, b"" if op == SCAN else simple[op](body))
        except (lmdb.Error, OSError) as error:
            _fail(out, error)
            if errno_of(error) != errno.ENOSPC:
                return
        if op == BYE:
            return


def main() -> int:
    directory, parent = sys.argv[1], int(sys.argv[2])
    die_with_parent(parent)
    out = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
    os.dup2(2, 1)  # whatever prints must not end up between frames
    try:
        index = Index(directory)
    except (lmdb.Error, OSError) as error:
        _fail(out, error)
        return 1
    try:
        serve(index, sys.stdin.buffer, out)
        index.env.close()
    except BrokenPipeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
