"""What each op of the data path does: checks everything first, then asks the store. A refused request has no effect."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import Message

from kvstore.core.errors import (
    InvalidArgument,
    ProtocolError,
    SessionLost,
    Unsupported,
)
from kvstore.core.namespace import root_of
from kvstore.node.acks import Acks, sliced
from kvstore.node.cell import Cell, CellReads
from kvstore.node.checks import (
    checked_first,
    checked_importance,
    checked_keys,
    checked_slice,
    checked_tier,
    deadline_of,
)
from kvstore.node.fabric import Fabrics
from kvstore.node.lane import Lane, Reply
from kvstore.node.layout import Layouts
from kvstore.node.metrics import source_of
from kvstore.node.network import NetworkOps, Reads
from kvstore.node.replies import common_version, descriptor_reply, match_reply, parsed
from kvstore.node.rotating import Alone, Rotation
from kvstore.node.routing import Router, Routes
from kvstore.node.sessions import NodeSession, Sessions
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import NamespaceView, Prefetched
from kvstore.transport.frame import Limits, Op
from kvstore.v1 import data_pb2 as pb
from kvstore.v1 import types_pb2 as types


@dataclass(frozen=True, slots=True)
class Greeting:
    """What HELLO tells a client about the node. Addresses are "host:port", empty when off."""

    node_id: bytes
    boot_id: bytes
    heartbeat_ms: int
    limits: Limits
    control_address: str
    http_address: str
    server: str
    data_address: str = ""


class Handlers:
    """All ops. Thread-safe: lanes call it from their own threads."""

    def __init__(self, store: BlockStore, sessions: Sessions, greeting: Callable[[], Greeting], limits: Limits) -> None:
        self._store = store
        self._sessions = sessions
        self._greeting = greeting
        self._limits = limits
        self._layouts = Layouts(store.spec)
        self.acks = Acks()
        self.rotation: Rotation = Alone(store)
        self._network = NetworkOps(store, limits, self._layouts, self.acks)
        self.cell: CellReads | None = None  # of a node that is one of a cell
        self._router: Router | None = None
        self._fabrics: Fabrics | None = None
        self._ops: dict[int, tuple[type[Message], Callable[[Lane, NodeSession, Any], Reply]]] = {
            Op.ATTACH: (pb.AttachRequest, self._attach),
            Op.OPEN_NAMESPACE: (pb.OpenNamespaceRequest, self._open_namespace),
            Op.MATCH: (pb.MatchRequest, self._match),
            Op.GET: (pb.GetRequest, self._get),
            Op.RELEASE: (pb.ReleaseRequest, self._release),
            Op.RESERVE: (pb.ReserveRequest, self._reserve),
            Op.WRITE: (pb.WriteRequest, self._write),
            Op.COMMIT: (pb.CommitRequest, self._commit),
            Op.ABORT: (pb.AbortRequest, self._abort),
            Op.PUT: (pb.PutRequest, self._put),
            Op.EVICT: (pb.EvictKeysRequest, self._evict),
            Op.PIN: (pb.PinKeysRequest, self._pin),
            Op.UNPIN: (pb.UnpinKeysRequest, self._unpin),
            Op.ROTATE: (pb.RotateRequest, self._rotate),
            Op.PREFETCH: (pb.PrefetchKeysRequest, self._prefetch),
            Op.ROUTE: (pb.RouteRequest, self._route),
            Op.FABRIC: (pb.FabricRequest, self._fabric),
            Op.PING: (pb.PingRequest, self._ping),
            Op.BYE: (pb.ByeRequest, self._bye),
        }

    def handle(self, lane: Lane, op: Op, message: bytes) -> Reply:
        """Serves one request. Raises KVStoreError."""
        if op is Op.HELLO:
            return self._hello(lane, parsed(pb.HelloRequest, message, op))
        session = lane.session
        if session is None:
            raise ProtocolError(f"the first frame of a connection must be HELLO, not {op.name}")
        if session.ended:
            raise SessionLost("this session has ended; open a new one")
        kind, run = self._ops[op]
        return run(lane, session, parsed(kind, message, op))

    def join(self, cell: Cell, wait: float) -> None:
        """From now on readers are also given what other nodes have; each waits ``wait`` seconds for it at most."""
        self.cell = self._network.cell = CellReads(self._store, cell, wait)

    def tell_reads(self, reads: Reads) -> None:
        """From now on this is told of what is sent over the network."""
        self._network.reads = reads

    def route_by(self, routes: Routes) -> None:
        """From now on clients are told which nodes have what."""
        self._router = self._network.router = Router(self._store, routes, self._who)

    def _who(self) -> tuple[bytes, str]:
        known = self._greeting()
        return known.node_id, known.data_address

    def offer(self, fabrics: Fabrics) -> None:
        """From now on sessions may have their bytes moved by these."""
        self._fabrics = self._network.fabrics = fabrics

    def after(self) -> None:
        """What need not be done before a reply is sent."""
        self._store.learn()

    # --- session --------------------------------------------------------------------------------------------

    def _hello(self, lane: Lane, request: pb.HelloRequest) -> Reply:
        if lane.session is not None:
            raise ProtocolError("HELLO came twice on one connection")
        version = common_version(request)
        if request.shared_memory and not lane.local:
            raise Unsupported("shared memory needs the unix socket; over TCP ask for a network session")
        self._check_transport(request)
        if request.join_session:
            session = self._sessions.join(lane, request.join_session)
        else:
            session = self._sessions.open(lane, request.shared_memory, request.client[:32], bool(request.node_id))
            session.transport = request.transport
        return Reply(self._hello_reply(lane, session, version).SerializeToString())

    def _check_transport(self, request: pb.HelloRequest) -> None:
        wanted = "shm" if request.shared_memory else request.transport
        if self._fabrics is not None:
            self._fabrics.check(wanted)
        elif request.transport:
            raise Unsupported(f"this node does not offer transport {wanted!r}")

    def _fabric(self, lane: Lane, session: NodeSession, request: pb.FabricRequest) -> Reply:
        if self._fabrics is None or not session.transport:
            raise Unsupported("FABRIC needs a session opened with the transport that it is for")
        return self._fabrics.join(lane, session, request)

    def _hello_reply(self, lane: Lane, session: NodeSession, version: int) -> pb.HelloReply:
        known = self._greeting()
        reply = pb.HelloReply(
            version=version,
            node_id=known.node_id,
            boot_id=known.boot_id,
            session=session.stored.token,
            heartbeat_ms=known.heartbeat_ms,
            max_frame_bytes=known.limits.max_frame_bytes,
            max_keys=known.limits.max_keys,
            control_address=lane.reachable(known.control_address),
            http_address=lane.reachable(known.http_address),
            server=known.server,
            routes=self._router is not None,
        )
        if self._fabrics is not None:
            reply.transports.extend(self._fabrics.offered)
            reply.rdma = self._fabrics.offer.rdma
        if session.shared_memory:
            memory = self._store.shared_memory()
            reply.session_index = session.stored.index
            reply.lock_dev, reply.lock_ino = memory.lock_device, memory.lock_inode
            reply.memory_bytes, reply.segment_bytes = memory.bytes, memory.segment_bytes
        return reply

    def _attach(self, lane: Lane, session: NodeSession, request: pb.AttachRequest) -> Reply:
        if not session.shared_memory:
            raise Unsupported("ATTACH needs a session opened with shared_memory")
        if request.step == pb.AttachRequest.STEP_LOCK_FILE:
            return descriptor_reply("lock", os.dup(self._store.shared_memory().lock_descriptor))
        if request.step not in (pb.AttachRequest.STEP_READ, pb.AttachRequest.STEP_WRITE):
            raise InvalidArgument(f"ATTACH knows no step {request.step}", field="step", got=request.step)
        if not self._store.session_locked(session.stored):
            raise SessionLost(
                f"byte {session.stored.index} of the lock file is not locked: lock it before memory is attached"
            )
        if request.step == pb.AttachRequest.STEP_READ:
            return descriptor_reply("memory-ro", self._store.open_reader())
        return descriptor_reply("memory-rw", self._store.open_writer())

    def _ping(self, lane: Lane, session: NodeSession, request: pb.PingRequest) -> Reply:
        return Reply(pb.PingReply(boot_id=self._greeting().boot_id).SerializeToString())

    def _bye(self, lane: Lane, session: NodeSession, request: pb.ByeRequest) -> Reply:
        self._sessions.end(lane, "bye")
        return Reply()

    # --- reading --------------------------------------------------------------------------------------------

    def _open_namespace(self, lane: Lane, session: NodeSession, request: pb.OpenNamespaceRequest) -> Reply:
        view = open_namespace(self._store, request.canonical, request.root, request.strict)
        reply = pb.OpenNamespaceReply(
            handle=view.handle,
            created=view.created,
            differs=view.differs,
            nearest_root=view.nearest_root,
            part_count=len(view.spec.parts),
        )
        return Reply(reply.SerializeToString())

    def _match(self, lane: Lane, session: NodeSession, request: pb.MatchRequest) -> Reply:
        layout = self._layouts.get(request.namespace, request.parts)
        keys = checked_keys(request.keys, self._limits.max_keys, empty_ok=True)
        found = self._store.match(request.namespace, keys, layout.parts, request.request_id)
        reply = match_reply(found)
        if self.cell is not None and (more := self.cell.match(session, request.namespace, keys, layout, found.blocks)):
            reply.remote_blocks, reply.blocks = more, found.blocks + more
            if reply.blocks == len(keys):
                reply.ClearField("miss")
        return Reply(reply.SerializeToString())

    def _get(self, lane: Lane, session: NodeSession, request: pb.GetRequest) -> Reply:
        layout = self._layouts.get(request.namespace, request.parts, request.range_offset, request.range_length)
        keys = checked_keys(request.keys, self._limits.max_keys, empty_ok=True)
        checked_first(request.first_block, len(keys))
        if not session.leases:
            return self._network.get(session, request, keys, layout)
        if request.release:
            self._store.release(session.stored, request.release)
        deadline = deadline_of(request.deadline_ms)
        ask = (
            session.stored, request.namespace, keys, request.first_block, layout.parts, request.request_id,
            request.max_blocks, request.range_offset, request.range_length, deadline, request.whole,
        )  # fmt: skip
        found = self._store.acquire(*ask)
        if request.HasField("generation"):
            found = self._network.of_generation(session, request, found)
        if self.cell is not None and not request.here:
            found = self.cell.further(session, request, keys, layout, deadline, found, ask)
        if self._fabrics is not None and session.transport == "nixl":
            self._fabrics.ready(found.offsets.tolist(), layout)
        reply = pb.GetReply(
            blocks=found.blocks,
            lease=found.lease,
            offsets=found.offsets.tolist(),
            generations=found.generations.tolist(),
            checksums=found.checksums.tobytes(),
            prefix_blocks=found.prefix_blocks,
        )
        reply.miss = found.miss  # type: ignore[assignment]
        given = (found.blocks - request.first_block) * layout.block_bytes if found.lease else 0
        return Reply(reply.SerializeToString(), given=given, tier=source_of(found))

    def _route(self, lane: Lane, session: NodeSession, request: pb.RouteRequest) -> Reply:
        if self._router is None:
            raise Unsupported("this node stands alone: it runs with discovery = off")
        layout = self._layouts.get(request.namespace, request.parts)
        keys = checked_keys(request.keys, self._limits.max_keys)
        return Reply(self._router.route(request, keys, layout).SerializeToString())

    def _release(self, lane: Lane, session: NodeSession, request: pb.ReleaseRequest) -> Reply:
        if session.leases:
            unbroken = self._store.release(session.stored, request.leases)
        else:  # a network GET gives its lease back itself
            unbroken = [False] * len(request.leases)
        return Reply(pb.ReleaseReply(unbroken=unbroken).SerializeToString())

    # --- writing --------------------------------------------------------------------------------------------

    def _reserve(self, lane: Lane, session: NodeSession, request: pb.ReserveRequest) -> Reply:
        ack, deadline = self.acks.check(request.ack), deadline_of(request.deadline_ms)
        layout = self._layouts.get(request.namespace, request.parts)
        chain = checked_slice(request.chain, self._limits.max_keys)
        importance = checked_importance(request.importance, len(chain.keys))
        self._network.bring(session, request, chain)
        reserved = self._store.reserve(
            session.stored,
            request.namespace,
            chain,
            layout.parts,
            request.request_id,
            importance,
            request.appended_tokens,
            ack,
            deadline,
        )
        self._network.took(reserved.outcomes, layout)
        if not session.shared_memory:
            self._network.opened(session, reserved, chain, layout)
        outcomes = reserved.outcomes
        if request.ack == types.ACK_LEVEL_REPLICATED:
            with lane.working():
                outcomes = self.acks.reserved(sliced(request.namespace, chain), outcomes, deadline, session.living)
        reply = pb.ReserveReply(reservation=reserved.id, outcomes=outcomes)
        if session.shared_memory:
            reply.offsets.extend(reserved.offsets.tolist())
            reply.generations.extend(reserved.generations.tolist())
        taken = reserved.outcomes.count(types.PUT_OUTCOME_STORED) * layout.block_bytes if session.shared_memory else 0
        return Reply(reply.SerializeToString(), taken=taken)

    def _write(self, lane: Lane, session: NodeSession, request: pb.WriteRequest) -> Reply:
        if session.shared_memory:
            raise Unsupported("a shared-memory session writes into the memory file itself, not with WRITE")
        return self._network.write(lane, session, request)

    def _commit(self, lane: Lane, session: NodeSession, request: pb.CommitRequest) -> Reply:
        ack, deadline = self.acks.check(request.ack), deadline_of(request.deadline_ms)
        if len(request.checksums) % 8:
            raise InvalidArgument(f"checksums take 8 bytes each, {len(request.checksums)} are no whole number of them")
        sums = np.frombuffer(request.checksums, dtype="<u8")
        blocks = self.acks.held(session.stored, request.reservation)
        if session.shared_memory:
            outcomes = self._store.commit(session.stored, request.reservation, sums, ack, deadline)
        else:
            outcomes = self._network.commit(session, request.reservation, sums, ack, deadline)
        if blocks is not None:
            with lane.working():
                outcomes = self.acks.stored(blocks, outcomes, request.ack, deadline, session.living)
        reply = pb.CommitReply(stored=outcomes.count(types.PUT_OUTCOME_STORED), outcomes=outcomes)
        return Reply(reply.SerializeToString(), damaged=outcomes.count(types.PUT_OUTCOME_CHECKSUM))

    def _abort(self, lane: Lane, session: NodeSession, request: pb.AbortRequest) -> Reply:
        if session.shared_memory:
            self._store.abort(session.stored, request.reservation)
        else:
            self._network.abort(session, request.reservation)
        return Reply()

    def _put(self, lane: Lane, session: NodeSession, request: pb.PutRequest) -> Reply:
        if session.shared_memory:
            raise Unsupported("a shared-memory session puts with RESERVE and COMMIT, not with PUT")
        return self._network.put(lane, session, request)

    def _evict(self, lane: Lane, session: NodeSession, request: pb.EvictKeysRequest) -> Reply:
        keys = checked_keys(request.keys, self._limits.max_keys)
        evicted, leased, absent = self._store.evict(request.namespace, keys)
        return Reply(pb.EvictKeysReply(evicted=evicted, leased=leased, absent=absent).SerializeToString())

    # --- ahead of reads -------------------------------------------------------------------------------------

    def _prefetch(self, lane: Lane, session: NodeSession, request: pb.PrefetchKeysRequest) -> Reply:
        layout = self._layouts.get(request.namespace, request.parts)
        keys = checked_keys(request.keys, self._limits.max_keys)
        tier, deadline = checked_tier(request.tier), deadline_of(request.deadline_ms)

        def start() -> Prefetched:
            return self._store.prefetch(session.stored, request.namespace, keys, tier, layout.parts, deadline)

        found = start() if self.cell is None else self.cell.prefetch(session, request, keys, layout, deadline, start)
        reply = pb.PrefetchKeysReply(started=found.started, present=found.present, absent=found.absent)
        return Reply(reply.SerializeToString())

    # --- keeping and voiding --------------------------------------------------------------------------------

    def _pin(self, lane: Lane, session: NodeSession, request: pb.PinKeysRequest) -> Reply:
        keys = checked_keys(request.keys, self._limits.max_keys)
        pinned = self._store.pin(request.namespace, keys, request.hard, request.ttl_seconds)
        return Reply(pb.PinKeysReply(pinned=pinned).SerializeToString())

    def _unpin(self, lane: Lane, session: NodeSession, request: pb.UnpinKeysRequest) -> Reply:
        keys = checked_keys(request.keys, self._limits.max_keys)
        return Reply(pb.UnpinKeysReply(unpinned=self._store.unpin(request.namespace, keys)).SerializeToString())

    def _rotate(self, lane: Lane, session: NodeSession, request: pb.RotateRequest) -> Reply:
        with lane.working():
            done = self.rotation.rotate(self._store.spec(request.namespace).root, deadline_of(request.deadline_ms))
        here, away = done.here, done.unreached
        reply = pb.RotateReply(
            blocks=here.blocks, leased=here.leased, generation=here.generation, rotation=here.rotation, unreached=away
        )
        return Reply(reply.SerializeToString())


def open_namespace(store: BlockStore, canonical: bytes, root: bytes, strict: bool) -> NamespaceView:
    """Opens a namespace; its root must be the one the caller computed, or the two would disagree on every key."""
    if root and root != root_of(canonical):
        raise InvalidArgument(
            f"the namespace's root is {root_of(canonical).hex()}, the request says {root.hex()}",
            field="root",
            got=root.hex(),
        )
    return store.open_namespace(canonical, strict)
