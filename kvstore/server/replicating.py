"""Serves Replicate and Migrate: a chain is copied to other nodes, and dropped here when it is to move."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kvstore.cluster.cell import Cell
from kvstore.cluster.copier import Copier
from kvstore.cluster.member import Member
from kvstore.core.errors import InvalidArgument, KVStoreError, NoSpace, Unavailable, UnknownNamespace
from kvstore.core.keys import KeyArray
from kvstore.node.checks import checked_keys
from kvstore.server.targets import best_holder, named, next_targets
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import NamespaceView
from kvstore.v1 import control_pb2 as pb

_SECONDS = 30.0  # that a call may take when it does not say
_MOST_COPIES = 16


class Replicating:
    """Safe to use from several threads."""

    def __init__(self, store: BlockStore, cell: Cell, copier: Copier, max_keys: int) -> None:
        self._store = store
        self._cell = cell
        self._copier = copier
        self._max_keys = max_keys

    def replicate(self, request: pb.ReplicateRequest) -> pb.ReplicateReply:
        """Raises KVStoreError."""
        if not 0 <= request.copies <= _MOST_COPIES:
            raise InvalidArgument(f"copies is {request.copies}, not 1 to {_MOST_COPIES}", field="copies")
        view, keys, deadline = self._asked(request)
        targets = named(self._cell, request.to) or self._placed(view, keys, request.copies)
        source = self._source(view, keys)
        return pb.ReplicateReply(
            started=len(targets), results=self._copied(targets, source, view, keys, deadline)
        )  # fmt: skip

    def migrate(self, request: pb.MigrateRequest) -> pb.MigrateReply:
        """Raises KVStoreError."""
        view, keys, deadline = self._asked(request)
        here = self._store.chains.present(view.handle, keys)
        if not here:
            raise Unavailable("this node has no block of that chain; ask a node that has it (kvstore cluster status)")
        keys = keys[:here]
        targets = named(self._cell, request.to) or self._placed(view, keys, 1) or self._holding(view, keys)
        results = self._copied(targets, None, view, keys, deadline)
        moved = min((one.blocks for one in results), default=0)
        dropped = self._store.chains.drop(view.handle, keys[:moved]) if moved == here else 0
        return pb.MigrateReply(moved=moved, dropped=dropped, results=results)

    def _asked(self, request: pb.ReplicateRequest | pb.MigrateRequest) -> tuple[NamespaceView, KeyArray, float]:
        keys = checked_keys(request.keys, self._max_keys)
        deadline = time.monotonic() + (request.deadline_ms / 1000 or _SECONDS)
        try:
            return self._store.namespace_at(request.root), keys, deadline
        except UnknownNamespace:
            raise UnknownNamespace(
                f"this node knows no namespace of root {request.root.hex()}; ask a node that holds blocks of it",
                root=request.root.hex(),
            ) from None

    def _placed(self, view: NamespaceView, keys: KeyArray, copies: int) -> list[Member]:
        """Where ``copies`` other nodes are to have it (0: one more than have it now)."""
        found = self._cell.lookup(view.root, keys)
        wanted = copies or 1 + sum(prefix >= len(keys) for prefix in found.prefix.values())
        targets, missing = next_targets(self._cell, found, keys[-1].tobytes(), len(keys), wanted)
        if copies and len(targets) < missing:
            short = missing - len(targets)
            raise NoSpace(
                f"{copies} other nodes are to have it; there are {short} too few that are live and take blocks"
            )
        return targets

    def _holding(self, view: NamespaceView, keys: KeyArray) -> list[Member]:
        """Nodes that say they have it all: asked once more, they confirm it."""
        found = self._cell.lookup(view.root, keys)
        full = [number for number, prefix in found.prefix.items() if prefix >= len(keys)]
        return [member for number in full[:1] if (member := self._cell.holder(number)) is not None]

    def _source(self, view: NamespaceView, keys: KeyArray) -> Member | None:
        """None: this node, which has at least as much of the chain as any other."""
        found = self._cell.lookup(view.root, keys)
        here = self._store.chains.present(view.handle, keys)
        if not here and not found.prefix:
            raise Unavailable("no node of the cell has any block of that chain")
        return best_holder(self._cell, found) if max(found.prefix.values(), default=0) > here else None

    def _copied(
        self, targets: Sequence[Member], source: Member | None, view: NamespaceView, keys: KeyArray, deadline: float
    ) -> list[pb.CopyResult]:
        if not targets:
            return []

        def one(target: Member) -> pb.CopyResult:
            name = target.node_id.hex()
            try:
                origin = None if source is None or source.node_id == target.node_id else source
                reply = self._copier.copy(target, view.spec.canonical(), view.root, keys, True, deadline, origin)
            except KVStoreError as error:
                return pb.CopyResult(node=name, trouble=str(error))
            short = "" if reply.blocks == len(keys) else f"it has {reply.blocks} of {len(keys)} blocks"
            return pb.CopyResult(node=name, blocks=reply.blocks, trouble=short)

        with ThreadPoolExecutor(len(targets), thread_name_prefix="replicate") as pool:
            return list(pool.map(one, targets))
