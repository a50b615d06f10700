"""One connection of a client: frames over a socket, each wait bounded by a deadline."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.core.errors import DeadlineExceeded, KVStoreError, NotServed, ProtocolError, Truncated, Unavailable
from kvstore.transport.frame import (
    DEFAULT_LIMITS,
    HEADER_BYTES,
    JOIN_BELOW,
    Buffer,
    Flag,
    Header,
    Limits,
    Op,
    arm,
    encode_header,
    parse_header,
    recv_exact,
    recv_frame_descriptors,
    recv_some,
    send_buffers,
)
from kvstore.transport.wire_error import decode_error

READ_AHEAD = 16 << 10  # one receive takes header and message of most replies, and little of a payload
SOCKET_BUFFER = 4 << 20
ERROR_BIT = int(Flag.ERROR)
DRAINED = 4 << 20  # bytes of payload that nobody waits for: with more of them a new connection is cheaper
_ONE_WAY_TIMEOUT = 0.25  # seconds; only a node that reads nothing at all makes such a frame wait
_LATE_REPLY = 0.05  # seconds to wait for the error that explains why the node closed


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node listens: a unix socket (``path``) or ``host`` and ``port``."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def local(self) -> bool:
        """Whether memory can be shared with the node behind it."""
        return bool(self.path)

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"kv://{self.host}:{self.port}"


class Wire:
    """A connection that one caller at a time uses. ``broken`` once its stream may be out of step.

    Then ``late`` is the op whose reply is outstanding and not begun (:meth:`overdue` takes it), and ``cut`` says that
    only the deadline broke it, at a place that leaves nothing behind at the node. ``moved``: when bytes last moved.
    """

    __slots__ = (
        "__weakref__", "_ahead", "_end", "_next_id", "_sock", "_start", "broken", "cut", "last_used", "late", "limits",
        "moved",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, limits: Limits = DEFAULT_LIMITS) -> None:
        self._sock = sock
        self.limits = limits
        self.broken = False
        self.cut = False
        self.late: Op | None = None
        self.last_used = self.moved = time.monotonic()
        self._next_id = 0
        self._ahead = memoryview(bytearray(READ_AHEAD))
        self._start = self._end = 0
        _wires.add(self)

    @classmethod
    def connect(cls, address: Address, deadline: float) -> Wire:
        """Connects. Raises Unavailable or DeadlineExceeded."""
        sock = _connect_unix(address, deadline) if address.path else _connect_tcp(address, deadline)
        return cls(sock)

    # --- one request, one reply --------------------------------------------------------------------------

    def request(self, op: Op, message: Buffer, deadline: float) -> bytes:
        """Sends a message and returns that of the reply. Raises the node's error or what the connection did."""
        self.start(op, message, deadline)
        header, reply = self.reply(op, deadline)
        if header.payload_len:
            self.broken = True
            raise ProtocolError(f"the reply to {op.name} has {header.payload_len} bytes of payload, none were expected")
        return reply

    def start(self, op: Op, message: Buffer, deadline: float, payload_len: int = 0, flags: int = 0) -> None:
        """Sends the head of a request; ``payload_len`` bytes follow by :meth:`send`."""
        self.moved = time.monotonic()
        if deadline <= self.moved:  # nothing was sent, so nothing is broken
            raise DeadlineExceeded("the deadline passed")
        self._next_id = request_id = (self._next_id + 1) & 0xFFFFFFFF
        header = encode_header(op, len(message), payload_len, flags=flags, request_id=request_id)
        if len(message) <= JOIN_BELOW:
            self._send(op, (header + message,), deadline)
        else:
            self._send(op, (header, message), deadline)

    def send(self, op: Op, buffers: Sequence[Buffer], deadline: float) -> None:
        """Sends payload bytes of the request begun by :meth:`start`."""
        self._send(op, buffers, deadline)

    def _send(self, op: Op, buffers: Sequence[Buffer], deadline: float) -> None:
        try:
            send_buffers(self._sock, buffers, deadline)
            self.moved = time.monotonic()
        except Unavailable as error:
            self.broken = True
            raise self._late_error(op) or error from None
        except DeadlineExceeded:
            self.broken = self.cut = True
            raise
        except BaseException:
            self.broken = True
            raise

    def _late_error(self, op: Op) -> KVStoreError | None:
        """The node closes after a protocol error, but says why first."""
        try:
            self.reply(op, time.monotonic() + _LATE_REPLY)
        except NotServed:
            return None
        except KVStoreError as error:
            return None if isinstance(error, Truncated) else error
        finally:
            self.late = None
        return None

    def reply(self, op: Op, deadline: float) -> tuple[Header, bytes]:
        """Header and message of the reply; its payload is read by :meth:`read_payload`."""
        try:
            self._await(op, deadline)
            if self._ahead[self._start + 6] & ERROR_BIT:  # of a request whose op could not even be read
                self._ahead[self._start + 5] = op
            header = parse_header(self._ahead[self._start : self._end], self.limits)
            self._start += HEADER_BYTES
            message = self._message(header.message_len, deadline)
            self._check_reply(header, op)
        except BaseException:
            self.broken = True
            raise
        self.last_used = self.moved = time.monotonic()
        if header.is_error:
            raise self._error(message)
        return header, message

    def _await(self, op: Op, deadline: float) -> None:
        try:
            self._read_ahead(HEADER_BYTES, deadline)
        except DeadlineExceeded:
            self.late = op
            raise

    def overdue(self, deadline: float) -> tuple[Op, bytes] | None:
        """The reply to a call that was late, if it has begun to come: the connection is in step again then. Of an error
        the message is empty. Raises NotServed, ProtocolError: the connection is of no use."""
        waiting = select.poll()
        waiting.register(self._sock, select.POLLIN)
        if self.late is None or not waiting.poll(0):
            return None
        try:
            self._read_ahead(HEADER_BYTES, deadline)
        except DeadlineExceeded:
            return None
        op, self.late = self.late, None
        try:
            header, message = self.reply(op, deadline)
            self.broken = header.payload_len > DRAINED
            if not self.broken:
                self.read_payload(memoryview(bytearray(header.payload_len)), deadline)
        except (DeadlineExceeded, Unavailable, ProtocolError):
            raise
        except KVStoreError:  # the node answered, with an error
            self.broken, message = False, b""
        return op, message

    def _message(self, length: int, deadline: float) -> bytes:
        end = self._start + length
        if end <= self._end:  # all of it came with the header
            message, self._start = bytes(self._ahead[self._start : end]), end
            return message
        whole = bytearray(length)
        self._read(memoryview(whole), deadline)
        return bytes(whole)

    def _read_ahead(self, want: int, deadline: float) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        while self._end - self._start < want:
            if len(self._ahead) - self._start < want:
                rest = bytes(self._ahead[self._start : self._end])
                self._ahead[: len(rest)] = rest
                self._start, self._end = 0, len(rest)
            count = recv_some(self._sock, self._ahead[self._end :], deadline)
            if not count:
                raise Unavailable("the node closed the connection")
            self._end += count

    def _check_reply(self, header: Header, op: Op) -> None:
        if not header.is_reply:
            raise ProtocolError(f"the node answered {op.name} with a request")
        if header.is_error:
            return
        if header.op is not op or header.request_id != self._next_id:
            raise ProtocolError(
                f"the node answered {op.name} {self._next_id} with {header.op.name} {header.request_id}; "
                "the stream is out of step"
            )

    def _error(self, message: bytes | bytearray) -> KVStoreError:
        error = decode_error(message)
        if isinstance(error, ProtocolError):
            self.broken = True  # the node closes the connection after it
        return error

    def read_payload(self, view: memoryview, deadline: float) -> None:
        """Fills ``view`` with the next bytes of the reply's payload."""
        self._read(view, deadline)

    def _read(self, view: memoryview, deadline: float) -> None:
        ahead = min(self._end - self._start, len(view))
        if ahead:
            view[:ahead] = self._ahead[self._start : self._start + ahead]
            self._start += ahead
        try:
            if ahead < len(view):
                recv_exact(self._sock, view[ahead:], deadline)
        except Truncated as error:
            self.broken = True
            raise Unavailable(f"the node went away within a reply: {error}") from None
        except BaseException:
            self.broken = True
            raise
        self.moved = time.monotonic()

    # --- the rest ----------------------------------------------------------------------------------------

    def request_descriptors(self, op: Op, message: Buffer, deadline: float) -> tuple[bytes, list[int]]:
        """Like :meth:`request`, for a reply that carries descriptors; the caller owns them."""
        self.start(op, message, deadline)
        try:
            frame = recv_frame_descriptors(self._sock, self.limits, deadline)
            if frame is None:
                raise Unavailable("the node closed the connection")
            header, reply, descriptors = frame
            self._check_reply(header, op)
        except DeadlineExceeded:  # descriptors that nobody takes are closed with the connection
            self.broken = self.cut = True
            raise
        except BaseException:
            self.broken = True
            raise
        if header.is_error:
            raise self._error(reply)
        return bytes(reply), descriptors

    def one_way(self, op: Op, message: Buffer) -> bool:
        """Sends a frame that gets no reply, without waiting. False when it could not be sent (now broken)."""
        try:
            self.start(op, message, time.monotonic() + _ONE_WAY_TIMEOUT, flags=Flag.ONE_WAY)
        except KVStoreError:
            return False
        return True

    def interrupt(self) -> None:
        """Makes a call that waits on this connection in another thread end with Unavailable."""
        self.broken = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.broken = True
        self._sock.close()


