"""The frame of the data path: a fixed 32-byte header, a protobuf message, then payload (docs/protocol.md).

Both sides use these functions. Sizes are checked before anything is allocated. Deadlines are values of
``time.monotonic()``; None waits for ever. A payload is never gathered in a Python object: it is sent from the
buffers it lies in, and ``recv_frame`` leaves it on the socket for ``recv_exact`` to put where it belongs.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple, TypeAlias

from kvstore.core.errors import (
    DeadlineExceeded,
    FrameTooLarge,
    ProtocolError,
    Truncated,
    Unavailable,
    UnknownOp,
    VersionMismatch,
)

MAGIC = 0x3153564B  # b"KVS1" read as little-endian
VERSION = 2  # of the protocol, as HELLO agrees on it: 2 has ROUTE
MIN_VERSION = 1
FRAME_VERSION = 1  # of the header itself
HEADER = struct.Struct("<IBBHIIQQ")
HEADER_BYTES = HEADER.size
IOV_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
MAX_DESCRIPTORS = 4
JOIN_BELOW = 256 << 10  # copying a message this small is cheaper than another scatter/gather entry

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class Op(IntEnum):
    """What a frame asks for; its reply carries the same op."""

    HELLO = 1
    ATTACH = 2
    OPEN_NAMESPACE = 3
    MATCH = 4
    GET = 5
    RELEASE = 6
    RESERVE = 7
    WRITE = 8
    COMMIT = 9
    ABORT = 10
    PUT = 11
    EVICT = 12
    PING = 13
    BYE = 14
    PIN = 15
    UNPIN = 16
    ROTATE = 17
    PREFETCH = 18
    ROUTE = 19
    FABRIC = 20


class Flag(IntFlag):
    """REPLY and ERROR mark answers; ONE_WAY asks for none."""

    NONE = 0
    REPLY = 1
    ERROR = 2
    ONE_WAY = 4


_KNOWN_FLAGS = 7  # plain integers on the hot path: arithmetic of IntFlag costs microseconds
_REPLY, _ERROR, _ONE_WAY = 1, 2, 4
_OPS = {int(op): op for op in Op}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one frame, in bytes, and on the keys that its message may name."""

    max_header_bytes: int = 16 << 20
    max_frame_bytes: int = 1 << 30
    max_keys: int = 65_536


DEFAULT_LIMITS = Limits()


class Header(NamedTuple):
    """A checked frame header. ``message_len`` and ``payload_len`` are bytes that follow it."""

    op: Op
    flags: int
    message_len: int
    request_id: int
    payload_len: int
    version: int = FRAME_VERSION

    @property
    def is_error(self) -> bool:
        return bool(self.flags & _ERROR)

    @property
    def is_reply(self) -> bool:
        return bool(self.flags & (_REPLY | _ERROR))

    @property
    def one_way(self) -> bool:
        return bool(self.flags & _ONE_WAY)


def encode_header(op: int, message_len: int, payload_len: int = 0, *, flags: int = 0, request_id: int = 0) -> bytes:
    """The 32 bytes in front of a message."""
    return HEADER.pack(MAGIC, FRAME_VERSION, op, flags, message_len, request_id & 0xFFFFFFFF, payload_len, 0)


