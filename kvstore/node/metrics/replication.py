"""Copies that other nodes are to have, as metrics: for whoever makes them to be asked at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstore.node.metrics import catalog_node as known
from kvstore.node.metrics.family import sampled, single

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_FAILED = "failed_"
_COUNTED = (
    (known.COPY_BUSY, "busy"), (known.UNREPLICATED, "unreplicated_blocks"), (known.OWED_MISSED, "owed_missed"),
    (known.MEND_LOOKS, "looks"), (known.MENDED, "mended"), (known.MEND_FAILURES, "mend_failed"),
    (known.EXTRA_COPIES, "extra_made"), (known.COOLED, "cooled_blocks"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwedCopies:
    """What waits to be copied. ``size``: bytes that are new; ``oldest``: seconds that one waits the longest;
    ``dropped``: chains for which there was no room, since the start; ``lacking``: chains that lost copies."""

    chains: int = 0
    blocks: int = 0
    size: int = 0
    oldest: float = 0.0
    dropped: int = 0
    lacking: int = 0


def replication_metrics(owed: OwedCopies, counts: Mapping[str, float]) -> Iterator[Metric]:
    """``counts``: made, confirmed, bytes, seconds, failed_REASON, and those of ``_COUNTED``."""
    yield single(known.OWED_CHAINS, owed.chains)
    yield single(known.OWED_BLOCKS, owed.blocks)
    yield single(known.OWED_BYTES, owed.size)
    yield single(known.OWED_AGE, owed.oldest)
    yield single(known.OWED_DROPPED, owed.dropped)
    yield sampled(known.COPIES, {(name,): counts.get(name, 0) for name in ("made", "confirmed")})
    yield single(known.COPIED_BYTES, counts.get("bytes", 0))
    yield single(known.COPY_SECONDS, counts.get("seconds", 0))
    yield single(known.LACKING, owed.lacking)
    for family, name in _COUNTED:
        yield single(family, counts.get(name, 0))
    failed = {name: count for name, count in counts.items() if name.startswith(_FAILED)}
    yield sampled(known.COPY_FAILURES, {(name.removeprefix(_FAILED),): count for name, count in failed.items()})