def _connect_unix(address: Address, deadline: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    return _connected(sock, address.path, str(address), deadline)


def _connect_tcp(address: Address, deadline: float) -> socket.socket:
    found = resolve(address.host, address.port, deadline)
    failure: KVStoreError = Unavailable(f"{address} has no address")
    for family, target in found:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _connected(sock, target, str(address), deadline)
        except Unavailable as error:
            failure = error
    raise failure


def _connected(sock: socket.socket, target: object, name: str, deadline: float) -> socket.socket:
    try:
        arm(sock, deadline)
        sock.connect(target)  # type: ignore[arg-type]
    except TimeoutError:
        sock.close()
        raise DeadlineExceeded(f"no connection to {name} before the deadline") from None
    except OSError as error:
        sock.close()
        raise Unavailable(f"cannot connect to {name}: {error.strerror or error}") from None
    except BaseException:
        sock.close()
        raise
    return sock


def resolve(host: str, port: int, deadline: float) -> list[tuple[int, object]]:
    """Address family and socket address of each address of a host name. Raises Unavailable, DeadlineExceeded.

    The resolver of the C library knows no deadline, so a name (not a literal address) is looked up by a thread.
    """
    try:
        return _lookup(host, port, socket.AI_NUMERICHOST)
    except OSError:
        pass
    found: list[list[tuple[int, object]] | OSError] = []

    def look() -> None:
        try:
            found.append(_lookup(host, port, 0))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=look, name="kvstore-resolve", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not found:
        raise DeadlineExceeded(f"the name {host!r} was not resolved before the deadline")
    if isinstance(found[0], OSError):
        raise Unavailable(f"cannot resolve {host!r}: {found[0].strerror}")
    return found[0]


def _lookup(host: str, port: int, flags: int) -> list[tuple[int, object]]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, target) for family, _, _, _, target in entries]


# After a fork the child holds copies of the parent's sockets: while it did, the node would not see the parent go.
_wires: weakref.WeakSet[Wire] = weakref.WeakSet()


def _close_inherited() -> None:
    for wire in list(_wires):
        wire.broken = True
        descriptor = wire._sock.detach()
        if descriptor >= 0:
            os.close(descriptor)


os.register_at_fork(after_in_child=_close_inherited)
