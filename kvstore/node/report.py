"""What the store says of itself, as a StatReply."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import kvstore
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import NvmeReport, StoreStat
from kvstore.v1 import control_pb2 as pb


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not change while a node runs. ``insecure``: it listens beyond loopback without transport security."""

    node_id: bytes
    boot_id: bytes
    data_address: str
    socket: str
    control_address: str
    http_address: str
    started: float
    insecure: bool


def stat_reply(stat: StoreStat, facts: Facts) -> pb.StatReply:
    """The answer to Stat."""
    from kvstore.node.control import namespace_info

    reply = pb.StatReply(
        node_id=facts.node_id,
        boot_id=facts.boot_id,
        version=kvstore.__version__,
        uptime_seconds=time.monotonic() - facts.started,
        blocks=stat.blocks,
        writing=stat.writing,
        leased_blocks=stat.leased_blocks,
        leases=stat.leases,
        sessions=stat.sessions,
        orphan_sessions=stat.orphan_sessions,
        counters=stat.counters,
        namespaces=[namespace_info(one) for one in stat.namespaces],
        index_bytes=stat.index_bytes,
        data_address=facts.data_address,
        socket=facts.socket,
        pins=pb.PinStat(**asdict(stat.pins)),
    )
    for tier in stat.tiers:
        found = reply.tiers.add(
            tier=TierKind[tier.name.upper()] + 1,
            capacity_bytes=tier.capacity_bytes,
            used_bytes=tier.used_bytes,
            ready_bytes=stat.ready_bytes,
            segments=tier.segments,
            segments_ready=tier.segments_ready,
            reason=tier.trouble,
            state="degraded" if tier.trouble else "ok",
        )
        if stat.nvme and tier.name == "nvme":
            _add_health(found, stat.nvme)
    return reply


def _add_health(tier: pb.TierStat, nvme: NvmeReport) -> None:
    tier.state, tier.reason, tier.advice, tier.since = nvme.state, nvme.reason, nvme.advice, nvme.since
    tier.counters.update(nvme.counters)
