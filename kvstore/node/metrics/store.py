"""What the store says of itself, as metrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from kvstore.node.metrics import catalog as known
from kvstore.node.metrics.family import Family, Labels, sampled, single
from kvstore.tiers.values import NamespaceStat, NvmeReport, StoreStat

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_BY_TIER = (
    ("capacity_bytes", known.TIER_CAPACITY),
    ("used_bytes", known.TIER_USED),
    ("backed_bytes", known.TIER_BACKED),
    ("segments", known.TIER_SEGMENTS),
    ("segments_ready", known.TIER_SEGMENTS_READY),
    ("slots", known.TIER_SLOTS),
    ("slots_used", known.TIER_SLOTS_USED),
)
_STAT = (
    ("blocks", known.BLOCKS),
    ("writing", known.BLOCKS_WRITING),
    ("leased_blocks", known.LEASED_BLOCKS),
    ("unverified", known.UNVERIFIED),
    ("sessions", known.SESSIONS),
    ("orphan_sessions", known.ORPHANS),
    ("index_bytes", known.INDEX_BYTES),
    ("ready_bytes", known.READY_BYTES),
)
_HELD = (
    ("leases", known.LEASES),
    ("leased_bytes", known.LEASED_BYTES),
    ("oldest_lease", known.OLDEST_LEASE),
    ("reservations", known.RESERVATIONS),
    ("reserved_bytes", known.RESERVED_BYTES),
)
_PINS = (
    ("soft_blocks", known.PINNED_SOFT),
    ("hard_blocks", known.PINNED_HARD),
    ("hard_bytes", known.PINNED_BYTES),
    ("max_bytes", known.PINNED_MAX),
)
# Counters by their names -> family, and its labels. One may count in several families, several in one.
_COUNTERS: tuple[tuple[str, Family, tuple[str, ...]], ...] = (
    (r"hit_blocks", known.HITS, ()),
    (r"nvme_hit_blocks", known.NVME_HITS, ()),
    (r"miss_blocks_(\w+)", known.MISSES, (r"\1",)),
    (r"acquire_calls", known.READS, ()),
    (r"match_calls", known.MATCHES, ()),
    (r"match_(hit|missed)_blocks", known.MATCHED, (r"\1",)),
    (r"put_blocks_(\w+)", known.PUT_BLOCKS, (r"\1",)),
    (r"dropped_blocks_(\w+)", known.EVICTIONS, (r"\1",)),
    (r"dropped_bytes_(\w+)", known.EVICTED_BYTES, (r"\1",)),
    (r"nvme_evicted_blocks", known.NVME_EVICTIONS, ()),
    (r"reclaimed_segments", known.RECLAIMED, ("dram",)),
    (r"nvme_reclaimed_segments", known.RECLAIMED, ("nvme",)),
    (r"relocated_parts", known.RELOCATED, ()),
    (r"demoted_blocks_(\w+)", known.DEMOTIONS, (r"\1",)),
    (r"demotion_refused_blocks_(\w+)", known.REFUSED, (r"\1",)),
    (r"demotion_failed_blocks", known.DEMOTIONS_FAILED, ()),
    (r"promoted_blocks_(\w+)", known.PROMOTIONS, (r"\1",)),
    (r"promoted_bytes", known.PROMOTED_BYTES, ()),
    (r"prefetch_blocks", known.PREFETCHED, ()),
    (r"prefetch_(used|wasted)_blocks", known.PREFETCH_OUTCOMES, (r"\1",)),
    (r"written_blocks", known.NVME_STORED, ()),
    (r"written_bytes", known.NVME_STORED_BYTES, ()),
    (r"written_blocks_lost", known.NVME_LOST, ()),
    (r"load_failed_blocks_(\w+)", known.NVME_LOAD_FAILURES, (r"\1",)),
    (r"load_failed_blocks_(checksum|trailer)", known.CHECKSUM_FAILURES, ("nvme",)),
    (r"scrubbed_bad_blocks", known.CHECKSUM_FAILURES, ("nvme",)),
    (r"verify_failed_blocks", known.CHECKSUM_FAILURES, ("dram",)),
    (r"scrub_failed_blocks", known.CHECKSUM_FAILURES, ("dram",)),
    (r"dram_copies_damaged", known.RESCUED, ()),
    (r"scrubbed_blocks", known.SCRUBBED, ()),
    (r"scrubbed_bytes", known.SCRUBBED_BYTES, ()),
    (r"adopted_parts", known.ADOPTED, ()),
    (r"dropped_orphan_parts", known.ORPHANED, ()),
    (r"background_failures", known.BACKGROUND, ()),
    (r"namespaces_(expired|displaced)", known.NAMESPACES_ENDED, (r"\1",)),
    (r"namespaces_refused", known.NAMESPACES_REFUSED, ()),
    (r"pins_refused", known.PINS_REFUSED, ()),
    (r"pins_expired", known.PINS_EXPIRED, ()),
    (r"event_batches", known.EVENTS_SENT, ()),
    (r"event_keys", known.EVENTS_SENT_BLOCKS, ()),
    (r"event_snapshots", known.SNAPSHOTS_SENT, ()),
)
_NVME_COUNTERS: tuple[tuple[str, Family, tuple[str, ...]], ...] = (
    (r"reads", known.NVME_READS, ()),
    (r"read_bytes", known.NVME_READ_BYTES, ()),
    (r"writes", known.NVME_WRITES, ()),
    (r"written_bytes", known.NVME_WRITTEN_BYTES, ()),
    (r"scrubbed", known.NVME_SCRUBBED, ()),
    (r"scrubbed_bytes", known.NVME_SCRUBBED_BYTES, ()),
    (r"commits", known.NVME_COMMITS, ()),
    (r"index_restarts", known.NVME_RESTARTS, ()),
    (r"failures_(\w+)", known.NVME_FAILURES, (r"\1",)),
    (r"moves_([a-z]+)_(\w+)", known.MOVES, (r"\1", r"\2")),
    (r"moved_bytes_(\w+)", known.MOVED_BYTES, (r"\1",)),
)
_Table = tuple[tuple[str, Family, tuple[str, ...]], ...]


def store_metrics(stat: StoreStat) -> Iterator[Metric]:
    """All that a store says of itself."""
    for field, family in _BY_TIER:
        yield sampled(family, {(tier.name,): getattr(tier, field) for tier in stat.tiers})
    for source, fields in ((stat, _STAT), (stat.held, _HELD), (stat.pins, _PINS)):
        for field, family in fields:
            yield single(family, getattr(source, field))
    yield from _namespaces(stat.namespaces)
    yield from _counted(stat.counters, _COUNTERS)
    if stat.nvme:
        yield from _nvme(stat.nvme)


def _namespaces(found: Sequence[NamespaceStat]) -> Iterator[Metric]:
    yield single(known.NAMESPACES, len(found))
    largest = sorted(found, key=lambda one: (-one.bytes, one.root))
    values: dict[Labels, float] = {
        (one.root.hex()[:8], one.spec.model[:64]): one.bytes for one in largest[: known.LARGEST_NAMESPACES]
    }
    values["other", ""] = sum(one.bytes for one in largest[known.LARGEST_NAMESPACES :])
    yield sampled(known.NAMESPACE_BYTES, values)


def _nvme(nvme: NvmeReport) -> Iterator[Metric]:
    yield sampled(known.NVME_STATE, {(nvme.state,): 1})
    yield single(known.NVME_BLOCKS, nvme.blocks)
    yield single(known.NVME_SCORE, nvme.threshold)
    yield single(known.NVME_BACKLOG, nvme.backlog)
    yield single(known.NVME_BAD_SLOTS, nvme.bad_slots)
    waiting = (nvme.waiting, known.MOVES_WAITING), (nvme.waiting_max, known.MOVES_MAX)
    for by_priority, family in (*waiting, (nvme.waiting_seconds, known.MOVES_AGE)):
        yield sampled(family, {(priority,): value for priority, value in by_priority.items()})
    yield from _counted(nvme.counters, _NVME_COUNTERS)


def _counted(counters: dict[str, int], table: _Table) -> Iterator[Metric]:
    """All families of a table, those too that have counted nothing."""
    values: dict[str, Counter[Labels]] = {family.name: Counter() for _, family, _ in table}
    other: Counter[Labels] = Counter()
    for name, count in sorted(counters.items()):
        places = places_of(name, table)
        for family, labels in places:
            values[family.name][labels] += count
        if not places:
            other[(name,)] += count
    for family in {family.name: family for _, family, _ in table}.values():
        yield sampled(family, {labels: float(count) for labels, count in values[family.name].items()} or _zero(family))
    if table is _COUNTERS:
        yield sampled(known.OTHER, {labels: float(count) for labels, count in other.items()})


def _zero(family: Family) -> dict[Labels, float]:
    return {} if family.labels else {(): 0.0}


@lru_cache(maxsize=1024)
def places_of(name: str, table: _Table = _COUNTERS) -> tuple[tuple[Family, Labels], ...]:
    """The families, and labels there, in which a counter of the store counts."""
    return tuple(
        (family, tuple(match.expand(label) for label in labels))
        for pattern, family, labels in table
        if (match := re.fullmatch(pattern, name))
    )
