"""The composition root: wires store, servers and metrics into one node."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import kvstore
from kvstore.core.errors import Unavailable
from kvstore.node import capacity, identity
from kvstore.node.config import NodeConfig
from kvstore.node.data_server import DataServer
from kvstore.node.events import Events
from kvstore.node.fabric import Fabrics
from kvstore.node.handlers import Greeting, Handlers
from kvstore.node.health import Readiness, health_page, probe_routes
from kvstore.node.http_server import HttpServer, Page, json_page
from kvstore.node.listen import port_error
from kvstore.node.metrics import Collector, NodeMetrics, node_metrics, render, store_metrics
from kvstore.node.numa import bind_memory
from kvstore.node.offering import numa_nodes, offer_of
from kvstore.node.report import Facts, stat_reply
from kvstore.node.sessions import Sessions
from kvstore.node.status import StatusPage
from kvstore.node.units import show_size
from kvstore.server.leftovers import listed
from kvstore.tiers import memopen
from kvstore.tiers.layout import Layout
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import StoreConfig
from kvstore.transport.frame import Limits
from kvstore.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kvstore.node.control import Control
    from kvstore.node.control_server import ControlServer
    from kvstore.server.joined import Joined

_log = logging.getLogger("kvstore.node")
SERVER = f"kvstore {kvstore.__version__}"


def check(config: NodeConfig) -> None:
    """What can be said of a configuration without starting anything. Raises ConfigError."""
    node_id = identity.peek(config.data_dir) or bytes(16)
    path = identity.memory_path(config, node_id)
    capacity.check_memory_file(path)
    room = capacity.resolve(config.capacity, path)
    huge = memopen.file_system_type(path.parent) == memopen.HUGETLBFS_MAGIC
    page = os.statvfs(path.parent).f_bsize if huge else 4096
    Layout.plan(room, page, config.max_sessions, config.segment_bytes or 0, config.max_leased_slots or 0)
    memopen.check_ours(path)
    if config.discovery is not None:
        from kvstore.server.cell import check_cell

        check_cell(config)


class Node:
    """One running node. Construction opens everything, :meth:`start` serves, :meth:`stop` keeps the memory file.

    Raises ConfigError, InUse or Unavailable with a message for the person who configured it.
    """

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.readiness = Readiness(self._visible, self._drains)
        self._started = time.monotonic()
        self._metrics = NodeMetrics()
        self._control: ControlServer | None = None
        self._calls: Control | None = None
        self._joined: Joined | None = None
        self._http: HttpServer | None = None
        self._page: StatusPage | None = None
        self._identity = identity.claim(config.data_dir)
        try:
            self._open_store()
        except BaseException:
            self._identity.close()
            raise

    def _open_store(self) -> None:
        bind_memory(numa_nodes(self.config))  # before any of it is touched
        settings = self._store_config()
        fresh = not settings.memory_file.exists()
        self.store = BlockStore(settings)
        self._tell_found(settings.memory_file, fresh)
        try:
            self._open_servers()
        except BaseException:
            self._close_servers(0.0)
            self.store.close()
            if fresh:  # a node that could not start leaves no memory taken
                memopen.purge(settings.memory_file)
            raise

    def _tell_found(self, path: Path, fresh: bool) -> None:
        """What the last start, and nodes before this one, have left."""
        stat = self.store.stat()
        if not fresh:
            dropped = stat.counters.get("dropped_orphan_parts", 0)
            _log.info("%s: adopted %d blocks, dropped %d parts of incomplete ones", path, stat.blocks, dropped)
        former = memopen.orphans(self.config.memory_dir, path)
        if former:
            _log.warning(
                "memory files of former nodes take memory: %s; remove them with "
                "`kvstore purge --orphans --memory-dir %s`, or start their nodes again",
                listed(former),
                self.config.memory_dir,
            )

    def _store_config(self) -> StoreConfig:
        config, node_id = self.config, self._identity.node_id
        path = identity.memory_path(config, node_id)
        capacity.check_memory_file(path)
        return StoreConfig(
            memory_file=path,
            capacity_bytes=capacity.resolve(config.capacity, path),
            node_id=node_id,
            policy=config.eviction,
            segment_bytes=config.segment_bytes or 0,
            max_sessions=config.max_sessions,
            max_leased_slots=config.max_leased_slots or 0,
            max_leased_bytes=config.max_leased_bytes or 0,
            max_blocks=config.max_blocks or 0,
            high_watermark=config.high_watermark,
            low_watermark=config.low_watermark,
            max_pinned_bytes=config.max_pinned_bytes or 0,
            max_pinned_bytes_tenant=config.max_pinned_bytes_tenant or 0,
            namespace_idle=config.namespace_idle or 0.0,
            namespace_ttl=config.namespace_ttl or 0.0,
            scrub_bytes=config.scrub_rate,
            scrub_interval=config.scrub_interval,
            nvme_dir=config.nvme_dir,
            nvme_capacity_bytes=config.nvme_capacity,
            nvme_segment_bytes=config.nvme_segment_bytes or 0,
            nvme_write_rule=config.nvme_write_rule,
            nvme_admission=config.nvme_admission,
            nvme_write_bytes=config.nvme_write_budget,
            nvme_drive_writes=config.nvme_drive_writes,
            nvme_io_threads=config.nvme_io_threads,
            nvme_scrub_bytes=config.nvme_scrub,
            flush_seconds=config.nvme_flush,
            room_wait=config.room_wait,
            product=SERVER,
        )

    # --- servers --------------------------------------------------------------------------------------------

    def _open_servers(self) -> None:
        config = self.config
        limits = Limits(max_frame_bytes=config.max_frame_bytes, max_keys=config.max_keys)
        self._sessions = sessions = Sessions(self.store)
        handlers = Handlers(self.store, sessions, self._greeting, limits)
        self._fabrics = Fabrics(self.store, offer_of(config))
        handlers.offer(self._fabrics)
        self._data: DataServer | None = None
        self._data = DataServer(config, handlers, sessions, self._metrics)
        facts = (self._identity.node_id, self.store.boot_id, self._drains, self._who, self.store.chains.eviction_age)
        self._events = Events(self.store.journal, *facts)
        if config.control_address is not None:
            self._control = self._control_server()
        if config.http_address is not None:
            self._http = self._http_server()
        self.facts = self._facts()
        if config.discovery is not None:
            from kvstore.server.joined import Joined  # gRPC is loaded for this alone

            self._joined = joined = Joined(config, self.facts, self.store, handlers)
            self._events.peers, self._events.arrived = lambda: joined.cell.introductions, joined.cell.arrived
            if self._calls is not None:
                self._calls.moving = self._joined.moves
                self._joined.keep(self._calls.acks)
                self._calls.rotation, self._calls.cell = self._joined.rotating, handlers.cell

    def _control_server(self) -> ControlServer:
        from kvstore.node.control import Control
        from kvstore.node.control_server import ControlServer  # gRPC is loaded for this alone

        config = self.config
        assert config.control_address is not None
        cluster = self._cluster_status if config.discovery is not None else None
        self._calls = Control(
            self.store, self._events, config.max_keys, config.peer_timeout, self.stat, cluster,
            max(1, config.control_threads // 4),
        )  # fmt: skip
        return ControlServer(config, config.control_address, self._calls, self._metrics)

    def _http_server(self) -> HttpServer:
        address = self.config.http_address
        assert address is not None
        collector = Collector(self._metrics, self._gauges)
        self._page = page = StatusPage(
            self.store, lambda: self.facts, lambda: self.readiness.state, collector.collect,
            lambda: self._joined.status() if self._joined else None,
        )  # fmt: skip
        routes = {
            **page.routes(),
            "/": self._index_page,
            "/metrics": lambda: _metrics_page(collector),
            "/health": lambda: health_page(self.readiness.state, self.store.stat()),
            **probe_routes(self.readiness),
        }
        try:
            refused = partial(self._metrics.count, "busy", "http_connections")
            return HttpServer(address, routes, self.config.http_connections, refused)
        except OSError as error:
            raise port_error(address, "http_address", error) from None

    def _facts(self) -> Facts:
        data, control, http = self._data, self._control, self._http
        assert data is not None
        wanted = (self.config.data_address, self.config.control_address, self.config.http_address)
        return Facts(
            node_id=self._identity.node_id,
            boot_id=self.store.boot_id,
            data_address=str(data.address or ""),
            socket=str(data.socket or ""),
            control_address=str(control.address) if control else "",
            http_address=str(http.address) if http else "",
            started=self._started,
            insecure=any(address is not None and not address.loopback for address in wanted),
        )

    def _greeting(self) -> Greeting:
        facts, config = self.facts, self.config
        return Greeting(
            node_id=facts.node_id,
            boot_id=facts.boot_id,
            heartbeat_ms=int(config.heartbeat * 1000),
            limits=Limits(max_frame_bytes=config.max_frame_bytes, max_keys=config.max_keys),
            control_address=facts.control_address,
            http_address=facts.http_address,
            server=SERVER,
            data_address=facts.data_address,
        )

    # --- reports --------------------------------------------------------------------------------------------

    def stat(self) -> pb.StatReply:
        """What the node holds and does."""
        reply, sessions = stat_reply(self.store.stat(), self.facts), self._sessions.by_transport()
        reply.transports.update({name: sessions[name] for name in self._fabrics.offered})
        return reply

    def _cluster_status(self) -> pb.ClusterStatusReply:
        if self._joined is None:
            raise Unavailable("this node is starting; ask again")
        return self._joined.status()

    def _drains(self) -> bool:
        return self._joined is not None and self._joined.cell.member.draining

    def _visible(self) -> bool:
        return self._joined is None or self._joined.cell.visible

    def _who(self) -> bytes:
        return self._joined.cell.member.to_json() if self._joined is not None else b""

    def _gauges(self) -> Iterator[Metric]:
        yield from store_metrics(self.store.stat())
        connections = self._data.connections if self._data else 0
        state = (self._events.watchers, self.readiness.ready, self._drains())
        yield from node_metrics(self._metrics, self.facts, connections, *state)
        if self._joined is not None:
            yield from self._joined.metrics()

    def _index_page(self) -> Page:
        facts = self.facts
        return json_page(
            {
                "server": SERVER,
                "node_id": facts.node_id.hex(),
                "boot_id": facts.boot_id.hex(),
                "ready": self.readiness.ready,
                "data_address": facts.data_address,
                "socket": facts.socket,
                "control_address": facts.control_address,
                "pages": ["/status", "/status.json", "/metrics", "/health", *probe_routes(self.readiness)],
            }
        )

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to serve."""
        assert self._data is not None
        if self._http:
            self._http.start()
        if self._control:
            self._control.start()
        self._data.start()
        if self._joined:
            self._joined.start()
        self.readiness.started(self._control.say_ready if self._control else None)
        self._metrics.serving()
        if self._page:
            self._page.start()
        facts = self.facts
        if facts.insecure:
            _log.warning("allow_insecure_network is set: whoever reaches these addresses may read and write all blocks")
        _log.info(
            "node %s serves: data path %s and %s, gRPC %s, HTTP %s; %s of DRAM in %s",
            facts.node_id.hex(),
            facts.data_address or "(no TCP)",
            facts.socket or "(no unix socket)",
            facts.control_address or "off",
            facts.http_address or "off",
            show_size(self.store.config.capacity_bytes),
            self.store.config.memory_file,
        )

    def stop(self) -> None:
        """Stops serving; requests in progress may finish within the grace. The memory file stays."""
        self.readiness.stopping()
        self._events.close()
        if self._joined:
            self._joined.stop()
        self._close_servers(self.config.shutdown_grace)
        self.store.close()
        self._identity.close()

    def _close_servers(self, grace: float) -> None:
        data = getattr(self, "_data", None)
        if data is not None:
            data.stop(grace)
        if self._control:
            self._control.stop(grace)
        if self._page:
            self._page.stop()
        if self._http:
            self._http.stop()


def _metrics_page(collector: Collector) -> Page:
    body, content_type = render(collector)
    return Page(200, content_type, body)