def parse_header(data: Buffer, limits: Limits = DEFAULT_LIMITS) -> Header:
    """The header in the first 32 bytes of ``data``.

    Raises Truncated, ProtocolError (not a frame), VersionMismatch, UnknownOp or FrameTooLarge. Once the header is
    known to be one, ``details["request_id"]`` of the error says which request an error reply belongs to.
    """
    if len(data) < HEADER_BYTES:
        raise Truncated(f"a frame header has {HEADER_BYTES} bytes, only {len(data)} arrived", got=len(data))
    magic, version, op, flags, message_len, request_id, payload_len, reserved = HEADER.unpack_from(data)
    if magic != MAGIC:
        if bytes(data[:5]) in (b"HTTP/", b"<!DOC"):
            raise ProtocolError(
                "not a kvstore frame but HTTP: this is not the data port of a node, but its HTTP port or another server"
            )
        raise ProtocolError(
            f"not a kvstore frame: it starts with {bytes(data[:4]).hex()}, not {MAGIC.to_bytes(4, 'little').hex()}; "
            "is this the data port of a kvstore node?"
        )
    if version != FRAME_VERSION:
        raise VersionMismatch(
            f"the peer sent a frame of version {version}, this side speaks {FRAME_VERSION}; "
            "run versions of kvstore that are at most one protocol version apart",
            got=version,
            want=FRAME_VERSION,
            request_id=request_id,
        )
    if flags & ~_KNOWN_FLAGS:
        raise ProtocolError(f"frame with unknown flags {flags & ~_KNOWN_FLAGS:#06x}", request_id=request_id)
    if reserved:
        raise ProtocolError(f"frame with reserved bytes {reserved:#x}, which must be zero", request_id=request_id)
    if message_len > limits.max_header_bytes or payload_len > limits.max_frame_bytes:
        raise _too_large(message_len, payload_len, limits, request_id)
    known = _OPS.get(op)
    if known is None:
        raise UnknownOp(f"unknown op {op}; known are 1 to {max(_OPS)}", op=op, request_id=request_id)
    return Header(known, flags, message_len, request_id, payload_len, version)


def _too_large(message_len: int, payload_len: int, limits: Limits, request_id: int) -> FrameTooLarge:
    what, got, most = "message", message_len, limits.max_header_bytes
    if got <= most:
        what, got, most = "payload", payload_len, limits.max_frame_bytes
    return FrameTooLarge(
        f"a frame announces a {what} of {got} bytes, at most {most} are accepted; send smaller batches",
        got=got,
        want=most,
        request_id=request_id,
    )


# --- sending ---------------------------------------------------------------------------------------------


def send_frame(
    sock: socket.socket,
    op: int,
    message: Buffer = b"",
    payload: Sequence[Buffer] = (),
    *,
    flags: int = 0,
    request_id: int = 0,
    payload_len: int | None = None,
    descriptors: Sequence[int] = (),
    deadline: float | None = None,
) -> None:
    """Sends one frame from the buffers it lies in. Raises DeadlineExceeded or Unavailable.

    ``payload_len`` larger than what ``payload`` holds announces bytes that the caller sends next with
    :func:`send_buffers`. ``descriptors`` travel with the first byte (unix sockets). After an error the stream
    is out of step: close the socket.
    """
    total = sum(len(part) for part in payload) if payload_len is None else payload_len
    header = encode_header(op, len(message), total, flags=flags, request_id=request_id)
    if len(message) <= JOIN_BELOW:
        head: list[Buffer] = [header + bytes(message) if message else header]
    else:
        head = [header, message]
    if descriptors:
        _send_descriptors(sock, head, descriptors, deadline)
    send_buffers(sock, [*head, *payload], deadline)


def send_buffers(sock: socket.socket, buffers: Sequence[Buffer], deadline: float | None = None) -> None:
    """Sends all bytes of ``buffers`` in order by scatter/gather. Raises DeadlineExceeded or Unavailable."""
    if len(buffers) == 1:
        sent = _send_some(sock, buffers, deadline)
        if sent == len(buffers[0]):
            return
        buffers = (memoryview(buffers[0])[sent:],)
    pending = [part for part in buffers if len(part)]
    start = 0
    while start < len(pending):
        sent = _send_some(sock, pending[start : start + IOV_MAX], deadline)
        while sent:
            size = len(pending[start])
            if sent < size:
                pending[start] = memoryview(pending[start])[sent:]
                break
            sent -= size
            start += 1


def _send_some(sock: socket.socket, buffers: Sequence[Buffer], deadline: float | None) -> int:
    arm(sock, deadline)
    try:
        return sock.send(buffers[0]) if len(buffers) == 1 else sock.sendmsg(buffers)
    except TimeoutError:
        raise DeadlineExceeded("the deadline passed while a frame was sent") from None
    except OSError as error:
        raise Unavailable(f"the connection was lost while a frame was sent: {error}") from error


