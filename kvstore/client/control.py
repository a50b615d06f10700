"""The few calls of the client that go over the node's control plane; grpc is imported only here."""

from __future__ import annotations

import time

import grpc

from kvstore.core.errors import DeadlineExceeded, Unavailable
from kvstore.v1 import control_pb2, control_pb2_grpc


def stat(address: str, deadline: float) -> control_pb2.StatReply:
    """Control.Stat of the node at host:port. Raises DeadlineExceeded, Unavailable."""
    with grpc.insecure_channel(address) as channel:
        try:
            stub = control_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call]
            reply: control_pb2.StatReply = stub.Stat(
                control_pb2.StatRequest(), timeout=max(0.001, deadline - time.monotonic())
            )
        except grpc.RpcError as error:
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            kind = DeadlineExceeded if late else Unavailable
            raise kind(f"the control plane at {address} did not answer: {error.details()}") from None
    return reply
