"""How a cell speaks with its nodes: one question, and one stream each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Protocol

import grpc

from kvstore.cluster.feed import Feed
from kvstore.cluster.member import Member
from kvstore.cluster.subscriber import OPTIONS, Listener, Subscriber
from kvstore.core.errors import Unavailable
from kvstore.v1 import events_pb2 as pb
from kvstore.v1.control_pb2_grpc import ControlStub

_ANSWER = 5.0  # seconds


class Dialler(Protocol):
    """``address``: "host:port" of a node's control plane."""

    async def ask(self, address: str) -> Member:
        """Who answers there. Raises KVStoreError."""

    async def follow(self, address: str, feed: Feed, listener: Listener) -> NoReturn:
        """Feeds the events of the node, through lost connections, until it is cancelled."""


class GrpcDialler:
    """``silence``: seconds without a sign of life after which a stream is given up and opened anew. ``own``: who this
    node is, as JSON, for those that it follows."""

    def __init__(self, silence: float, own: Callable[[], bytes] = bytes) -> None:
        self._silence = silence
        self._own = own

    async def ask(self, address: str) -> Member:
        async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
            call = ControlStub(channel).WatchEvents(pb.WatchEventsRequest(), timeout=_ANSWER)  # type: ignore[no-untyped-call]
            try:
                async for batch in call:
                    return _who(address, batch)
            except grpc.aio.AioRpcError as error:
                raise Unavailable(f"no node answers at {address}: {error.details()}") from None
            finally:
                call.cancel()
        raise Unavailable(f"the node at {address} stops")

    async def follow(self, address: str, feed: Feed, listener: Listener) -> NoReturn:
        await Subscriber(address, feed, listener, self._silence, self._own).run()


def _who(address: str, batch: pb.EventBatch) -> Member:
    if not batch.member:
        raise Unavailable(f"the node at {address} stands alone: it runs with discovery = off")
    return Member.from_json(batch.member)
