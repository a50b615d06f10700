"""Follows the event stream of one peer for as long as it is told to, through lost connections and restarts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn, Protocol

import grpc

from kvstore.cluster.etcd.backoff import Backoff, Trouble
from kvstore.cluster.feed import Feed
from kvstore.core.errors import KVStoreError, Unavailable
from kvstore.v1 import events_pb2 as pb
from kvstore.v1.control_pb2_grpc import ControlStub

_log = logging.getLogger(__name__)
OPTIONS = (
    ("grpc.max_receive_message_length", 16 << 20),  # batches have some 130 KiB
    ("grpc.use_local_subchannel_pool", 1),  # each attempt connects anew, whatever gRPC thinks of the last one
    ("grpc.enable_http_proxy", 0),
)
SILENCE = 5.0  # seconds without a sign of life, of which there is one each second


@dataclass(frozen=True, slots=True)
class Heard:
    """A sign of life. The figures are None where it brought none."""

    node_id: bytes
    boot_id: bytes
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    draining: bool | None = None
    eviction_age: float = 0.0
    member: bytes = b""  # who it is, as JSON: first in a stream, then when it changes
    peers: tuple[bytes, ...] = ()  # others that it hears, as JSON


class Listener(Protocol):
    """Learns how a peer is. Called on the subscriber's loop; quick, and does not raise."""

    def heard(self, heard: Heard) -> None:
        """Anything came."""

    def lost(self, node_id: bytes, boot_id: bytes, reason: str) -> None:
        """The stream broke, or could not be opened; it is tried again. ``boot_id``: heard last, may be empty."""

    def left(self, node_id: bytes, boot_id: bytes) -> None:
        """The peer stops, by its own word."""


class Subscriber:
    """Feeds ``feed`` from the control plane at ``address`` ("host:port"). ``own``: who this node is, as JSON."""

    def __init__(
        self, address: str, feed: Feed, listener: Listener, silence: float = SILENCE, own: Callable[[], bytes] = bytes
    ) -> None:
        self._address = address
        self._feed = feed
        self._listener = listener
        self._silence = silence
        self._own = own
        self._boot_id = b""
        self._heard_at = 0.0
        self._silent = False

    async def run(self) -> NoReturn:
        """Until it is cancelled."""
        backoff, trouble = Backoff(), Trouble(_log, f"following the events of {self._address}")
        while True:
            try:
                await self._follow(trouble)
                reason = "the peer ended the stream"
            except Unavailable as error:
                reason = str(error)
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except Exception as error:  # what came makes no sense, or the sink failed
                if not isinstance(error, KVStoreError):
                    _log.exception("events of %s could not be taken in", self._address)
                self._feed.broken()
                reason = f"{type(error).__name__}: {error}"
            trouble.begins(reason)
            self._listener.lost(self._feed.node_id, self._boot_id, reason)
            await asyncio.sleep(backoff.wait())

    async def _follow(self, trouble: Trouble) -> None:
        """One connection, to its end."""
        self._heard_at, self._silent = time.monotonic(), False
        async with grpc.aio.insecure_channel(self._address, OPTIONS) as channel:
            call = ControlStub(channel).WatchEvents(self._request())  # type: ignore[no-untyped-call]
            watchdog = asyncio.create_task(self._watch(call))
            try:
                async for batch in call:
                    self._take(batch)
                    trouble.ends()
            except asyncio.CancelledError:
                if not self._silent:
                    raise
                raise Unavailable(f"nothing came for {self._silence:g} s") from None
            finally:
                watchdog.cancel()
                call.cancel()

    def _request(self) -> pb.WatchEventsRequest:
        request = self._feed.request()
        request.member = self._own()
        return request

    def _take(self, batch: pb.EventBatch) -> None:
        self._heard_at = time.monotonic()
        self._feed.take(batch)
        self._boot_id = batch.boot_id
        if batch.leaving:
            self._listener.left(batch.node_id, batch.boot_id)
            return
        heard = Heard(batch.node_id, batch.boot_id, member=batch.member, peers=tuple(batch.peers))
        if batch.HasField("status"):
            status = batch.status
            heard = replace(
                heard,
                capacity_bytes=status.capacity_bytes,
                free_bytes=status.free_bytes,
                draining=status.draining,
                eviction_age=status.eviction_age,
            )
        self._listener.heard(heard)

    async def _watch(self, call: grpc.aio.UnaryStreamCall[pb.WatchEventsRequest, pb.EventBatch]) -> None:
        """Ends a call on which nothing comes: a peer that is gone without a word, or does not run."""
        while (left := self._heard_at + self._silence - time.monotonic()) > 0:
            await asyncio.sleep(left)
        self._silent = True
        call.cancel()
