"""The fabric transports that a node offers: which, how sessions join them, and what they do there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from kvstore.core.errors import Busy, InvalidArgument, KVStoreError, NotServed, Unavailable, Unsupported
from kvstore.node.lane import Lane, Reply
from kvstore.node.layout import Layout
from kvstore.node.network_put import PendingPut
from kvstore.node.nixl_memory import NixlMemory
from kvstore.node.sessions import NodeSession
from kvstore.tiers.store import BlockStore
from kvstore.transport.fabric.library import installed
from kvstore.transport.fabric.messages import Channel, UcxWorker
from kvstore.v1 import data_pb2 as pb

T = TypeVar("T")
_log = logging.getLogger(__name__)
_OPENING = 5.0  # seconds that a session waits for a fabric that is still being opened
_SHARE = 0.8  # of the peer timeout, that a read of a client's memory may take


@dataclass(frozen=True, slots=True)
class Offer:
    """``transports`` as configured; ``devices``: network devices in UCX's words, empty: all. ``rdma``: there are some
    that do RDMA."""

    transports: tuple[str, ...]
    devices: str
    rdma: bool
    peer_timeout: float


class Fabrics:
    """Opens what is offered in a thread of its own: a node serves before NIXL has started."""

    def __init__(self, store: BlockStore, offer: Offer) -> None:
        """Raises Unsupported for a transport whose library is not installed."""
        self._store = store
        self.offer = offer
        for kind in ("nixl", "ucx"):
            if kind in offer.transports and not installed(kind):
                raise Unsupported(
                    f"transports names {kind}, but its library is not installed; pip install 'kvstore-llm[{kind}]', "
                    f"or take {kind} out of transports"
                )
        self._lock = threading.Lock()
        self._ucx: UcxWorker | None = None
        self._nixl: NixlMemory | None = None
        self._trouble: KVStoreError | None = None
        self._opened = threading.Event()
        if "nixl" in offer.transports:
            threading.Thread(target=self._open_nixl, name="nixl", daemon=True).start()

    def _open_nixl(self) -> None:
        try:
            self._nixl = NixlMemory(self._store, self.offer.devices)
        except KVStoreError as error:
            self._trouble = error
            _log.warning("transport nixl is not offered: %s", error)
        except Exception as error:
            self._trouble = Unavailable(f"NIXL did not start: {error}")
            _log.exception("transport nixl is not offered")
        finally:
            self._opened.set()

    @property
    def offered(self) -> tuple[str, ...]:
        """What clients may choose."""
        return tuple(kind for kind in self.offer.transports if kind != "nixl" or self._trouble is None)

    def check(self, transport: str) -> None:
        """Raises Unsupported for a session that wants what is not offered."""
        if transport and transport not in self.offered:
            raise Unsupported(
                f"this node does not offer transport {transport!r}, but {', '.join(self.offered)}; its setting is "
                "transports"
            )

    def join(self, lane: Lane, session: NodeSession, request: pb.FabricRequest) -> Reply:
        """The exchange of addresses."""
        if session.transport == "ucx":
            return self._join_ucx(lane, request)
        memory = self._memory()
        if not session.fabric_peer:
            peer = self._known(lambda: memory.add_peer(request.address))
            session.fabric_peer, session.at_end = peer, lambda: memory.remove_peer(peer)
        reply = pb.FabricReply(
            address=memory.metadata, memory_address=memory.address, memory_bytes=memory.size
        )  # fmt: skip
        return Reply(reply.SerializeToString())

    def _join_ucx(self, lane: Lane, request: pb.FabricRequest) -> Reply:
        """Payloads of this connection go over UCX from the next request on."""
        worker = self._ucx_worker()
        tag = worker.tag()
        channel = self._known(lambda: Channel(worker, request.address, request.tag, tag, lane.connected))
        reply = pb.FabricReply(address=worker.address, tag=tag)

        def joined() -> None:
            lane.channel = channel

        return Reply(reply.SerializeToString(), sent=joined)

    @staticmethod
    def _known(connect: Callable[[], T]) -> T:
        """What a client sent as its address may be anything. Raises InvalidArgument."""
        try:
            return connect()
        except Unavailable as error:
            raise InvalidArgument(
                f"{error}; versions of the fabric library that differ between client and node may be the cause",
                field="address",
            ) from error

    def _ucx_worker(self) -> UcxWorker:
        with self._lock:
            if self._ucx is None:
                self._ucx = UcxWorker(self.offer.devices)
            return self._ucx

    def _memory(self) -> NixlMemory:
        if not self._opened.wait(_OPENING):
            raise Busy("NIXL is still starting on this node; try again")
        if self._nixl is None:
            raise self._trouble or Unsupported("this node does not offer nixl")
        return self._nixl

    def ready(self, offsets: list[int], layout: Layout) -> None:
        """Before a client reads these slots."""
        bounds = [layout.bounds(position)[1] for position in range(len(layout.parts))]
        self._memory().ready(offsets, bounds)

    def write(self, lane: Lane, session: NodeSession, put: PendingPut, request: pb.WriteRequest) -> int:
        """WRITE of a nixl session; how many bytes were read. The caller holds the put's lock."""
        if not session.fabric_peer:
            raise Unsupported("WRITE in a nixl session needs FABRIC first")
        ranged = put.layout.ranged(request.range_offset, request.range_length)
        most = _SHARE * self.offer.peer_timeout
        wait = min(most, request.deadline_ms / 1000) if request.deadline_ms else most
        ends = time.monotonic() + wait
        try:
            self._memory().receive(
                session.fabric_peer, put, ranged, request.first_block, list(request.addresses), ends, lane.connected
            )
        except Unavailable as error:  # of the client's memory; its connection may live on
            raise NotServed(f"the node cannot read this client's memory: {error}") from error
        return ranged.block_bytes * (len(request.addresses) // len(ranged.parts))
