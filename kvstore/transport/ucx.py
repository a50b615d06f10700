"""UCX: a network session whose payloads are UCX messages; requests and replies stay on the socket."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Sequence

from kvstore.core.errors import DeadlineExceeded, Unavailable, Unsupported
from kvstore.transport.base import Capabilities
from kvstore.transport.batch import parsed
from kvstore.transport.fabric.library import forked
from kvstore.transport.fabric.messages import Channel, UcxWorker
from kvstore.transport.frame import Buffer, Header, Op
from kvstore.transport.tcp import TcpTransport
from kvstore.transport.wire import Address, Wire
from kvstore.v1 import data_pb2 as pb


class UcxWire(Wire):
    """A connection with a channel for its payloads, once there is one."""

    __slots__ = ("channel",)

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.channel: Channel | None = None

    def start(self, op: Op, message: Buffer, deadline: float, payload_len: int = 0, flags: int = 0) -> None:
        super().start(op, message, deadline, payload_len, flags)
        if payload_len and self.channel is not None:
            self.channel.begin(payload_len)

    def send(self, op: Op, buffers: Sequence[Buffer], deadline: float) -> None:
        if self.channel is None:
            super().send(op, buffers, deadline)
            return
        try:
            self.channel.send(buffers, deadline)
        except Unavailable as error:
            self.broken = True
            raise self._late_error(op) or error from None
        except DeadlineExceeded:
            self.broken = self.cut = True
            raise
        except BaseException:
            self.broken = True
            raise

    def reply(self, op: Op, deadline: float) -> tuple[Header, bytes]:
        header, message = super().reply(op, deadline)
        if header.payload_len and self.channel is not None:
            self.channel.expect(header.payload_len)
        return header, message

    def read_payload(self, view: memoryview, deadline: float) -> None:
        if self.channel is None:
            super().read_payload(view, deadline)
            return
        try:
            self.channel.receive(view, deadline)
        except BaseException:
            self.broken = True
            raise

    def open_channel(self, worker: UcxWorker, reply: pb.FabricReply, tag: int) -> None:
        """From now on payloads go over UCX."""
        self.channel = Channel(worker, reply.address, reply.tag, tag, self.connected)

    def connected(self) -> bool:
        """Whether the node's end is open: the kernel closes it when the node dies."""
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLRDHUP)
        except ValueError:  # closed here
            return False
        return not poll.poll(0)

    def close(self) -> None:
        channel, self.channel = self.channel, None
        super().close()
        if channel is not None:
            channel.close()


class UcxTransport(TcpTransport):
    """The frames of TCP with another way for the bytes of blocks."""

    capabilities = Capabilities("ucx", same_host=False, zero_copy=False, heartbeat=True, fabric=True)
    wire_type = UcxWire

    def __init__(
        self, address: Address, deadline: float, *, max_wires: int = 4, client: str = "kvstore", devices: str = ""
    ) -> None:
        """``devices``: network devices in UCX's words; empty: all."""
        self._worker = client_worker(devices)
        super().__init__(address, deadline, max_wires=max_wires, client=client)

    def _hello(self, wire: Wire, deadline: float, join: bytes) -> pb.HelloReply:
        hello = super()._hello(wire, deadline, join)
        if "ucx" not in hello.transports:
            raise Unsupported(f"the node at {self.address} does not offer ucx; add it to its setting transports")
        tag = self._worker.tag()
        request = pb.FabricRequest(address=self._worker.address, tag=tag)
        reply = parsed(pb.FabricReply(), wire.request(Op.FABRIC, request.SerializeToString(), deadline))
        assert isinstance(wire, UcxWire)
        wire.open_channel(self._worker, reply, tag)
        return hello


_lock = threading.Lock()
_workers: dict[str, UcxWorker] = {}
_inherited: list[UcxWorker] = []


def client_worker(devices: str) -> UcxWorker:
    """This process's worker over these devices. Raises Unsupported, Unavailable."""
    if _inherited:
        raise forked("ucx")
    with _lock:
        found = _workers.get(devices)
        if found is None:
            found = _workers[devices] = UcxWorker(devices)
        return found


def _after_fork() -> None:
    """What was inherited is of no use, and must not be destroyed: its thread is not here."""
    global _lock, _workers
    _lock = threading.Lock()
    for worker in _workers.values():
        worker.leak()
        _inherited.append(worker)
    _workers = {}


os.register_at_fork(after_in_child=_after_fork)
