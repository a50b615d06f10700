"""What a node says of itself and of others."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from kvstore.cli.cluster import as_dict
from kvstore.cli.control import control
from kvstore.transport.tcp import TcpTransport
from kvstore.transport.wire import Address
from kvstore.v1 import control_pb2 as pb
from tests.history.nodes import NetNode
from tests.history.world import spec
from tests.integration.nodes import PATIENCE


def generation(one: NetNode, tenant: str) -> int:
    """How often a node says that a namespace was rotated."""
    with control(f"grpc://{one.control}", PATIENCE) as stub:
        found = stub.ListNamespaces(pb.ListNamespacesRequest()).namespaces
    return next((space.generation for space in found if space.root == spec(tenant).root), 0)


def protocol(one: NetNode) -> int:
    """The version that a node speaks with us."""
    with contextlib.closing(peer_session(one)) as transport:
        return transport.hello.version


def cluster_status(one: NetNode) -> Any:
    with control(f"grpc://{one.control}", PATIENCE) as stub:
        return as_dict(stub.ClusterStatus(pb.ClusterStatusRequest()))


def runs(one: NetNode) -> bool:
    """Neither ended nor stopped."""
    if one.process is None or one.process.poll() is not None:
        return False
    return Path(f"/proc/{one.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"


def peer_session(one: NetNode) -> TcpTransport:
    """As another node: it is answered from what is there alone."""
    host, _, port = one.data.rpartition(":")
    return TcpTransport(Address(host=host, port=int(port)), time.monotonic() + PATIENCE, node_id=b"another node of it")
