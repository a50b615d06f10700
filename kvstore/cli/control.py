"""How commands reach a node: the data path's handshake tells where the control plane listens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvstore.client.target import parse_target
from kvstore.core.errors import InvalidArgument, KVStoreError, Unavailable
from kvstore.transport.frame import MIN_VERSION, VERSION, Op
from kvstore.transport.rpc_error import typed
from kvstore.transport.wire import Address, Wire
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import data_pb2

if TYPE_CHECKING:
    import grpc

    from kvstore.v1.control_pb2_grpc import ControlStub

TARGET_HELP = "Where the node is: auto, unix://PATH, kv://HOST:PORT, dns://NAME:PORT, or grpc://HOST:PORT."
TIMEOUT_HELP = "Seconds to wait for the node."


@contextmanager
def control(target: str, timeout: float) -> Iterator[ControlStub]:
    """A stub of the control plane. Errors of calls within the block become typed ones."""
    import grpc

    from kvstore.v1.control_pb2_grpc import ControlStub

    if not 0 < timeout <= 86_400:
        raise InvalidArgument(f"--timeout must be a number of seconds above 0, not {timeout}", field="timeout")
    address = control_address(target, timeout)
    with grpc.insecure_channel(address) as channel:
        try:
            yield ControlStub(_Deadlines(channel, timeout))  # type: ignore[no-untyped-call]
        except grpc.RpcError as error:
            raise typed(error, address) from None


def control_address(target: str, timeout: float) -> str:
    """host:port of the node's gRPC. Raises Unavailable, or InvalidArgument for a bad target."""
    scheme, _, rest = target.partition("://")
    if scheme == "grpc":
        if not rest:
            raise InvalidArgument(f"target {target!r} names no host; write grpc://HOST:PORT", field="target")
        return rest
    address, reply = greeting(target, timeout)
    if not reply.control_address:
        raise Unavailable(
            f"the node at {address} runs, but with control_address = off, and this command needs its control plane",
            key="control_address",
        )
    return reply.control_address


def greeting(target: str, timeout: float) -> tuple[Address, data_pb2.HelloReply]:
    """Where a node of the target answers on its data path, and what it says of itself there. Raises Unavailable."""
    deadline = time.monotonic() + timeout
    failures: list[KVStoreError] = []
    for address in parse_target(target).resolved(deadline):
        try:
            return address, _ask(address, deadline)
        except KVStoreError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    raise Unavailable("no node answers: " + "; ".join(map(str, failures)))


def _ask(address: Address, deadline: float) -> data_pb2.HelloReply:
    request = data_pb2.HelloRequest(version=VERSION, min_version=MIN_VERSION, client="kvstore command line")
    wire = Wire.connect(address, deadline)
    try:
        reply = data_pb2.HelloReply.FromString(wire.request(Op.HELLO, request.SerializeToString(), deadline))
        wire.one_way(Op.BYE, b"")
    finally:
        wire.close()
    return reply


class _Deadlines:
    """A channel whose calls have a default deadline: a command never hangs."""

    def __init__(self, channel: grpc.Channel, timeout: float) -> None:
        self._channel = channel
        self._timeout = timeout

    def __getattr__(self, kind: str):  # type: ignore[no-untyped-def]
        def make(*args, **kwargs):  # type: ignore[no-untyped-def]
            call = getattr(self._channel, kind)(*args, **kwargs)
            return lambda request: call(request, timeout=self._timeout)

        return make


def find_namespace(stub: ControlStub, wanted: str) -> pb.NamespaceInfo:
    """The namespace whose root begins with ``wanted`` (hex) or whose model is it; empty: the only one."""
    known: list[pb.NamespaceInfo] = list(stub.ListNamespaces(pb.ListNamespacesRequest()).namespaces)
    found = [one for one in known if not wanted or one.root.hex().startswith(wanted.lower()) or model(one) == wanted]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{one.root.hex()[:8]} ({model(one)})" for one in found or known) or "none"
    what = f"{len(found)} namespaces match {wanted!r}" if wanted else "say which namespace with --namespace"
    raise InvalidArgument(f"{what}; here are: {listed}", field="namespace")


def model(info: pb.NamespaceInfo) -> str:
    """Model of a namespace."""
    import json

    return str(json.loads(info.canonical)["model"])
