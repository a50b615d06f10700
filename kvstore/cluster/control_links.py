"""Calls to the control planes of other nodes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from kvstore.cluster.member import Member
from kvstore.core.errors import DeadlineExceeded, Unavailable
from kvstore.transport.rpc_error import typed
from kvstore.v1.control_pb2_grpc import ControlStub

T = TypeVar("T")
_KEPT = 256  # channels; a cell has 254 other nodes at most
_OPTIONS = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_reconnect_backoff_ms", 2000),  # a node that is back is to be reached soon
)


class ControlLinks:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: OrderedDict[str, grpc.Channel] = OrderedDict()
        self._closed = False

    def call(self, target: Member, run: Callable[[Any, float], T], deadline: float) -> T:
        """``run(stub, timeout)`` against a node, by a deadline on time.monotonic. Raises KVStoreError."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"no time is left to ask {target.control_address}")
        stub = ControlStub(self._channel(target.control_address))  # type: ignore[no-untyped-call]
        try:
            return run(stub, left)
        except grpc.RpcError as error:
            raise typed(error, target.control_address) from None
        except ValueError as error:  # gRPC's word for a channel that was closed
            raise Unavailable(f"no call to {target.control_address}: {error}") from None

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise Unavailable("this node stops")
            found = self._channels.pop(address, None) or grpc.insecure_channel(address, _OPTIONS)
            self._channels[address] = found
            former = self._channels.popitem(last=False)[1] if len(self._channels) > _KEPT else None
        if former is not None:
            former.close()
        return found

    def close(self) -> None:
        """Calls under way end, with Unavailable."""
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
            self._channels.clear()
        for channel in channels:
            channel.close()
