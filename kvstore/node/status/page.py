"""The pages /status (for people) and /status.json (the same, for programs)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import kvstore
from kvstore.core.errors import KVStoreError
from kvstore.node.http_server import Page, Routes, json_page
from kvstore.node.report import Facts
from kvstore.node.status.findings import NamespaceView, Observed, findings
from kvstore.node.status.recent import Recent, listen, unlisten
from kvstore.node.status.samples import History, Sample, grown, grown_by, sample
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import StoreStat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

    from kvstore.v1.control_pb2 import ClusterStatusReply

HOTTEST = 10  # chains that are shown
_FRESH = 10.0  # seconds that the list of them is used again
_MINUTES = 5.0  # over which rates are told
_POINTS = 60  # of a curve


@dataclass(frozen=True, slots=True)
class Hot:
    """A chain that was used lately. ``idle``: seconds since."""

    model: str
    root: str
    key: str
    blocks: int
    tokens: int
    bytes: int
    idle: float


class StatusPage:
    """``collect``: what /metrics shows. ``cluster``: None while the node stands alone. Safe for several threads."""

    def __init__(
        self,
        store: BlockStore,
        facts: Callable[[], Facts],
        state: Callable[[], str],
        collect: Callable[[], Iterable[Metric]],
        cluster: Callable[[], ClusterStatusReply | None],
    ) -> None:
        self._store = store
        self._facts = facts
        self._state = state
        self._cluster = cluster
        self._history = History(lambda: sample(collect(), time.time()), Sample(time.time()))
        self._recent: Recent = listen()
        self._hot: tuple[float, list[Hot]] = (float("-inf"), [])
        self._html = files(__package__).joinpath("status.html").read_bytes()

    def start(self) -> None:
        self._history.start()

    def stop(self) -> None:
        self._history.stop()
        unlisten(self._recent)

    def routes(self) -> Routes:
        return {
            "/status": lambda: Page(200, "text/html; charset=utf-8", self._html),
            "/status.json": lambda: json_page(self.value()),
        }

    def value(self) -> dict[str, Any]:
        """Everything that the page shows."""
        kept = self._history.samples()
        now, stat, cluster = kept[-1], self._store.stat(), self._cluster()
        before = next((one for one in kept if now.at - one.at <= 60 * _MINUTES), kept[0])
        return {
            "now": time.time(),
            "node": self._node(),
            "cell": _cell(cluster) if cluster else None,
            "tiers": _tiers(stat, before, now),
            "reads": _reads(kept, before, now),
            "traffic": _traffic(kept),
            "hottest": [asdict(one) for one in self._hottest()],
            "namespaces": [_namespace(one) for one in stat.namespaces],
            "findings": [asdict(one) for one in findings(_observed(before, now, stat, cluster))],
            "recent": [asdict(one) for one in self._recent.entries()],
        }

    def _node(self) -> dict[str, Any]:
        facts = self._facts()
        return {
            "node_id": facts.node_id.hex(),
            "version": kvstore.__version__,
            "state": self._state(),
            "uptime": time.monotonic() - facts.started,
            "data_address": facts.data_address,
            "socket": facts.socket,
            "control_address": facts.control_address,
            "http_address": facts.http_address,
        }

    def _hottest(self) -> list[Hot]:
        at, found = self._hot
        if time.monotonic() - at > _FRESH:
            found = hottest(self._store)
            self._hot = (time.monotonic(), found)
        return found


def hottest(store: BlockStore, most: int = HOTTEST) -> list[Hot]:
    """The chains used last."""
    found: list[Hot] = []
    for leaf in store.chains.leaves():
        if len(found) == most:
            break
        try:
            spec, idle = store.spec(leaf.handle), store.chains.unused(leaf.handle, leaf.key)
        except KVStoreError:  # dropped meanwhile
            continue
        size, tokens = leaf.blocks * spec.block_bytes, leaf.blocks * spec.block_tokens
        found.append(Hot(spec.model, leaf.root.hex(), leaf.key.hex(), leaf.blocks, tokens, size, min(idle, 1e9)))
    return found


def _observed(before: Sample, now: Sample, stat: StoreStat, cluster: ClusterStatusReply | None) -> Observed:
    return Observed(
        before,
        now,
        tuple(NamespaceView(one.spec, one.blocks, one.idle_seconds) for one in stat.namespaces),
        {tier["name"]: (tier["state"], tier["reason"], tier["advice"]) for tier in _tiers(stat, before, now)},
        cluster.problem if cluster else "",
        tuple(cluster.unanswered) if cluster else (),
    )


# --- pieces -------------------------------------------------------------------------------------------------


def _tiers(stat: StoreStat, before: Sample, now: Sample) -> list[dict[str, Any]]:
    return [_tier(stat, tier.name, before, now) for tier in stat.tiers]


def _tier(stat: StoreStat, name: str, before: Sample, now: Sample) -> dict[str, Any]:
    tier = next(one for one in stat.tiers if one.name == name)
    nvme = stat.nvme if name == "nvme" else None
    seconds = max(now.at - before.at, 1e-9)
    read, written = ("kvstore_nvme_read_bytes_total", "kvstore_nvme_written_bytes_total")
    if name == "dram":
        read, written = ("kvstore_sent_bytes_total", "kvstore_received_bytes_total")
    return {
        "name": name,
        "capacity": tier.capacity_bytes,
        "used": tier.used_bytes,
        "state": nvme.state if nvme else ("degraded" if tier.trouble else "ok"),
        "reason": nvme.reason if nvme else tier.trouble,
        "advice": nvme.advice if nvme else "",
        "read_per_second": grown(before, now, read) / seconds,
        "written_per_second": grown(before, now, written) / seconds,
    }


def _reads(kept: Sequence[Sample], before: Sample, now: Sample) -> dict[str, Any]:
    hits = grown(before, now, "kvstore_hits_total")
    reasons = grown_by(before, now, "kvstore_misses_total", "reason")
    asked = hits + sum(reasons.values())
    return {
        "seconds": now.at - before.at,
        "hits": hits,
        "misses": sum(reasons.values()),
        "rate": hits / asked if asked else None,
        "reasons": reasons,
        "curve": [
            {
                "at": last.at,
                "hits": grown(first, last, "kvstore_hits_total"),
                "misses": grown(first, last, "kvstore_misses_total"),
            }
            for first, last in _steps(kept)
        ],
    }


def _traffic(kept: Sequence[Sample]) -> list[dict[str, float]]:
    return [
        {
            "at": last.at,
            "sent": grown(first, last, "kvstore_sent_bytes_total") / (last.at - first.at),
            "received": grown(first, last, "kvstore_received_bytes_total") / (last.at - first.at),
        }
        for first, last in _steps(kept)
    ]


def _steps(kept: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Neighbours of a curve with few enough points."""
    stride = -(-len(kept) // _POINTS)
    points = [*kept[::-1][::stride]][::-1]
    return [(first, last) for first, last in pairwise(points) if last.at > first.at]


def _namespace(one: Any) -> dict[str, Any]:
    return {
        "root": one.root.hex(),
        "model": one.spec.model,
        "tenant": one.spec.tenant,
        "blocks": one.blocks,
        "bytes": one.bytes,
        "idle": one.idle_seconds,
    }


def _cell(status: ClusterStatusReply) -> dict[str, Any]:
    return {
        "discovery": status.discovery,
        "problem": status.problem,
        "unanswered": list(status.unanswered),
        "index_blocks": status.index_blocks,
        "index_max_blocks": status.index_max_blocks,
        "nodes": [
            {
                "node_id": peer.member.node_id.hex(),
                "state": peer.state,
                "control_address": peer.member.control_address,
                "host": peer.member.host,
                "zone": peer.member.zone,
                "version": peer.member.version,
                "capacity": peer.member.capacity_bytes,
                "free": peer.free_bytes,
                "blocks": peer.blocks,
                "lag": peer.lag_seconds,
                "trouble": peer.trouble,
            }
            for peer in status.peers
        ],
    }
