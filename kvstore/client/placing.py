"""Where the new blocks of a chain go: to the node on whose machine the client is, or where the home node says."""

from __future__ import annotations

import functools
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstore.client.link import Link
from kvstore.core.keys import KEY_BYTES
from kvstore.transport.base import Transport
from kvstore.transport.batch import PutCall
from kvstore.v1 import data_pb2 as pb
from kvstore.v1 import types_pb2

if TYPE_CHECKING:
    from kvstore.client.namespace import Namespace

VISIBLE = types_pb2.ACK_LEVEL_VISIBLE


@dataclass(frozen=True, slots=True)
class Goal:
    """``present``: blocks of the put that some node has already. The others go to the node of ``link`` (``home``: the
    client's own), which ``lacks`` blocks before them."""

    link: Link
    home: bool = True
    present: int = 0
    lacks: bool = False
    node_id: bytes = b""
    address: str = ""


def goal(namespace: Namespace, call: PutCall, chain: bytes, deadline: float) -> Goal:
    """Where the blocks of ``call`` go, the last ones of ``chain``."""
    home = Goal(namespace.client.link)
    known = _continued(namespace, call)
    if known is not None:
        return known

    def ask(transport: Transport, handle: int) -> pb.RouteReply | None:
        if not namespace.client.router.serves(transport):
            return None
        request = pb.RouteRequest(
            namespace=handle, keys=chain, place=True, block_bytes=call.plan.block_bytes, host=_host(),
            parts=call.plan.parts,
        )  # fmt: skip
        return transport.route(request, deadline)

    if not namespace.client.link.target.routed or not call.keys:
        return home
    reply = namespace.served(deadline, ask, quiet=True)
    return home if reply is None or isinstance(reply, str) else _chosen(namespace, call, reply)


def _continued(namespace: Namespace, call: PutCall) -> Goal | None:
    """A chain that was begun a moment ago goes on where it is."""
    router = namespace.client.router
    put = router.recent.ending(namespace.root, call.parent) if call.parent else None
    link = router.link(put.address) if put is not None else None
    if put is None or link is None or link.skipped:
        return None
    return Goal(link, False, 0, False, put.node_id, put.address)


def _chosen(namespace: Namespace, call: PutCall, reply: pb.RouteReply) -> Goal:
    """What the home node says, as far as the node it names can be reached."""
    known = max((node.blocks for node in reply.nodes), default=0)
    blocks = len(call.keys) // KEY_BYTES
    # an acknowledgement of more than being visible is the concern of a node, for blocks that are there as well
    present = min(blocks, max(0, known - call.first)) if call.ack == VISIBLE else 0
    home = Goal(namespace.client.link, present=present, lacks=reply.nodes[0].blocks < call.first + present)
    at = reply.runs[0].node if reply.runs else 0
    node = reply.nodes[at]
    link = namespace.client.router.link(node.data_address) if at else None
    if link is None or link.skipped:
        return home
    return Goal(link, False, present, node.blocks < call.first + present, node.node_id, node.data_address)


@functools.cache
def _host() -> str:
    return socket.gethostname()
