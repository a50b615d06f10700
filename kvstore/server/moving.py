"""All that a node does about blocks moving between nodes, for its control plane."""

from __future__ import annotations

from collections.abc import Iterator

from kvstore.node.moving import Alive
from kvstore.server.copying import Copying
from kvstore.server.draining import Draining
from kvstore.server.replicating import Replicating
from kvstore.server.warming import Warming, hottest
from kvstore.tiers.store import BlockStore
from kvstore.v1 import control_pb2 as pb


class Moves:
    """A ``kvstore.node.moving.Moving``."""

    def __init__(
        self, store: BlockStore, copying: Copying, replicating: Replicating, draining: Draining, warming: Warming
    ) -> None:
        self._store = store
        self._copying = copying
        self._replicating = replicating
        self._draining = draining
        self._warming = warming

    def replicate(self, request: pb.ReplicateRequest) -> pb.ReplicateReply:
        return self._replicating.replicate(request)

    def migrate(self, request: pb.MigrateRequest) -> pb.MigrateReply:
        return self._replicating.migrate(request)

    def drain(self, request: pb.DrainRequest, alive: Alive) -> Iterator[pb.DrainProgress]:
        return self._draining.drain(request, alive)

    def warm(self, request: pb.WarmRequest, alive: Alive) -> Iterator[pb.WarmProgress]:
        return self._warming.warm(request, alive)

    def hottest(self, request: pb.HottestRequest) -> Iterator[pb.HotChain]:
        return hottest(self._store, request)

    def copy(self, request: pb.CopyRequest, alive: Alive) -> pb.CopyReply:
        return self._copying.copy(request, alive)
