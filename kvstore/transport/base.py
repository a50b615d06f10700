"""What every transport offers: one session with one node, and batches that go through it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kvstore.core.errors import (
    DeadlineExceeded,
    KVStoreError,
    NotServed,
    ProtocolError,
    SessionLost,
    Unavailable,
    VersionMismatch,
)
from kvstore.transport.batch import DEADLINE, GetCall, GetResult, PutCall, Targets, milliseconds, parsed
from kvstore.transport.frame import MIN_VERSION, VERSION, Limits, Op
from kvstore.transport.late import Silence
from kvstore.transport.plan import Plan
from kvstore.transport.pool import WirePool
from kvstore.transport.reaper import REAPER
from kvstore.transport.wire import Address, Wire
from kvstore.v1 import data_pb2 as pb

_ABORT_TIMEOUT = 1.0
_SOON = 0.05  # seconds that a frame without reply may wait for a connection


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport can do; the client chooses by these, not by name."""

    name: str
    same_host: bool  # needs the node on this host
    zero_copy: bool  # borrowed views lie in the node's own memory
    heartbeat: bool  # the node learns of our end by silence, so an idle session must send something
    fabric: bool = False  # bytes move by a fabric library; the node is told which


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What the node said of itself when the session began."""

    node_id: bytes
    boot_id: bytes
    control_address: str
    http_address: str
    server: str
    heartbeat_seconds: float
    max_keys: int
    max_frame_bytes: int


class Borrowed(ABC):
    """Checked parts that may be looked at until :meth:`give_back` and the death of every view."""

    result: GetResult
    views: list[memoryview]

    @abstractmethod
    def give_back(self) -> None:
        """The borrower's block has ended."""


class Reservation(ABC):
    """Blocks being written range by range. ``outcomes``: one PutOutcome a key; only STORED ones take bytes."""

    outcomes: bytes

    @abstractmethod
    def write(self, plan: Plan, sources: Targets, deadline: float) -> None:
        """Bytes of ``plan``'s range of every block of the call (those not reserved are skipped)."""

    @abstractmethod
    def commit(self, deadline: float) -> bytes:
        """Makes the blocks visible; outcomes as of now, one a key. Raises InvalidArgument when bytes are missing."""

    @abstractmethod
    def abort(self) -> None:
        """Gives the slots back."""


