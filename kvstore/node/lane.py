"""One connection of the data path as its thread sees it: frames in step, bounded reads, replies.

Sockets block without timeouts, which costs no extra system calls; a lane writes down until when its peer must have
moved (``deadline``), and the server's watch thread shuts lanes that are late.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kvstore.core.errors import KVStoreError, ProtocolError, Truncated, Unavailable
from kvstore.node.metrics import NONE, Tally
from kvstore.node.sessions import NodeSession
from kvstore.transport.fabric.messages import Channel
from kvstore.transport.frame import HEADER_BYTES, Flag, Header, Limits, Op, parse_header, send_frame
from kvstore.transport.wire_error import encode_error

_MIN_RATE = 4 << 20  # bytes a second that a peer must take of a large reply, beyond the peer timeout
_DRAIN_BYTES = 256 << 20  # a payload up to here is read and dropped after an error, a larger one costs the connection
_SCRATCH_BYTES = 256 << 10
_LINGER_BYTES = 1 << 20
_LINGER_SECONDS = 1.0
_FIRST = Limits(max_header_bytes=64 << 10, max_frame_bytes=0)  # of a peer that has not said who it is
_WAIT_ALL = socket.MSG_WAITALL
_FOREVER = float("inf")
_numbers = itertools.count(1)


def _nothing() -> None:
    return None


@dataclass(slots=True)
class Reply:
    """What a handler answers. ``payload`` is sent from where it lies; ``sent`` runs afterwards, whatever happens.

    For the metrics: bytes that the client writes (``taken``) or reads (``given``) in shared memory, the slowest
    ``tier`` that blocks came from, blocks that arrived ``damaged``.
    """

    message: bytes = b""
    payload: Sequence[memoryview] = ()
    descriptors: Sequence[int] = ()
    sent: Callable[[], None] = field(default=_nothing)
    taken: int = 0
    given: int = 0
    tier: int = NONE
    damaged: int = 0


class Lane:
    """One connection. All but ``cut`` is for its own thread."""

    def __init__(self, sock: socket.socket, transport: str, limits: Limits, peer_timeout: float, tally: Tally) -> None:
        self.sock = sock
        self.transport = transport
        self.limits = limits
        self.peer_timeout = peer_timeout
        self.tally = tally
        self.session: NodeSession | None = None
        self.channel: Channel | None = None  # for payloads, when they do not go over the socket
        self.number = next(_numbers)
        self.busy = False
        self.cut_cause = ""
        self.payload_left = 0
        self.deadline = time.monotonic() + peer_timeout  # the first frame must not be awaited for ever
        self._raw = bytearray(HEADER_BYTES)
        self._scratch: memoryview | None = None

    @property
    def local(self) -> bool:
        """Whether the peer is on this host's unix socket."""
        return self.transport == "unix"

    @property
    def carrier(self) -> str:
        """How bytes of blocks move on this connection."""
        if self.session is None:
            return self.transport
        if self.session.peer:
            return "peer"
        return "shm" if self.session.shared_memory else self.session.transport or self.transport

    def reachable(self, address: str) -> str:
        """An address of the node as this peer can use it: one that stands for all is the one the peer has reached."""
        host, _, port = address.rpartition(":")
        if host not in ("0.0.0.0", "[::]"):
            return address
        mine = "127.0.0.1" if self.local else self.sock.getsockname()[0]
        return f"[{mine}]:{port}" if ":" in mine else f"{mine}:{port}"

    # --- receiving ------------------------------------------------------------------------------------------

    def next_header(self) -> Header | None:
        """Waits for the next frame; None when the peer closed in between. Raises what parse_header raises."""
        raw = memoryview(self._raw)
        got = self._receive(raw)
        if not got:
            return None
        self.busy = True
        self._peer_must_move()
        if got < HEADER_BYTES:
            self.read_exact(raw[got:], counted=False)
        header = parse_header(self._raw, self.limits if self.session is not None else _FIRST)
        if header.is_reply:
            raise ProtocolError(
                f"a request has the flags {header.flags:#06x}: REPLY and ERROR are for answers",
                request_id=header.request_id,
            )
        self.payload_left = header.payload_len
        if self.channel is not None and header.payload_len:
            self.channel.expect(header.payload_len)
        return header

    def read_message(self, header: Header) -> bytes:
        """The protobuf message of a frame."""
        message = bytearray(header.message_len)
        if message:
            self.read_exact(memoryview(message), counted=False)
        return bytes(message)

    def read_exact(self, view: memoryview, *, counted: bool = True) -> None:
        """Fills ``view``, from the payload when ``counted``. Raises Truncated or Unavailable."""
        size, got = len(view), 0
        if counted and size > self.payload_left:
            raise Truncated(
                f"the payload ends {size - self.payload_left} bytes too early", want=size, got=self.payload_left
            )
        if counted and self.channel is not None:
            self._peer_must_move()
            self.channel.receive(view, self.deadline)
            got = size
        while got < size:
            self._peer_must_move()
            count = self._receive(view[got:] if got else view, _WAIT_ALL)
            if not count:
                raise Truncated(f"the peer closed the connection after {got} of {size} bytes", got=got, want=size)
            got += count
        if counted:
            self.payload_left -= size

    def discard(self, count: int) -> None:
        """Reads and drops payload bytes."""
        if self._scratch is None:
            self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        while count > 0:
            size = min(count, _SCRATCH_BYTES)
            self.read_exact(self._scratch[:size])
            count -= size

    def drain(self) -> bool:
        """Drops what is left of the payload, so that the stream stays in step. False: too much, close instead."""
        if self.payload_left > _DRAIN_BYTES:
            return False
        self.discard(self.payload_left)
        return True

    def _receive(self, view: memoryview, flags: int = 0) -> int:
        try:
            return self.sock.recv_into(view, 0, flags)
        except OSError as error:
            raise Unavailable(f"the connection was lost while a frame was awaited: {error}") from error

    # --- sending --------------------------------------------------------------------------------------------

    def send(self, op: Op, reply: Reply, request_id: int) -> int:
        """Sends a reply; returns its payload bytes. Raises Unavailable."""
        size = sum(map(len, reply.payload))
        self.deadline = time.monotonic() + self.peer_timeout + size / _MIN_RATE
        send_frame(
            self.sock,
            op,
            reply.message,
            reply.payload if self.channel is None else (),
            flags=Flag.REPLY,
            request_id=request_id,
            payload_len=size,
            descriptors=reply.descriptors,
        )
        if self.channel is not None and size:
            self.channel.begin(size)
            self.channel.send(reply.payload, self.deadline)
        return size

    def send_error(self, op: int, error: BaseException, request_id: int) -> None:
        """Sends an error reply. Raises Unavailable."""
        self._peer_must_move()
        flags = Flag.REPLY | Flag.ERROR
        send_frame(self.sock, op, encode_error(error), flags=flags, request_id=request_id)

    # --- life -----------------------------------------------------------------------------------------------

    def idle(self) -> None:
        """The request is over: the peer may be silent as long as its session allows."""
        self.busy = False
        self.deadline = _FOREVER
        if self.session is not None:
            self.session.seen = time.monotonic()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Within it the node has all that it needs from the peer, which waits for the answer: it need not move."""
        self.deadline = _FOREVER
        try:
            yield
        finally:
            self._peer_must_move()

    def _peer_must_move(self) -> None:
        self.deadline = time.monotonic() + self.peer_timeout

    def cut(self, cause: str) -> None:
        """Ends the connection from another thread; the lane's own thread then finds it closed."""
        self.cut_cause = self.cut_cause or cause
        _shutdown(self.sock, socket.SHUT_RDWR)

    def end_when_idle(self) -> None:
        """No further requests are read; the one in progress ends."""
        if not self.busy:
            _shutdown(self.sock, socket.SHUT_RD)

    def linger(self) -> None:
        """Reads on for a moment after an error: closing with unread bytes would destroy the reply on its way."""
        _shutdown(self.sock, socket.SHUT_WR)
        until, left = time.monotonic() + _LINGER_SECONDS, _LINGER_BYTES
        scratch = bytearray(64 << 10)
        try:
            while left > 0 and (wait := until - time.monotonic()) > 0:
                self.sock.settimeout(wait)
                count = self.sock.recv_into(scratch)
                if not count:
                    return
                left -= count
        except OSError:
            return

    def connected(self) -> bool:
        """Whether the peer's end is open: the kernel closes it when the peer dies."""
        poll = select.poll()
        poll.register(self.sock, select.POLLRDHUP)
        return not poll.poll(0)

    def close(self) -> None:
        self.sock.close()
        if self.channel is not None:
            self.channel.close()


def request_id_of(error: BaseException) -> int:
    """Which request a frame error belongs to; 0 when the header could not be read that far."""
    if isinstance(error, KVStoreError):
        text = error.details.get("request_id", "0")
        return int(text) if text.isdecimal() else 0
    return 0


def closes(error: BaseException) -> bool:
    """Whether the stream is out of step, or the peer not one of ours, after this error."""
    return isinstance(error, ProtocolError)


def _shutdown(sock: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # the peer was faster
        sock.shutdown(how)
