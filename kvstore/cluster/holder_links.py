"""Sessions with the nodes that blocks are fetched from, and which of these nodes are left alone for a while."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from kvstore.cluster.member import Member, split_address
from kvstore.core.errors import DeadlineExceeded, Unavailable
from kvstore.transport.tcp import TcpTransport
from kvstore.transport.wire import Address

FIRST_BACKOFF = 0.2
SLOW_BACKOFF = 1.0  # of one that does not answer: finding that out again makes readers wait
LONGEST_BACKOFF = 10.0
_KEPT = 512  # links; a cell has 254 other nodes at most


@dataclass(slots=True)
class _Link:
    address: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    transport: TcpTransport | None = None
    until: float = 0.0  # not asked before
    delay: float = 0.0
    refused: dict[bytes, float] = field(default_factory=dict)  # namespaces it does not serve, and until when

    @property
    def alive(self) -> bool:
        return self.transport is not None and not self.transport.lost


class HolderLinks:
    """Safe to use from several threads. ``node_id``: of this node; ``wires``: connections to each holder at most."""

    def __init__(self, node_id: bytes, wires: int) -> None:
        self._node_id = node_id
        self._wires = wires
        self._lock = threading.Lock()
        self._links: dict[bytes, _Link] = {}
        self._closed = False

    def usable(self, source: Member, root: bytes) -> bool:
        """Whether it may be asked for blocks of a namespace now."""
        link = self._links.get(source.node_id)
        if link is None or link.address != source.data_address:
            return True
        now = time.monotonic()
        return link.until <= now and link.refused.get(root, 0.0) <= now

    def session(self, source: Member, deadline: float) -> tuple[TcpTransport, bool]:
        """The session with a node, and whether it is new. Raises NotServed, ProtocolError."""
        link = self._link(source)
        if not link.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise DeadlineExceeded(f"another thread was still connecting to {source.data_address} at the deadline")
        try:
            if link.transport is not None and link.alive:
                return link.transport, False
            link.transport = self._connect(source, deadline)
            return link.transport, True
        finally:
            link.lock.release()

    def _link(self, source: Member) -> _Link:
        with self._lock:
            if self._closed:
                raise Unavailable("this node stops")
            link = self._links.get(source.node_id)
            if link is not None and link.address == source.data_address:
                return link
            former, link = link, _Link(source.data_address)
            if len(self._links) >= _KEPT:  # of nodes that have come and gone
                self._links = {node_id: one for node_id, one in self._links.items() if one.alive}
            self._links[source.node_id] = link
        _close(former)
        return link

    def _connect(self, source: Member, deadline: float) -> TcpTransport:
        host, port = split_address(source.data_address)
        found = TcpTransport(
            Address(host=host, port=port),
            deadline,
            max_wires=self._wires,
            client=f"kvstore node {self._node_id.hex()[:8]}",
            node_id=self._node_id,
        )
        if found.node.node_id != source.node_id or self._closed:
            found.close()
            raise Unavailable(
                f"node {found.node.node_id.hex()} answers at {source.data_address}, where {source.node_id.hex()} was "
                "expected"
            )
        return found

    # --- how they do ---------------------------------------------------------------------------------------

    def worked(self, source: Member) -> None:
        """It has answered."""
        link = self._links.get(source.node_id)
        if link is not None:
            link.delay = 0.0

    def failed(self, source: Member, slow: bool = False) -> None:
        """It did not answer (``slow``: in time), or with bytes that fail their check: it is left alone for a while,
        longer each time."""
        link = self._links.get(source.node_id)
        now = time.monotonic()
        if link is not None and link.until <= now:  # several batches that fail together count once
            first = SLOW_BACKOFF if slow else FIRST_BACKOFF
            link.delay = min(LONGEST_BACKOFF, max(first, 2 * link.delay))
            link.until = now + link.delay

    def refused(self, source: Member, root: bytes) -> None:
        """It answers, but does not serve this namespace: it is not asked for it again soon."""
        link = self._links.get(source.node_id)
        if link is not None:
            now = time.monotonic()
            kept = {other: until for other, until in list(link.refused.items()) if until > now}
            link.refused = {**kept, root: now + LONGEST_BACKOFF}

    def close(self) -> None:
        """Ends all sessions, now: who waits for one gets Unavailable."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
        for link in links:
            _close(link)


def _close(link: _Link | None) -> None:
    if link is not None and link.transport is not None:
        link.transport.close()
