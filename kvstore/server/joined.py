"""A node as one of a cell: everything that concerns other nodes, made and ended together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvstore.cluster.control_links import ControlLinks
from kvstore.cluster.copier import Copier
from kvstore.node.acks import Acks
from kvstore.node.config import NodeConfig
from kvstore.node.handlers import Handlers
from kvstore.node.report import Facts
from kvstore.server.cell import cell_metrics, open_cell, status_reply
from kvstore.server.copying import Copying
from kvstore.server.draining import Draining
from kvstore.server.fetching import Fetching
from kvstore.server.keeping import Keeping
from kvstore.server.moving import Moves
from kvstore.server.replicating import Replicating
from kvstore.server.rotating import Rotating
from kvstore.server.routing import CellRoutes
from kvstore.server.warming import Warming
from kvstore.tiers.store import BlockStore
from kvstore.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Joined:
    """``start`` once the node can be reached, ``stop`` before its servers stop. Raises ConfigError."""

    def __init__(self, config: NodeConfig, facts: Facts, store: BlockStore, handlers: Handlers) -> None:
        self.cell = open_cell(config, facts, store.journal.room()[0])
        self.links = ControlLinks()
        handlers.route_by(CellRoutes(store, self.cell))
        self.rotating = handlers.rotation = Rotating(store, self.cell, self.links)
        self.copier = Copier(lambda: self.cell.member, self.links)
        self._discovery = config.discovery
        self._fetching = Fetching(store, self.cell, handlers, config.fetch_wait) if config.fetch == "on" else None
        fetcher = self._fetching.fetcher if self._fetching else None
        self._keeping = Keeping(store, self.cell, self.copier, config.replicas, config.repair_rate)
        self._keeping.join(handlers.acks)
        handlers.tell_reads(self._keeping.warmth.read)
        self.moves = Moves(
            store,
            Copying(store, self.cell, fetcher, config.max_keys),
            Replicating(store, self.cell, self.copier, config.max_keys),
            Draining(store, self.cell, self.copier, config.replicas),
            Warming(store, self.cell, self.links, fetcher),
        )

    def start(self) -> None:
        """This node must be reachable by now."""
        self.rotating.start()
        self.cell.start()
        self._keeping.start()

    def keep(self, acks: Acks) -> None:
        """What is put over these is copied to other nodes, if there are to be copies."""
        self._keeping.join(acks)

    def stop(self) -> None:
        """Readers that wait for other nodes get what is here, writers are told what is true."""
        self._keeping.stop()
        self.cell.stop()
        self.links.close()
        self.rotating.stop()
        if self._fetching:
            self._fetching.stop()

    def status(self) -> pb.ClusterStatusReply:
        """The cell as this node sees it."""
        return status_reply(self.cell, self._discovery)

    def metrics(self) -> Iterator[Metric]:
        yield from cell_metrics(self.cell)
        if self._fetching is not None:
            yield from self._fetching.metrics()
        yield from self._keeping.metrics()
