"""Asking another node to fetch a chain: how every copy that is not a reader's is made."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvstore.cluster.control_links import ControlLinks
from kvstore.cluster.member import Member
from kvstore.core.keys import KeyArray
from kvstore.v1 import control_pb2 as pb

ON_ITS_WAY = 0.5  # seconds that an answer may take, of those left until the deadline; at most a quarter of them


class Copier:
    """``own``: who this node is now. Safe to use from several threads."""

    def __init__(self, own: Callable[[], Member], links: ControlLinks) -> None:
        self._own = own
        self._links = links

    def copy(
        self, target: Member, canonical: bytes, root: bytes, keys: KeyArray, owed: bool, deadline: float,
        source: Member | None = None,
    ) -> pb.CopyReply:  # fmt: skip
        """``target`` fetches a chain (keys from block 0) from this node, or from ``source``: how many leading blocks it
        has now, and bytes that came for it, by the deadline (time.monotonic). Raises KVStoreError."""
        seconds = max(0.0, deadline - time.monotonic())
        seconds -= min(ON_ITS_WAY, seconds / 4)
        request = pb.CopyRequest(
            canonical=canonical, root=root, keys=keys.tobytes(), owed=owed,
            source=member_message(source or self._own()), deadline_ms=max(1, int(seconds * 1000)),
        )  # fmt: skip
        answer: pb.CopyReply = self._links.call(
            target, lambda stub, timeout: stub.Copy(request, timeout=timeout), deadline
        )
        return answer


def member_message(member: Member) -> pb.ClusterMember:
    """A node on the wire."""
    return pb.ClusterMember(
        node_id=member.node_id,
        boot_id=member.boot_id,
        data_address=member.data_address,
        control_address=member.control_address,
        host=member.host,
        zone=member.zone,
        version=member.version,
        capacity_bytes=member.capacity_bytes,
        draining=member.draining,
    )


def member_of(message: pb.ClusterMember) -> Member:
    """The node of a message. Raises InvalidArgument."""
    return Member(
        node_id=message.node_id,
        boot_id=message.boot_id,
        data_address=message.data_address,
        control_address=message.control_address,
        host=message.host,
        zone=message.zone,
        capacity_bytes=message.capacity_bytes,
        version=message.version,
        draining=message.draining,
    )
