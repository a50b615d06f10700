"""What makes a node part of a cell, from its settings; and what it reports of the cell."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import kvstore
from kvstore.cluster.cell import Cell
from kvstore.cluster.copier import member_message
from kvstore.cluster.discovery.base import Discovery
from kvstore.cluster.discovery.dns import DnsDiscovery
from kvstore.cluster.discovery.etcd import EtcdDiscovery
from kvstore.cluster.discovery.static import StaticDiscovery
from kvstore.cluster.etcd.settings import EtcdSettings
from kvstore.cluster.member import Member, join_address, split_address
from kvstore.cluster.membership import State
from kvstore.cluster.prefix_index import PrefixIndex
from kvstore.core.errors import ConfigError
from kvstore.node import units
from kvstore.node.config import NodeConfig
from kvstore.node.metrics import catalog_node as known
from kvstore.node.metrics.family import Labels, sampled, single
from kvstore.node.report import Facts
from kvstore.transport.frame import VERSION
from kvstore.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_ANY = ("0.0.0.0", "::")
_ENTRY_BYTES = 4096  # of this node's capacity, for which the index has room for one block
_FEWEST, _MOST = 1 << 20, 1 << 27


def open_cell(config: NodeConfig, facts: Facts, capacity_bytes: int) -> Cell:
    """The cell of a node whose servers listen, and whose ``discovery`` is set. Raises ConfigError."""
    assert config.discovery is not None
    entries = config.cell_index_entries or min(max(capacity_bytes // _ENTRY_BYTES, _FEWEST), _MOST)
    return Cell(
        _member(config, facts, capacity_bytes),
        _discovery(config, config.discovery),
        PrefixIndex(entries),
        config.suspect_after,
        config.gone_after,
    )


def check_cell(config: NodeConfig) -> None:
    """What can be said of a cell's settings without starting anything. Raises ConfigError."""
    if config.discovery is None:
        return
    _discovery(config, config.discovery)
    for address in (config.data_address, config.control_address):
        if address is not None:
            _advertised(str(units.Address(address.host, address.port or 1)), config.advertise_host)


def _member(config: NodeConfig, facts: Facts, capacity_bytes: int) -> Member:
    return Member(
        node_id=facts.node_id,
        boot_id=facts.boot_id,
        data_address=_advertised(facts.data_address, config.advertise_host),
        control_address=_advertised(facts.control_address, config.advertise_host),
        host=config.host_name or socket.gethostname(),
        zone=config.zone or "",
        capacity_bytes=capacity_bytes,
        version=kvstore.__version__,
        protocol=VERSION,
    )


def _advertised(address: str, host: str | None) -> str:
    listening, port = split_address(address)
    if host is None:
        host = _own_address() if listening in _ANY else listening
    return join_address(host, port)


def _own_address() -> str:
    """By which others reach this machine, as far as its name says."""
    name = socket.gethostname()
    try:
        found = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        found, why = "", f"cannot be resolved ({error})"
    else:
        why = f"means {found}, which no other machine can reach"
    if not found or units.Address(found, 0).loopback:
        raise ConfigError(
            f"this node listens on all addresses, and its machine's name {name!r} {why}; set advertise_host",
            key="advertise_host",
        )
    return found


def _discovery(config: NodeConfig, wanted: units.Discovery) -> Discovery:
    addresses = tuple(map(str, wanted.addresses))
    if wanted.scheme == "static":
        return StaticDiscovery(addresses)
    if wanted.scheme == "dns":
        return DnsDiscovery(addresses[0])
    scheme = "https://" if wanted.scheme == "etcds" else ""
    settings = EtcdSettings(
        endpoints=tuple(scheme + address for address in addresses),
        user=config.etcd_user or "",
        password=_password(config.etcd_password_file) if config.etcd_password_file else "",
        ca_file=config.etcd_ca,
        cert_file=config.etcd_cert,
        key_file=config.etcd_key,
    )
    return EtcdDiscovery(settings, wanted.cell)


def _password(path: Path) -> str:
    try:
        found = path.read_text().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read etcd_password_file {path}: {error}", key="etcd_password_file") from None
    if not found:
        raise ConfigError(f"etcd_password_file {path} is empty", key="etcd_password_file")
    return found


# --- reports ------------------------------------------------------------------------------------------------


def status_reply(cell: Cell, discovery: units.Discovery | None) -> pb.ClusterStatusReply:
    """The answer to ClusterStatus."""
    index = cell.index
    return pb.ClusterStatusReply(
        node=member_message(cell.member),
        peers=[
            pb.ClusterPeer(
                member=member_message(peer.member),
                state=peer.state.value,
                blocks=peer.blocks,
                free_bytes=peer.free_bytes,
                lag_seconds=peer.lag or 0.0,
                trouble=peer.trouble,
            )
            for peer in sorted(cell.peers(), key=lambda peer: peer.member.control_address)
        ],
        discovery=str(discovery or "off"),
        problem=cell.problem,
        unanswered=cell.unanswered,
        index_blocks=index.entries,
        index_max_blocks=index.max_entries,
        index_bytes=index.nbytes,
        index_dropped=index.dropped,
    )


def cell_metrics(cell: Cell) -> Iterator[Metric]:
    """Who is there, how far behind, and how full the index is."""
    peers, index = cell.peers(), cell.index
    counts = Counter(peer.state.value for peer in peers)
    yield sampled(known.CELL_NODES, {(state.value,): counts[state.value] for state in State})
    lags: dict[Labels, float] = {(peer.member.node_id.hex(),): peer.lag for peer in peers if peer.lag is not None}
    yield sampled(known.CELL_LAG, lags)
    yield single(known.CELL_PROBLEM, int(bool(cell.problem)))
    yield single(known.CELL_UNANSWERED, len(cell.unanswered))
    yield single(known.CELL_BLOCKS, index.entries)
    yield single(known.CELL_MAX_BLOCKS, index.max_entries)
    yield single(known.CELL_BYTES, index.nbytes)
    yield single(known.CELL_DROPPED, index.dropped)
    received = cell.received
    yield single(known.EVENTS_RECEIVED, received.batches)
    yield single(known.EVENTS_RECEIVED_BLOCKS, received.blocks)
    yield single(known.SNAPSHOTS_RECEIVED, received.snapshots)
    yield single(known.EVENT_GAPS, received.gaps)
    yield single(known.STREAMS_LOST, received.lost)
