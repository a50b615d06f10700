"""Evictions of a whole cell: what somebody wants gone is gone on all nodes, or repair would bring it back."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import or_

from kvstore.cluster.cell import Cell
from kvstore.cluster.control_links import ControlLinks
from kvstore.cluster.holder_sets import nodes_of
from kvstore.cluster.member import Member
from kvstore.core.errors import KVStoreError, UnknownNamespace
from kvstore.core.keys import KeyArray
from kvstore.v1 import control_pb2 as pb

SECONDS = 0.5  # that the others may take: a caller waits for them
_AT_ONCE = 16  # nodes
_log = logging.getLogger(__name__)


class Evicting:
    """Safe to use from several threads."""

    def __init__(self, cell: Cell, links: ControlLinks) -> None:
        self._cell = cell
        self._links = links

    def elsewhere(self, root: bytes, keys: KeyArray) -> int:
        """Drops blocks on all other nodes that are known to have one of them; how many the one with most of them
        dropped. A node that cannot be reached keeps them."""
        mask = reduce(or_, self._cell.index.masks(root, keys).tolist(), 0)
        holders = [member for number in nodes_of(mask) if (member := self._cell.holder(number)) is not None]
        if not holders:
            return 0
        request = pb.ControlEvictRequest(root=root, keys=keys.tobytes(), peer=True)
        until = time.monotonic() + SECONDS
        with ThreadPoolExecutor(min(_AT_ONCE, len(holders)), "evict") as pool:
            return max(pool.map(lambda member: self._asked(member, request, until), holders))

    def _asked(self, member: Member, request: pb.ControlEvictRequest, deadline: float) -> int:
        try:
            reply = self._links.call(member, lambda stub, left: stub.Evict(request, timeout=left), deadline)
        except UnknownNamespace:
            return 0
        except KVStoreError as error:
            _log.warning("%s keeps blocks that were to be evicted: %s", member.control_address, error)
            return 0
        return int(reply.evicted)
