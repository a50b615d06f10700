"""What the store says of itself, as a StatReply and as metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import kvstore
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import NvmeReport, StoreStat
from kvstore.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from prometheus_client.core import Metric


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


# --- metrics ------------------------------------------------------------------------------------------------

_BY_TIER = (
    ("capacity_bytes", "kvstore_tier_capacity_bytes", "Bytes for blocks that a tier has."),
    ("used_bytes", "kvstore_tier_used_bytes", "Bytes of slots given out."),
    ("backed_bytes", "kvstore_tier_backed_bytes", "Memory or disk really taken, tables included."),
    ("segments", "kvstore_tier_segments", "Segments of a tier."),
    ("segments_ready", "kvstore_tier_segments_ready", "Segments that can be handed out."),
    ("slots", "kvstore_tier_slots", "Slots in segments that serve a slot size."),
    ("slots_used", "kvstore_tier_slots_used", "Slots given out."),
)
_GAUGES = (
    ("blocks", "kvstore_blocks", "Blocks in the index."),
    ("writing", "kvstore_blocks_writing", "Blocks being written."),
    ("leased_blocks", "kvstore_blocks_leased", "Blocks under a lease."),
    ("unverified", "kvstore_parts_unverified", "Parts re-adopted after a restart and not yet checked."),
    ("leases", "kvstore_leases", "Leases held by sessions."),
    ("reservations", "kvstore_reservations", "Puts in progress."),
    ("sessions", "kvstore_sessions", "Client sessions."),
    ("orphan_sessions", "kvstore_orphan_sessions", "Sessions of an earlier start whose process still lives."),
    ("index_bytes", "kvstore_index_bytes", "Memory of the index."),
    ("ready_bytes", "kvstore_ready_bytes", "Bytes of blocks that can be read."),
)
_PIN_GAUGES = (
    ("soft_blocks", "kvstore_blocks_pinned_soft", "Blocks that are the last to be evicted."),
    ("hard_blocks", "kvstore_blocks_pinned_hard", "Blocks that are never evicted."),
    ("hard_bytes", "kvstore_pinned_bytes", "Bytes of blocks that are never evicted."),
)
# Counters of the store by their names -> metric, help, labels. Others appear under their own names.
_FAMILIES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (r"hit_blocks", "kvstore_hits", "Blocks that reads asked for and got.", ()),
    (r"miss_blocks_(\w+)", "kvstore_misses", "Blocks that reads asked for and did not get, by reason.", ("reason",)),
    (r"put_blocks_(\w+)", "kvstore_put_blocks", "Blocks of puts, by outcome.", ("outcome",)),
    (
        r"demotion_refused_blocks_(\w+)",
        "kvstore_demotions_refused",
        "Victims not written, by reason.",
        ("reason",),
    ),
    (
        r"load_failed_blocks_(\w+)",
        "kvstore_nvme_load_failures",
        "Failed reads from NVMe, by reason.",
        ("reason",),
    ),
    (r"promoted_blocks_(\w+)", "kvstore_promotions", "Blocks brought from NVMe to DRAM, by why.", ("why",)),
    (r"demoted_blocks_(\w+)", "kvstore_demotions", "Blocks that left DRAM for NVMe, by how.", ("how",)),
    (r"dropped_blocks_(\w+)", "kvstore_evictions", "Blocks dropped, by cause.", ("cause",)),
)


def store_metrics(stat: StoreStat) -> Iterator[Metric]:
    """Occupancy, leases, hits, misses by reason, evictions by cause; further counters by their own names."""
    from prometheus_client.core import GaugeMetricFamily

    for field, name, text in _BY_TIER:
        family = GaugeMetricFamily(name, text, labels=["tier"])
        for tier in stat.tiers:
            family.add_metric([tier.name], getattr(tier, field))
        yield family
    for field, name, text in _PIN_GAUGES:
        yield GaugeMetricFamily(name, text, value=getattr(stat.pins, field))
    for field, name, text in _GAUGES:
        yield GaugeMetricFamily(name, text, value=getattr(stat, field))
    if stat.nvme:
        yield from _nvme_metrics(stat.nvme)
    yield from _counters(stat.counters)


def _nvme_metrics(nvme: NvmeReport) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    healthy = GaugeMetricFamily("kvstore_nvme_state", "1 for the state that the NVMe tier is in.", labels=["state"])
    for state in ("ok", "degraded", "read_only", "failed"):
        healthy.add_metric([state], int(state == nvme.state))
    yield healthy
    yield GaugeMetricFamily("kvstore_nvme_blocks", "Blocks that can be read from NVMe.", value=nvme.blocks)
    yield GaugeMetricFamily("kvstore_nvme_admission_score", "Least score that is written now.", value=nvme.threshold)
    waiting = GaugeMetricFamily("kvstore_moves_waiting", "Moves that have not started.", labels=["priority"])
    for priority, count in nvme.waiting.items():
        waiting.add_metric([priority], count)
    yield waiting
    moves = CounterMetricFamily("kvstore_moves", "Moves that ended.", labels=["priority", "outcome"])
    moved = CounterMetricFamily("kvstore_moved_bytes", "Bytes moved between tiers.", labels=["priority"])
    for name, count in sorted(nvme.counters.items()):
        if match := re.fullmatch(r"moves_([a-z]+)_(\w+)", name):
            moves.add_metric(list(match.groups()), count)
        elif match := re.fullmatch(r"moved_bytes_(\w+)", name):
            moved.add_metric([match[1]], count)
        else:
            yield CounterMetricFamily("kvstore_nvme_" + name, "Counter of the NVMe tier.", value=count)
    yield from (moves, moved)


def _counters(counters: dict[str, int]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    families = {pattern: CounterMetricFamily(name, text, labels=labels) for pattern, name, text, labels in _FAMILIES}
    for name, count in sorted(counters.items()):
        found = next(((pattern, match) for pattern in families if (match := re.fullmatch(pattern, name))), None)
        if found:
            families[found[0]].add_metric(found[1].groups(), count)
        else:
            yield CounterMetricFamily("kvstore_store_" + name, "Counter of the store.", value=count)
    yield from families.values()


def node_metrics(facts: Facts, connections: int, watchers: int, ready: bool) -> Iterator[Metric]:
    """What the node itself is like."""
    from prometheus_client.core import GaugeMetricFamily

    yield GaugeMetricFamily("kvstore_ready", "1 when the node serves.", value=int(ready))
    yield GaugeMetricFamily("kvstore_connections", "Open data connections.", value=connections)
    yield GaugeMetricFamily("kvstore_event_watchers", "Peers and routers that watch events.", value=watchers)
    yield GaugeMetricFamily("kvstore_uptime_seconds", "Time since the start.", value=time.monotonic() - facts.started)
    yield GaugeMetricFamily(
        "kvstore_insecure_network", "1 when it listens beyond loopback without security.", value=int(facts.insecure)
    )
    info = GaugeMetricFamily("kvstore_node_info", "Identity of the node.", labels=["node_id", "version"])
    info.add_metric([facts.node_id.hex(), kvstore.__version__], 1)
    yield info
