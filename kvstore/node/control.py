"""What the calls of the gRPC control plane do. Each raises KVStoreError; the server makes it a typed status."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import grpc

from kvstore.core.errors import InvalidArgument, Unavailable
from kvstore.core.keys import KeyArray
from kvstore.node.acks import Acks
from kvstore.node.cell import Caller, CellReads
from kvstore.node.checks import checked_first, checked_keys, checked_tier, deadline_of
from kvstore.node.control_put import answer, put
from kvstore.node.events import Events
from kvstore.node.grpc_errors import Patience
from kvstore.node.handlers import open_namespace
from kvstore.node.layout import Layout, layout_of
from kvstore.node.moving import Moving
from kvstore.node.rotating import Alone, Rotation
from kvstore.tiers.sessions import Session
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import NamespaceStat, NamespaceView, Prefetched
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import data_pb2
from kvstore.v1 import events_pb2 as events

_T = TypeVar("_T")
_GET_SECONDS = 30.0  # that a get waits for slower tiers and other nodes, when its caller sets no deadline
_SHARE = 0.9  # of a caller's time, that a put waits for its copies at most: the answer is to be in time


class Control:
    """Implements service kvstore.v1.Control. ``stat`` gives the node's own StatReply, ``cluster`` what it knows of its
    cell; None: it stands alone. ``waiting``: puts that may wait for their copies at a time: each holds a thread, and
    other nodes that copy to this one need some."""

    def __init__(
        self,
        store: BlockStore,
        events: Events,
        max_keys: int,
        peer_timeout: float,
        stat: Callable[[], pb.StatReply],
        cluster: Callable[[], pb.ClusterStatusReply] | None = None,
        waiting: int = 1,
    ) -> None:
        self._store = store
        self._events = events
        self._max_keys = max_keys
        self._peer_timeout = peer_timeout
        self._stat = stat
        self._cluster = cluster
        self.moving: Moving | None = None  # of a node that is one of a cell
        self.acks = Acks(waiting)
        self.rotation: Rotation = Alone(store)
        self.cell: CellReads | None = None  # of a node that fetches from others

    # --- namespaces -----------------------------------------------------------------------------------------

    def open_namespace(
        self, request: pb.ControlOpenNamespaceRequest, context: grpc.ServicerContext
    ) -> pb.NamespaceInfo:
        view = open_namespace(self._store, request.canonical, request.root, request.strict)
        known = next((one for one in self._store.namespaces() if one.root == view.root), None)
        info = namespace_info(known) if known else pb.NamespaceInfo(root=view.root, canonical=view.spec.canonical())
        info.created = view.created
        info.differs.extend(view.differs)
        return info

    def list_namespaces(
        self, request: pb.ListNamespacesRequest, context: grpc.ServicerContext
    ) -> pb.ListNamespacesReply:
        return pb.ListNamespacesReply(namespaces=[namespace_info(one) for one in self._store.namespaces()])

    def drop_namespace(self, request: pb.DropNamespaceRequest, context: grpc.ServicerContext) -> pb.DropNamespaceReply:
        blocks, leased = self._store.drop_namespace(_checked_root(request.root))
        return pb.DropNamespaceReply(blocks=blocks, leased=leased)

    def rotate_namespace(
        self, request: pb.RotateNamespaceRequest, context: grpc.ServicerContext
    ) -> pb.RotateNamespaceReply:
        root, left = _checked_root(request.root), context.time_remaining()
        if request.peer:
            done = self.rotation.ordered(root, request.generation, request.rotation)
        else:
            done = self.rotation.rotate(root, None if left is None else time.monotonic() + left * _SHARE)
        here = done.here
        return pb.RotateNamespaceReply(
            blocks=here.blocks, leased=here.leased, generation=here.generation, rotation=here.rotation,
            unreached=done.unreached,
        )  # fmt: skip

    def _view(self, root: bytes) -> NamespaceView:
        return self._store.namespace_at(_checked_root(root))

    # --- blocks ---------------------------------------------------------------------------------------------

    def match(self, request: pb.ControlMatchRequest, context: grpc.ServicerContext) -> pb.ControlMatchReply:
        view = self._view(request.root)
        layout = layout_of(view.spec, request.parts)
        keys = checked_keys(request.keys, self._max_keys, empty_ok=True)
        found = self._store.match(view.handle, keys, layout.parts, request.request_id)
        more = self.cell.match(Caller(), view.handle, keys, layout, found.blocks) if self.cell else 0
        reply = pb.ControlMatchReply(blocks=found.blocks + more, remote_blocks=more)
        if reply.blocks < len(keys):
            reply.miss = int(found.miss)  # type: ignore[assignment]
        return reply

    def put(self, requests: Iterable[pb.ControlPutRequest], context: grpc.ServicerContext) -> pb.ControlPutReply:
        with Patience(context, self._peer_timeout) as patience:
            done = put(self._store, self._view, self._max_keys, self.acks, _noted(requests, patience))
        left = context.time_remaining()
        deadline = None if left is None else time.monotonic() + left * _SHARE
        return answer(self.acks.stored(done.blocks, done.outcomes, done.ack, deadline, context.is_active))

    def get(self, request: pb.ControlGetRequest, context: grpc.ServicerContext) -> Iterator[pb.ControlGetReply]:
        view = self._view(request.root)
        layout = layout_of(view.spec, request.parts)
        keys = checked_keys(request.keys, self._max_keys, empty_ok=True)
        checked_first(request.first_block, len(keys))
        session = self._store.open_session(False, "grpc get")
        try:
            with Patience(context, self._peer_timeout) as patience:
                left = context.time_remaining()
                until = time.monotonic() + (_GET_SECONDS if left is None else left * _SHARE)
                yield from _noted(self._stream(session, view, layout, keys, request, until), patience)
        finally:
            self._store.close_session(session)

    def _stream(
        self,
        session: Session,
        view: NamespaceView,
        layout: Layout,
        keys: KeyArray,
        request: pb.ControlGetRequest,
        until: float,
    ) -> Iterator[pb.ControlGetReply]:
        """Leases all blocks first, so that the length announced is kept, and sends them one part a message. Those on
        NVMe and on other nodes are waited for."""
        ask = (
            session, view.handle, keys, request.first_block, layout.parts, request.request_id, 0, 0, 0, until, True
        )  # fmt: skip
        found = self._store.acquire(*ask)
        if self.cell is not None:
            whole = data_pb2.GetRequest(namespace=view.handle, first_block=request.first_block, whole=True)
            found = self.cell.further(Caller(), whole, keys, layout, until, found, ask)
        yield pb.ControlGetReply(blocks=found.blocks, miss=int(found.miss))  # type: ignore[arg-type]
        at, width = 0, len(layout.parts)
        for nth, offset in enumerate(found.offsets.tolist()):
            cut = layout.cuts[nth % width]
            data = bytes(self._store.dram.readable(offset, cut.length)) if offset else b""
            yield pb.ControlGetReply(data=data, checksums=found.checksums[at : at + cut.count].tobytes())
            at += cut.count

    def evict(self, request: pb.ControlEvictRequest, context: grpc.ServicerContext) -> pb.ControlEvictReply:
        view = self._view(request.root)
        evicted, leased, absent = self._store.evict(view.handle, checked_keys(request.keys, self._max_keys))
        return pb.ControlEvictReply(evicted=evicted, leased=leased, absent=absent)

    def pin(self, request: pb.PinRequest, context: grpc.ServicerContext) -> pb.PinReply:
        view = self._view(request.root)
        keys = checked_keys(request.keys, self._max_keys)
        return pb.PinReply(pinned=self._store.pin(view.handle, keys, request.hard, request.ttl_seconds))

    def unpin(self, request: pb.UnpinRequest, context: grpc.ServicerContext) -> pb.UnpinReply:
        view = self._view(request.root)
        return pb.UnpinReply(unpinned=self._store.unpin(view.handle, checked_keys(request.keys, self._max_keys)))

    def stat(self, request: pb.StatRequest, context: grpc.ServicerContext) -> pb.StatReply:
        return self._stat()

    def prefetch(self, request: pb.PrefetchRequest, context: grpc.ServicerContext) -> pb.PrefetchReply:
        """Owned by the node, not by a session: it goes on when this call has ended, until its deadline."""
        view = self._view(request.root)
        keys = checked_keys(request.keys, self._max_keys, empty_ok=True)
        tier, deadline = checked_tier(request.tier), deadline_of(request.deadline_ms)

        def start() -> Prefetched:
            return self._store.prefetch(None, view.handle, keys, tier, (), deadline)

        if self.cell is None:
            found = start()
        else:
            wanted = data_pb2.PrefetchKeysRequest(namespace=view.handle, tier=request.tier)
            found = self.cell.prefetch(Caller(), wanted, keys, layout_of(view.spec, ()), deadline, start)
        return pb.PrefetchReply(started=found.started, present=found.present, absent=found.absent)

    def cluster_status(self, request: pb.ClusterStatusRequest, context: grpc.ServicerContext) -> pb.ClusterStatusReply:
        if self._cluster is None:
            raise Unavailable(
                "this node stands alone: it runs with discovery = off; set discovery to make it part of a cell",
                key="discovery",
            )
        return self._cluster()

    # --- events ---------------------------------------------------------------------------------------------

    def watch_events(
        self, request: events.WatchEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[events.EventBatch]:
        return self._events.watch(request)

    # --- moving blocks between nodes ------------------------------------------------------------------------

    def replicate(self, request: pb.ReplicateRequest, context: grpc.ServicerContext) -> pb.ReplicateReply:
        return self._moving("Replicate").replicate(request)

    def migrate(self, request: pb.MigrateRequest, context: grpc.ServicerContext) -> pb.MigrateReply:
        return self._moving("Migrate").migrate(request)

    def drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> Iterator[pb.DrainProgress]:
        return self._moving("Drain").drain(request, context.is_active)

    def warm(self, request: pb.WarmRequest, context: grpc.ServicerContext) -> Iterator[pb.WarmProgress]:
        return self._moving("Warm").warm(request, context.is_active)

    def hottest(self, request: pb.HottestRequest, context: grpc.ServicerContext) -> Iterator[pb.HotChain]:
        return self._moving("Hottest").hottest(request)

    def copy(self, request: pb.CopyRequest, context: grpc.ServicerContext) -> pb.CopyReply:
        return self._moving("Copy").copy(request, context.is_active)

    def _moving(self, name: str) -> Moving:
        if self.moving is None:
            raise Unavailable(
                f"{name} concerns other nodes, and this one stands alone: set discovery to make it part of a cell",
                key="discovery",
            )
        return self.moving


def namespace_info(stat: NamespaceStat) -> pb.NamespaceInfo:
    """A namespace on the wire."""
    return pb.NamespaceInfo(
        root=stat.root,
        canonical=stat.canonical,
        blocks=stat.blocks,
        bytes=stat.bytes,
        parts=len(stat.spec.parts),
        idle_seconds=stat.idle_seconds,
        tiers=[pb.TierBytes(tier=tier + 1, bytes=size) for tier, size in stat.tier_bytes],  # type: ignore[arg-type]
        pinned_bytes=stat.pinned_bytes,
        generation=stat.generation,
    )


def _checked_root(root: bytes) -> bytes:
    if len(root) != 16:
        raise InvalidArgument(f"a namespace's root has 16 bytes, not {len(root)}", field="root", got=len(root))
    return root


def _noted(items: Iterable[_T], patience: Patience) -> Iterator[_T]:
    for item in items:
        patience.moved()
        yield item
        patience.moved()