def _send_descriptors(
    sock: socket.socket, head: list[Buffer], descriptors: Sequence[int], deadline: float | None
) -> None:
    """Sends the first byte together with the descriptors and takes it off ``head``."""
    arm(sock, deadline)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
    try:
        sent = sock.sendmsg([head[0]], ancillary)
    except TimeoutError:
        raise DeadlineExceeded("the deadline passed while descriptors were sent") from None
    except OSError as error:
        raise Unavailable(f"the connection was lost while descriptors were sent: {error}") from error
    head[0] = memoryview(head[0])[sent:]


# --- receiving -------------------------------------------------------------------------------------------


def recv_frame(
    sock: socket.socket, limits: Limits = DEFAULT_LIMITS, deadline: float | None = None
) -> tuple[Header, bytearray] | None:
    """Header and message of the next frame; its payload stays on the socket. None when the peer closed in between.

    Raises what :func:`parse_header` raises, Truncated (the peer closed within a frame), DeadlineExceeded or
    Unavailable.
    """
    raw = bytearray(HEADER_BYTES)
    if not recv_exact(sock, memoryview(raw), deadline, closed_ok=True):
        return None
    header = parse_header(raw, limits)
    message = bytearray(header.message_len)
    recv_exact(sock, memoryview(message), deadline)
    return header, message


def recv_frame_descriptors(
    sock: socket.socket, limits: Limits = DEFAULT_LIMITS, deadline: float | None = None
) -> tuple[Header, bytearray, list[int]] | None:
    """Like :func:`recv_frame`, for a frame that may carry descriptors; the caller owns and closes them."""
    raw = bytearray(HEADER_BYTES)
    first, descriptors = _recv_ancillary(sock, deadline)
    if not first:
        return None
    try:
        raw[: len(first)] = first
        recv_exact(sock, memoryview(raw)[len(first) :], deadline)
        header = parse_header(raw, limits)
        message = bytearray(header.message_len)
        recv_exact(sock, memoryview(message), deadline)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return header, message, descriptors


def _recv_ancillary(sock: socket.socket, deadline: float | None) -> tuple[bytes, list[int]]:
    arm(sock, deadline)
    space = socket.CMSG_LEN(MAX_DESCRIPTORS * array.array("i").itemsize)
    try:
        first, ancillary, _, _ = sock.recvmsg(HEADER_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except TimeoutError:
        raise DeadlineExceeded("the deadline passed while a frame was awaited") from None
    except OSError as error:
        raise Unavailable(f"the connection was lost while a frame was awaited: {error}") from error
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return first, list(found)


def recv_exact(
    sock: socket.socket, view: memoryview, deadline: float | None = None, *, closed_ok: bool = False
) -> bool:
    """Fills ``view``. False when ``closed_ok`` and the peer closed before the first byte.

    Raises Truncated, DeadlineExceeded or Unavailable.
    """
    got, size = 0, len(view)
    while got < size:
        count = recv_some(sock, view[got:] if got else view, deadline)
        if not count:
            if closed_ok and not got:
                return False
            raise Truncated(f"the peer closed the connection after {got} of {size} bytes", got=got, want=size)
        got += count
    return True


def recv_some(sock: socket.socket, view: memoryview, deadline: float | None = None) -> int:
    """Receives at least one byte into ``view``; 0 when the peer closed. Raises DeadlineExceeded or Unavailable."""
    arm(sock, deadline)
    try:
        return sock.recv_into(view)
    except TimeoutError:
        raise DeadlineExceeded("the deadline passed while a frame was awaited") from None
    except OSError as error:
        raise Unavailable(f"the connection was lost while a frame was awaited: {error}") from error


def discard(sock: socket.socket, count: int, deadline: float | None = None) -> None:
    """Reads and drops ``count`` payload bytes, so that the stream stays in step."""
    scratch = memoryview(bytearray(min(count, 256 << 10)))
    while count > 0:
        size = min(count, len(scratch))
        recv_exact(sock, scratch[:size], deadline)
        count -= size


def arm(sock: socket.socket, deadline: float | None) -> None:
    """Gives the next call on ``sock`` what is left until ``deadline``. Raises DeadlineExceeded when nothing is."""
    if deadline is None:
        if sock.gettimeout() is not None:
            sock.settimeout(None)
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded("the deadline passed")
    sock.settimeout(left)
