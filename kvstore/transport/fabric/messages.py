"""UCX messages as the payload of a connection: cut into segments, several of them in flight.

A connection's requests and replies stay on its socket, which also tells at once that the peer is gone. Segments go
through buffers of the channel's own: what UCX still does after a deadline touches nobody else's memory.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import DeadlineExceeded, Unavailable
from kvstore.transport.fabric.library import load_ucx

SEGMENT = 1 << 20
IN_FLIGHT = 4  # segments each way
_SPIN = 0.0002  # seconds a message is looked for without sleeping
_NAPS = (0.00005, 0.001)
_CLOSE_NS, _CLOSE_ATTEMPTS = 50_000_000, 20
_LONGEST_ADDRESS = 64 << 10
_WAKE_MS = 100  # of the progress thread, unless something happens
Alive = Callable[[], bool]
Array = npt.NDArray[np.uint8]


class UcxWorker:
    """UCX in this process: one worker, whose thread sleeps while nothing moves."""

    def __init__(self, devices: str) -> None:
        """``devices``: network devices in UCX's words; empty: all. Raises Unsupported, Unavailable."""
        self._ucx, self._array = load_ucx()
        options = {"NET_DEVICES": devices} if devices and "UCX_NET_DEVICES" not in os.environ else {}
        try:
            self._context = self._ucx.UCXContext(options)
            self._worker = self._ucx.UCXWorker(self._context, enable_delayed_submission=True)
            self._worker.start_progress_thread(polling_mode=False, epoll_timeout=_WAKE_MS)
            self.address = bytes(self._worker.address)
        except Exception as error:
            raise Unavailable(f"UCX cannot start: {error}") from error
        self._pid = os.getpid()
        atexit.register(self.stop)
        self._tags = itertools.count(secrets.randbits(62))
        self._closing: queue.SimpleQueue[tuple[Any, list[tuple[Any, Array]]]] = queue.SimpleQueue()
        self._closer: threading.Thread | None = None
        self._lock = threading.Lock()

    def tag(self) -> int:
        """A number that no other connection of this worker has."""
        return next(self._tags)

    def connect(self, address: bytes) -> Any:
        """An endpoint to the worker at an address. Raises Unavailable.

        UCX ends the process over an address that it cannot parse. What is no address at all is found out here; who
        forges one has to be kept off the network.
        """
        if not plausible(address, self.address):
            raise Unavailable("the peer's UCX address is none that this version of UCX writes")
        ucx = self._ucx
        try:
            peer = ucx.UCXAddress.create_from_buffer(address)
            return ucx.UCXEndpoint.create_from_worker_address(self._worker, peer, True)
        except Exception as error:
            raise Unavailable(f"the peer's UCX address is of no use here: {error}") from error

    def send(self, endpoint: Any, buffer: Array, tag: int) -> Any:
        return endpoint.tag_send(self._array(buffer), self._ucx.UCXXTag(tag))

    def receive(self, endpoint: Any, buffer: Array, tag: int) -> Any:
        return endpoint.tag_recv(self._array(buffer), self._ucx.UCXXTag(tag))

    def close(self, endpoint: Any, held: list[tuple[Any, Array]]) -> None:
        """Closes an endpoint, in a thread of its own; buffers of requests in flight live until those have ended."""
        with self._lock:
            if self._closer is None:
                self._closer = threading.Thread(target=self._close_all, name="kvstore-ucx", daemon=True)
                self._closer.start()
        self._closing.put((endpoint, held))

    def _close_all(self) -> None:
        kept: list[tuple[Any, Array]] = []
        while True:
            endpoint, held = self._closing.get()
            with contextlib.suppress(Exception):  # it has ended by itself
                endpoint.close_blocking(_CLOSE_NS, _CLOSE_ATTEMPTS)
            kept = [one for one in (*kept, *held) if not one[0].completed]
            del endpoint, held

    def stop(self) -> None:
        """At the end of the process, before its parts are destroyed in any order."""
        if os.getpid() == self._pid:
            self._worker.stop_progress_thread()

    def leak(self) -> None:
        """Makes sure that it is never destroyed: in a forked child that would wait for threads that are not there."""
        for one in (self._worker, self._context, self):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def plausible(address: bytes, ours: bytes) -> bool:
    """Whether it can be a worker's address: of the length of one, and with the same version and flags as ours."""
    return len(ours) // 4 <= len(address) <= _LONGEST_ADDRESS and address[:1] == ours[:1]


