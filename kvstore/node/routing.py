"""Clients that are not on this machine: which nodes have a chain, for them to read there, and where new blocks go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvstore.core.keys import KeyArray
from kvstore.node.layout import Layout
from kvstore.tiers.store import BlockStore
from kvstore.v1 import data_pb2 as pb


@dataclass(frozen=True, slots=True)
class Holder:
    """Another node that can be read from now, and how many leading blocks of a chain it has."""

    node_id: bytes
    data_address: str
    blocks: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """New blocks that need a place. ``here``: leading blocks that this node has. ``together``: where they go must not
    depend on how full nodes are, because others put other parts of the same blocks."""

    here: int
    block_bytes: int
    host: str
    together: bool


@dataclass(frozen=True, slots=True)
class Goes:
    """Blocks ``first`` to ``end`` of a chain go to another node, or (None) here."""

    node: Holder | None
    first: int
    end: int


class Routes(Protocol):
    """What the cell says of chains, named whole, from block 0. Safe to use from several threads."""

    def holders(self, root: bytes, keys: KeyArray) -> list[Holder]:
        """Other nodes that have the first blocks, those with most of them first."""

    def place(self, root: bytes, keys: KeyArray, wanted: Wanted) -> list[Goes]:
        """Where those blocks go that nobody has; nowhere in particular: none."""

    def took(self, size: int) -> None:
        """Bytes of new blocks that are put here."""


class Router:
    """Answers ROUTE, and what a GET says of other nodes."""

    def __init__(self, store: BlockStore, routes: Routes, node: Callable[[], tuple[bytes, str]]) -> None:
        """``node``: id and data address of this one."""
        self._store = store
        self._node = node
        self.routes = routes

    def route(self, request: pb.RouteRequest, keys: KeyArray, layout: Layout) -> pb.RouteReply:
        spec = self._store.spec(request.namespace)
        view = self._store.namespace_at(spec.root)
        here = self._store.match(request.namespace, keys, layout.parts).blocks
        node_id, address = self._node()
        others = self._holders(spec.root, keys, layout, view.handle)
        reply = pb.RouteReply(generation=view.generation, rotation=view.rotation)
        reply.nodes.add(node_id=node_id, data_address=address, blocks=here)
        for one in others:
            reply.nodes.add(node_id=one.node_id, data_address=one.data_address, blocks=one.blocks)
        if request.place:
            size = sum(part.bytes for part in spec.parts)
            wanted = Wanted(here, size, request.host, len(layout.parts) < len(spec.parts))
            _add_runs(reply, self.routes.place(spec.root, keys, wanted))
        return reply

    def beyond(self, handle: int, keys: KeyArray, layout: Layout, here: int) -> list[pb.RouteNode]:
        """Other nodes that have more of a chain than this one."""
        if here == len(keys):
            return []
        root = self._store.spec(handle).root
        return [
            pb.RouteNode(node_id=one.node_id, data_address=one.data_address, blocks=one.blocks)
            for one in self._holders(root, keys, layout, handle)
            if one.blocks > here
        ]

    def _holders(self, root: bytes, keys: KeyArray, layout: Layout, handle: int) -> Sequence[Holder]:
        """None where a hit may have holes: it is not known of other nodes which."""
        specs = self._store.spec(handle).parts
        if not len(keys) or any(specs[part].kind != "prefix" for part in layout.parts):
            return []
        return self.routes.holders(root, keys)


def _add_runs(reply: pb.RouteReply, runs: Sequence[Goes]) -> None:
    places = {node.node_id: at for at, node in enumerate(reply.nodes)}
    for run in runs:
        at = 0
        if run.node is not None:
            if run.node.node_id not in places:
                places[run.node.node_id] = len(reply.nodes)
                reply.nodes.add(node_id=run.node.node_id, data_address=run.node.data_address)
            at = places[run.node.node_id]
        reply.runs.add(node=at, first=run.first, end=run.end)
