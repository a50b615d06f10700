"""Our end of the index process: starts it, talks to it, tells its death from its errors."""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kvstore.tiers.nvme.format import ENTRY_BYTES
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
    PING,
    RESERVE,
    SCAN,
    STATUS,
)

_MAX_FRAME = 1 << 30


class IndexGone(Exception):
    """The index process died, hangs or never started. What it was asked to do may or may not be done."""


class IndexFailed(Exception):
    """The index process answered with an error of its disk. ``errno`` says which; nothing was committed."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.errno = number


class IndexStatus(NamedTuple):
    """``file_bytes``: size of the index file; ``entries``: in it; ``map_bytes``: of LMDB's map."""

    file_bytes: int
    entries: int
    map_bytes: int
    readonly: bool = False


class Meta(NamedTuple):
    """A key and value of a small database (see index_process); an empty value removes the key."""

    database: int
    key: bytes
    value: bytes


class IndexProcess:
    """One life of the index process. Calls are answered in order; any thread may call.

    Every call raises IndexGone (process dead, or no answer within ``timeout`` seconds) or IndexFailed.
    """

    def __init__(self, directory: Path, lock_fd: int, timeout: float = 30.0) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        # the child holds the directory lock too: nobody opens the directory while it may still write
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvstore.tiers.nvme.index_process", os.fspath(directory), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(lock_fd,),
            start_new_session=True,  # Ctrl-C in the terminal is for the node, which then ends us in order
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        try:
            reply = self._call(HELLO)
        except (IndexGone, IndexFailed):
            self.kill()
            raise
        self.hello = IndexStatus._make((*STATUS.unpack_from(reply), bool(reply[STATUS.size])))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def commit(self, puts: bytes, deletes: bytes, metas: Sequence[Meta] = ()) -> IndexStatus:
        """Makes entries (packed, sealed) and removals (big-endian u32 slots) durable, all or nothing."""
        count = len(puts) // ENTRY_BYTES
        parts = [COMMIT_HEAD.pack(count, len(deletes) // 4, ENTRY_BYTES, len(metas)), _keyed(puts), deletes]
        for meta in metas:
            parts.append(META_HEAD.pack(meta.database, len(meta.key), len(meta.value)) + meta.key + meta.value)
        return IndexStatus(*STATUS.unpack(self._call(COMMIT, b"".join(parts))))

    def scan(self) -> Iterator[bytes]:
        """All entries by slot, packed, some at a time. Read it to the end."""
        with self._lock:
            self._send(SCAN, b"")
            while True:
                status, body = self._receive()
                if status != MORE:
                    return
                yield body

    def get(self, slots: bytes) -> bytes:
        """Entries of big-endian u32 slots, packed; absent ones are left out."""
        return self._call(GET, slots)

    def metas(self, database: int) -> dict[bytes, bytes]:
        """A whole small database."""
        body, at, found = self._call(METAS, bytes([database])), 0, {}
        while at < len(body):
            _, key, value = META_HEAD.unpack_from(body, at)
            at += META_HEAD.size
            found[body[at : at + key]] = body[at + key : at + key + value]
            at += key + value
        return found

    def reserve(self, size: int) -> IndexStatus:
        """Takes disk space for an index of ``size`` bytes. IndexFailed with ENOSPC when there is not that much."""
        return IndexStatus(*STATUS.unpack(self._call(RESERVE, struct.pack("<Q", size))))

    def ping(self) -> IndexStatus:
        """Reads from the index: an answer means that its pages can be read."""
        return IndexStatus(*STATUS.unpack(self._call(PING)))

    def close(self) -> None:
        """Ends the process in order; kills it when it does not answer."""
        try:
            self._call(BYE)
            self._process.wait(self._timeout)
        except (IndexGone, IndexFailed, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """Ends the process at once. A process stuck in a dying disk is left to the kernel."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

    # --- frames ------------------------------------------------------------------------------------------------

    def _call(self, op: int, body: bytes = b"") -> bytes:
        with self._lock:
            self._send(op, body)
            return self._receive()[1]

    def _send(self, op: int, body: bytes) -> None:
        data = memoryview(HEAD.pack(op, len(body)) + body)
        deadline = time.monotonic() + self._timeout
        while data:
            self._wait(self._in, deadline, write=True)
            try:
                data = data[os.write(self._in, data) :]
            except BlockingIOError:
                continue
            except OSError:
                raise IndexGone(self._cause()) from None

    def _receive(self) -> tuple[int, bytes]:
        deadline = time.monotonic() + self._timeout
        status, length = HEAD.unpack(self._read(HEAD.size, deadline))
        if length > _MAX_FRAME:
            raise IndexGone(f"index process {self.pid} sent a frame of {length} bytes")
        body = self._read(length, deadline)
        if status == FAILED:
            error = json.loads(body)
            raise IndexFailed(int(error["errno"]), str(error["message"]))
        return status, body

    def _read(self, count: int, deadline: float) -> bytes:
        out = bytearray(count)
        view, at = memoryview(out), 0
        while at < count:
            self._wait(self._out, deadline, write=False)
            try:
                got = os.readv(self._out, [view[at:]])
            except OSError:
                got = 0
            if not got:
                raise IndexGone(self._cause())
            at += got
        return bytes(out)

    def _wait(self, fd: int, deadline: float, write: bool) -> None:
        poll = select.poll()
        try:
            poll.register(fd, select.POLLOUT if write else select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise IndexGone(f"index process {self.pid} did not answer within {self._timeout} s")
        except (OSError, ValueError):
            raise IndexGone("index process was stopped") from None

    def _cause(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"index process {self.pid} closed its pipe"
        return f"index process {self.pid} died of signal {-code}" if code < 0 else f"index process ended with {code}"


def _keyed(puts: bytes) -> bytes:
    """Each packed entry behind its slot as a big-endian key, so that LMDB keeps them in disk order."""
    import numpy as np

    entries = np.frombuffer(puts, dtype=np.uint8).reshape(-1, ENTRY_BYTES)
    return np.concatenate([entries[:, 3::-1], entries], axis=1).tobytes()