class Channel:
    """The payloads of one connection, for its thread. Both sides cut a payload in the same way."""

    def __init__(self, worker: UcxWorker, address: bytes, send_tag: int, recv_tag: int, alive: Alive) -> None:
        """``alive``: whether the connection is open. Raises Unavailable."""
        self._worker = worker
        self._endpoint = worker.connect(address)
        self._send_tag, self._recv_tag = send_tag, recv_tag
        self._alive = alive
        self._spare: list[Array] = []
        self._sending: deque[tuple[Any, Array]] = deque()
        self._out: Array | None = None  # the segment being filled
        self._filled = self._out_left = 0
        self._receiving: deque[tuple[Any, Array]] = deque()
        self._in: Array | None = None  # the segment being read
        self._read = self._in_left = 0
        self._open = True

    # --- sending -----------------------------------------------------------------------------------------

    def begin(self, total: int) -> None:
        """A payload of ``total`` bytes is sent next."""
        self._out_left, self._filled = total, 0

    def send(self, buffers: Sequence[Any], deadline: float) -> None:
        """The payload's next bytes. Raises DeadlineExceeded, Unavailable."""
        for buffer in buffers:
            data = np.frombuffer(buffer, dtype=np.uint8) if len(buffer) else np.empty(0, np.uint8)
            at = 0
            while at < len(data):
                at += self._fill(data[at:], deadline)
        if not self._out_left:
            while self._sending:
                self._sent(deadline)

    def _fill(self, data: Array, deadline: float) -> int:
        if self._out is None:
            if len(self._sending) >= IN_FLIGHT:
                self._sent(deadline)
            self._out = self._buffer()
        room = min(SEGMENT, self._out_left + self._filled) - self._filled
        count = min(room, len(data))
        np.copyto(self._out[self._filled : self._filled + count], data[:count])
        self._filled += count
        self._out_left -= count
        if self._filled == SEGMENT or not self._out_left:
            request = self._call(self._worker.send, self._out[: self._filled], self._send_tag)
            self._sending.append((request, self._out))
            self._out, self._filled = None, 0
        return count

    def _sent(self, deadline: float) -> None:
        """The oldest segment has left."""
        request, buffer = self._sending[0]
        self._await(request, deadline)
        self._sending.popleft()
        self._spare.append(buffer)

    # --- receiving -----------------------------------------------------------------------------------------

    def expect(self, total: int) -> None:
        """A payload of ``total`` bytes comes next."""
        self._in_left = total
        self._post()

    def receive(self, view: memoryview, deadline: float) -> None:
        """Fills ``view`` with the payload's next bytes. Raises DeadlineExceeded, Unavailable."""
        target, at = np.frombuffer(view, dtype=np.uint8), 0
        while at < len(target):
            if self._in is None:
                request, self._in = self._receiving[0]
                self._await(request, deadline)
                self._receiving.popleft()
                self._read = 0
            count = min(len(target) - at, len(self._in) - self._read)
            np.copyto(target[at : at + count], self._in[self._read : self._read + count])
            at, self._read = at + count, self._read + count
            if self._read == len(self._in):
                self._spare.append(self._in.base if self._in.base is not None else self._in)
                self._in = None
                self._post()

    def _post(self) -> None:
        """Says where the next segments go."""
        while self._in_left and len(self._receiving) < IN_FLIGHT:
            size = min(SEGMENT, self._in_left)
            buffer = self._buffer()[:size]
            self._receiving.append((self._call(self._worker.receive, buffer, self._recv_tag), buffer))
            self._in_left -= size

    # --- both ----------------------------------------------------------------------------------------------

    def _buffer(self) -> Array:
        return self._spare.pop() if self._spare else np.empty(SEGMENT, dtype=np.uint8)

    def _call(self, run: Callable[[Any, Array, int], Any], buffer: Array, tag: int) -> Any:
        try:
            return run(self._endpoint, buffer, tag)
        except Exception as error:  # what ucxx raises has no common base
            raise Unavailable(f"the UCX connection is lost: {error}") from error

    def _await(self, request: Any, deadline: float) -> None:
        began, nap = time.monotonic(), _NAPS[0]
        while not request.completed:
            now = time.monotonic()
            if now >= deadline:
                raise DeadlineExceeded("the deadline passed while a UCX message was awaited")
            if now - began > _SPIN:
                if not self._alive():
                    raise Unavailable("the peer went away while a UCX message was awaited")
                time.sleep(nap)
                nap = min(2 * nap, _NAPS[1])
        try:
            request.check_error()
        except Exception as error:
            raise Unavailable(f"the UCX connection is lost: {error}") from error

    def close(self) -> None:
        """No further messages. Does not wait."""
        if self._open:
            self._open = False
            self._worker.close(self._endpoint, [*self._sending, *self._receiving])
