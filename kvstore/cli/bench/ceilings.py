"""What this machine does without us, for the same bytes between the same, prefaulted buffers.

A pass moves a region, as large as the store's working set, to or from the same few buffers, batch by batch.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Pass: TypeAlias = Callable[[], int]  # moves the region once; the bytes moved
_pool = ThreadPoolExecutor(2)


def prefaulted(length: int) -> Bytes:
    """Private memory of the process, every page of it written."""
    array = np.empty(length, np.uint8)
    array.fill(1)
    return array


def shared_region(path: str, length: int) -> Bytes:
    """A file on tmpfs, mapped and populated, as the node's memory file is one. Made when it is not there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, length)
        mapped = mmap.mmap(descriptor, length)
    finally:
        os.close(descriptor)
    array = np.frombuffer(mapped, np.uint8)
    array[:: mmap.PAGESIZE] |= 0  # faults every page in
    return array


def memcpy_passes(region: Bytes, buffers: Sequence[Bytes], to_region: bool) -> dict[str, Pass]:
    """The ways to copy that this machine has. All they need is made before, so that a pass is nothing but copies."""
    size = buffers[0].nbytes
    pieces = [region[at : at + size] for at in range(0, region.nbytes - size + 1, size)]
    pairs = [(buffers[nth % len(buffers)], piece) for nth, piece in enumerate(pieces)]
    if to_region:
        pairs = [(piece, buffer) for buffer, piece in pairs]
    places = [(into.ctypes.data, source.ctypes.data, size) for into, source in pairs]
    total = len(pairs) * size

    def by_numpy() -> int:
        for into, source in pairs:
            np.copyto(into, source)
        return total

    def by_memmove() -> int:
        _move(places)
        return total

    halves = [_halves(places[at : at + len(buffers)]) for at in range(0, len(places), len(buffers))]

    def by_two_threads() -> int:
        for first, second in halves:
            other = _pool.submit(_move, second)
            _move(first)
            other.result()
        return total

    return {"numpy.copyto": by_numpy, "memmove": by_memmove, "memmove, 2 threads": by_two_threads}


Place: TypeAlias = "tuple[int, int, int]"


def _move(places: Sequence[Place]) -> None:
    memmove = ctypes.memmove
    for into, source, size in places:
        memmove(into, source, size)


def _halves(batch: list[Place]) -> tuple[list[Place], list[Place]]:
    """A batch of copies as two of the same size; a single one is cut in the middle."""
    if len(batch) > 1:
        return batch[: len(batch) // 2], batch[len(batch) // 2 :]
    into, source, size = batch[0]
    half = size // 2
    return [(into, source, half)], [(into + half, source + half, size - half)]


class SocketPeer:
    """The other process of a raw TCP pair: sends its region batch by batch when asked, or receives into it."""

    def __init__(self, listener: socket.socket, length: int) -> None:
        self.region = prefaulted(length)
        self.listener = listener

    def serve(self) -> None:
        """Serves each connection in a thread until the listener is closed."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Each request: one byte (g: send, p: receive), offset and length as u64."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head, view = bytearray(17), memoryview(self.region)
        with connection:
            while receive(connection, memoryview(head)):
                offset, length = (int.from_bytes(head[at : at + 8], "little") for at in (1, 9))
                piece = view[offset : offset + length]
                if head[0] == ord("g"):
                    connection.sendall(piece)
                elif receive(connection, piece):
                    connection.sendall(b"k")


def receive(connection: socket.socket, view: memoryview) -> bool:
    """Fills ``view``; False when the peer is gone."""
    done = 0
    while done < len(view):
        got = connection.recv_into(view[done:])
        if not got:
            return False
        done += got
    return True


def socket_passes(lanes: Sequence[socket.socket], length: int, buffers: Sequence[Bytes], put: bool) -> dict[str, Pass]:
    """Raw sockets, one request a batch and lane: by one lane and, for batches, by two at the same time."""
    ways: dict[str, Pass] = {"1 socket": lambda: socket_pass(lanes[:1], length, buffers, put)}
    if len(buffers) > 1:
        ways["2 sockets"] = lambda: socket_pass(lanes[:2], length, buffers, put)
    return ways


def socket_pass(lanes: Sequence[socket.socket], length: int, buffers: Sequence[Bytes], put: bool) -> int:
    """Moves ``length`` bytes between the peer's region and the buffers."""
    size, share = buffers[0].nbytes, len(buffers) // len(lanes)
    batch = size * len(buffers)
    for start in range(0, length - batch + 1, batch):
        jobs = [
            (lane, start + nth * share * size, buffers[nth * share : (nth + 1) * share])
            for nth, lane in enumerate(lanes)
        ]
        others = [_pool.submit(_socket_batch, *job, put) for job in jobs[1:]]
        _socket_batch(*jobs[0], put)
        for other in others:
            other.result()
    return length // batch * batch


def _socket_batch(lane: socket.socket, offset: int, buffers: Sequence[Bytes], put: bool) -> None:
    size = buffers[0].nbytes
    head = (b"p" if put else b"g") + offset.to_bytes(8, "little") + (size * len(buffers)).to_bytes(8, "little")
    views = [memoryview(buffer) for buffer in buffers]
    if put:
        _send_all(lane, [memoryview(head), *views])
        receive(lane, memoryview(bytearray(1)))
        return
    lane.sendall(head)
    for view in views:
        receive(lane, view)


def _send_all(lane: socket.socket, views: list[memoryview]) -> None:
    while views:
        sent = lane.sendmsg(views[:512])
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if views and sent:
            views[0] = views[0][sent:]
