"""Errors of gRPC calls as typed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore.core.errors import DeadlineExceeded, KVStoreError, Unavailable, from_wire
from kvstore.v1 import types_pb2

if TYPE_CHECKING:
    import grpc

METADATA = "kvstore-error-bin"  # trailing metadata: ``kvstore.v1.Error``


def typed(error: grpc.RpcError, address: str) -> KVStoreError:
    """What a node at ``address`` says, or why it says nothing."""
    for name, value in error.trailing_metadata() or ():
        if name == METADATA:
            found = types_pb2.Error.FromString(value)
            return from_wire(found.code, found.message, found.details)
    if error.code().name == "DEADLINE_EXCEEDED":
        return DeadlineExceeded(f"the control plane at {address} did not answer in time")
    return Unavailable(f"the control plane at {address} does not answer: {error.details()}")