class Transport(ABC):
    """One session with one node: its connections and its namespace handles.

    ``lost`` once no call may use it any more: the next one opens a new session. What is still in progress or
    borrowed holds a pin; only when the last pin is gone may the node take the session's slots back.
    """

    capabilities: ClassVar[Capabilities]
    wire_type: ClassVar[type[Wire]] = Wire

    def __init__(
        self, address: Address, deadline: float, *, max_wires: int = 4, client: str = "kvstore", node_id: bytes = b""
    ) -> None:
        """``node_id``: of a node that fetches for its own readers, so that what it asks for goes no further."""
        self.address = address
        self.handles: dict[bytes, int] = {}
        self.lost = False
        self._client = client
        self._node_id = node_id
        self._guard = threading.Lock()
        self._pins = 0
        self.silence = Silence()
        self._unwanted: list[int] = []  # reservations to be given back
        self._last_late = 0.0
        self._ended = False
        wire = self.wire_type.connect(address, deadline)
        try:
            self._begin(wire, deadline)
        except BaseException:
            wire.close()
            raise
        self.pool = WirePool(wire, self._further_wire, max_wires)

    def _begin(self, wire: Wire, deadline: float) -> None:
        hello = self._hello(wire, deadline, b"")
        self.hello = hello
        self.node = NodeInfo(
            hello.node_id,
            hello.boot_id,
            hello.control_address,
            hello.http_address,
            hello.server,
            hello.heartbeat_ms / 1000,
            hello.max_keys,
            hello.max_frame_bytes,
        )

    def _hello(self, wire: Wire, deadline: float, join: bytes) -> pb.HelloReply:
        request = pb.HelloRequest(
            version=VERSION,
            min_version=MIN_VERSION,
            client=self._client,
            shared_memory=self.capabilities.zero_copy,
            join_session=join,
            node_id=self._node_id,
            transport=self.capabilities.name if self.capabilities.fabric else "",
        )
        reply = parsed(pb.HelloReply(), wire.request(Op.HELLO, request.SerializeToString(), deadline))
        if not MIN_VERSION <= reply.version <= VERSION:
            raise VersionMismatch(
                f"the node at {self.address} chose protocol version {reply.version}, this client speaks "
                f"{MIN_VERSION} to {VERSION}; run versions of kvstore that are at most one protocol version apart",
                got=reply.version,
                want=f"{MIN_VERSION}..{VERSION}",
            )
        wire.limits = Limits(max_frame_bytes=max(reply.max_frame_bytes, 1 << 20))
        return reply

    def _further_wire(self, deadline: float) -> Wire:
        began, wire = time.monotonic(), None
        try:
            wire = self.wire_type.connect(self.address, deadline)
            self._hello(wire, deadline, self.hello.session)
        except BaseException as error:
            if wire is not None:
                wire.close()
            if isinstance(error, DeadlineExceeded):
                self._was_late(began)
            raise
        return wire

    # --- calls -------------------------------------------------------------------------------------------

    def call(self, op: Op, message: bytes, deadline: float) -> bytes:
        """One request without payload. Raises the node's error, Unavailable or DeadlineExceeded."""
        wire = self.pool.take(deadline)
        try:
            return wire.request(op, message, deadline)
        except SessionLost:
            self.retire()
            raise
        finally:
            self.give(wire)

    def give(self, wire: Wire) -> None:
        """Gives a connection back. One whose reply is late is kept until that has come. Another broken one may leave
        behind a lease or reservation that nobody knows of, so the session ends with it and the node takes it back."""
        if wire.broken and (wire.cut or wire.late is not None):
            self._was_late(wire.moved)
            if wire.late is not None and not self.lost and self.pool.set_aside(wire):
                REAPER.tend(self)
                return
        broken = wire.broken and not wire.cut
        self.pool.give(wire)
        if broken:
            self.retire()

    def _was_late(self, began: float) -> None:
        """A call waited in vain. That alone costs only this call; a node that answers nothing at all is given up."""
        self._last_late = time.monotonic()
        self.silence.waited(began, self.pool.answered)
        if self.silence.hung:
            self.retire()

    def _read_overdue(self) -> bool:
        """Takes replies that came too late, and gives back what they bring. Whether there is more to do."""
        for wire in self.pool.overdue():
            try:
                found = wire.overdue(time.monotonic() + _SOON)
                if found is not None:
                    self._came_late(*found)
            except (NotServed, ProtocolError, OSError, ValueError):  # what it would have brought goes with the session
                self.pool.take_back(wire)
                self.retire()
                continue
            if found is None:
                if not self.pool.set_aside(wire):
                    wire.close()
                    self.retire()
                continue
            self.pool.take_back(wire)
        while self._unwanted and not self.lost:
            request = pb.AbortRequest(reservation=self._unwanted.pop())
            if not self.notify(Op.ABORT, request.SerializeToString()):
                self.retire()
        return self.pool.waits and not self.lost

    def _came_late(self, op: Op, message: bytes) -> None:
        if op is Op.RESERVE and (reservation := parsed(pb.ReserveReply(), message).reservation):
            self._unwanted.append(reservation)

    def notify(self, op: Op, message: bytes) -> bool:
        """Sends a frame that gets no reply, if there is a connection for it soon. Whether it was sent."""
        try:
            wire = self.pool.take(time.monotonic() + _SOON)
        except KVStoreError:
            return False
        sent = wire.one_way(op, message)
        self.give(wire)
        return sent

    def open_namespace(self, canonical: bytes, root: bytes, strict: bool, deadline: float) -> pb.OpenNamespaceReply:
        """Opens a namespace and remembers its handle for the life of the session."""
        request = pb.OpenNamespaceRequest(canonical=canonical, root=root, strict=strict)
        data = self.call(Op.OPEN_NAMESPACE, request.SerializeToString(), deadline)
        reply = parsed(pb.OpenNamespaceReply(), data)
        self.handles[root] = reply.handle
        return reply

    def match(self, call: GetCall, deadline: float) -> pb.MatchReply:
        """Longest cached prefix; takes no lease."""
        request = pb.MatchRequest(
            namespace=call.handle, keys=call.keys, parts=call.plan.parts, request_id=call.request_id
        )
        return parsed(pb.MatchReply(), self.call(Op.MATCH, request.SerializeToString(), deadline))

    def evict(self, handle: int, keys: bytes, deadline: float) -> pb.EvictKeysReply:
        """Drops blocks; an inner block takes what follows it along."""
        self._settle()
        request = pb.EvictKeysRequest(namespace=handle, keys=keys)
        return parsed(pb.EvictKeysReply(), self.call(Op.EVICT, request.SerializeToString(), deadline))

    def pin_keys(self, handle: int, keys: bytes, hard: bool, ttl: float, deadline: float) -> int:
        """Pins blocks; how many. Raises NoSpace past the node's bounds."""
        request = pb.PinKeysRequest(namespace=handle, keys=keys, hard=hard, ttl_seconds=ttl)
        return parsed(pb.PinKeysReply(), self.call(Op.PIN, request.SerializeToString(), deadline)).pinned

    def unpin_keys(self, handle: int, keys: bytes, deadline: float) -> int:
        """Lifts pins; how many."""
        request = pb.UnpinKeysRequest(namespace=handle, keys=keys)
        return parsed(pb.UnpinKeysReply(), self.call(Op.UNPIN, request.SerializeToString(), deadline)).unpinned

    def prefetch(
        self, handle: int, keys: bytes, tier: int, parts: Sequence[int], start_by: float | None, deadline: float
    ) -> pb.PrefetchKeysReply:
        """Starts bringing blocks to a tier; what has not started ``start_by`` (time.monotonic) is dropped."""
        request = pb.PrefetchKeysRequest(namespace=handle, keys=keys, parts=parts)
        request.tier = tier  # type: ignore[assignment]
        if start_by is not None:
            request.deadline_ms = max(1, int((start_by - time.monotonic()) * 1000))
        return parsed(pb.PrefetchKeysReply(), self.call(Op.PREFETCH, request.SerializeToString(), deadline))

    def route(self, request: pb.RouteRequest, deadline: float) -> pb.RouteReply:
        """Who has how much of a chain, and where its new blocks go."""
        return parsed(pb.RouteReply(), self.call(Op.ROUTE, request.SerializeToString(), deadline))

    def rotate(self, handle: int, deadline: float) -> pb.RotateReply:
        """Voids all that a namespace holds."""
        request = pb.RotateRequest(namespace=handle, deadline_ms=milliseconds(deadline))
        return parsed(pb.RotateReply(), self.call(Op.ROTATE, request.SerializeToString(), deadline))

    def abort(self, reservation: int) -> None:
        """Gives a reservation back; if that cannot be said, by ending the session."""
        if self.lost:
            return
        if time.monotonic() - self._last_late < _ABORT_TIMEOUT:  # the caller has waited enough
            self._unwanted.append(reservation)
            REAPER.tend(self)
            return
        request = pb.AbortRequest(reservation=reservation)
        try:
            self.call(Op.ABORT, request.SerializeToString(), time.monotonic() + _ABORT_TIMEOUT)
        except KVStoreError:
            self.retire()

    def give_lease_back(self, lease: int) -> None:  # noqa: B027  only some transports hold leases
        """The pieces of a lease are no longer looked at; lets go of the pin taken for it."""

    def tick(self) -> bool:
        """Called by the reaper while it was asked to: gives back what is due. Whether it should come again."""
        return self._read_overdue()

    def _settle(self) -> None:  # noqa: B027  only some transports hold leases
        """Gives back what is due, before a request that may depend on it."""

    def ping(self, deadline: float) -> None:
        """Keeps a network session alive: sends something on an idle connection."""
        wire = self.pool.take_idle()
        if wire is None:
            return
        try:
            wire.request(Op.PING, b"", deadline)
        finally:
            self.give(wire)

    def get(self, call: GetCall, into: Targets, deadline: float) -> GetResult:
        """Fills ``into`` with the longest prefix from block ``call.first`` on, checked. One request, or as many as the
        bounds of the node on leases and frames ask for."""
        result = self._get(call, into, deadline)
        holes = result.holes
        while result.more:
            done = (result.blocks - call.first) * len(call.plan.pieces)
            further = replace(call, first=result.blocks, release=result.lease)
            try:
                result = self._get(further, into[done:], deadline)
            except DeadlineExceeded:
                return GetResult(further.first, False, DEADLINE, holes=holes)
            holes += result.holes
        return replace(result, holes=holes) if holes else result

    @abstractmethod
    def _get(self, call: GetCall, into: Targets, deadline: float) -> GetResult:
        """One request of :meth:`get`. A lease in the result goes back with the next one."""

    @abstractmethod
    def borrow(self, call: GetCall, deadline: float) -> Borrowed:
        """Views of the longest prefix from block ``call.first`` on, checked."""

    @abstractmethod
    def put(self, call: PutCall, sources: Targets, deadline: float) -> bytes:
        """Stores blocks; one PutOutcome byte a key."""

    @abstractmethod
    def reserve(self, call: PutCall, deadline: float) -> Reservation:
        """Begins a put that is written range by range."""

    # --- life --------------------------------------------------------------------------------------------

    def pin(self) -> None:
        """Something of the session is in use: memory being copied, a borrowed view."""
        with self._guard:
            if self._ended:
                raise Unavailable("the session has ended")
            self._pins += 1

    def unpin(self) -> None:
        with self._guard:
            self._pins -= 1
        self._end_if_unused()

    def retire(self) -> None:
        """No further calls; calls in progress on other connections finish."""
        if not self.lost:
            self.lost = True
            for wire in self.pool.close(interrupt=False):
                wire.close()
        self._end_if_unused()

    def close(self) -> None:
        """Ends the session; calls in progress end with Unavailable."""
        self.lost = True
        for nth, wire in enumerate(self.pool.close(interrupt=True)):
            if not nth:
                wire.one_way(Op.BYE, b"")
            wire.close()
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        with self._guard:
            if not self.lost or self._pins or self._ended:
                return
            self._ended = True
        self._released()

    def _released(self) -> None:  # noqa: B027  transports that hold nothing have nothing to let go
        """The node may take everything back that this session held."""
