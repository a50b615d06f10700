"""What is wrong with a node, and what to do: pure conclusions from its numbers. The status page and `kvstore doctor`
show the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvstore.core.namespace import NamespaceSpec, differing_fields
from kvstore.node.status.samples import Sample, grown, grown_by

Level = Literal["ok", "note", "warning", "error"]
_FEW = 100  # blocks asked for, below which a hit rate says nothing
_LAG = 5.0  # seconds that events may be late
_OWED = 60.0  # seconds that a copy may be owed
_LEASE = 600.0  # seconds that one lease may be held
_FULL = 0.98


@dataclass(frozen=True, slots=True)
class Finding:
    """``what`` is the case; ``fix``: what to do, empty where nothing is to be done."""

    level: Level
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """A namespace as far as conclusions need it. ``idle``: seconds since it was used."""

    spec: NamespaceSpec
    blocks: int
    idle: float


@dataclass(frozen=True, slots=True)
class Observed:
    """All that is looked at. ``before`` and ``now``: samples of the window; ``tiers``: name to (state, reason, advice);
    ``cell``: problem of discovery, and addresses that do not answer."""

    before: Sample
    now: Sample
    namespaces: Sequence[NamespaceView] = ()
    tiers: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    problem: str = ""
    unanswered: Sequence[str] = ()


def findings(seen: Observed) -> list[Finding]:
    """Errors first."""
    order = ("error", "warning", "note", "ok")
    found = [one for rule in _RULES for one in rule(seen)]
    return sorted(found, key=lambda one: order.index(one.level))


# --- rules --------------------------------------------------------------------------------------------------


def _tiers(seen: Observed) -> Iterator[Finding]:
    for name, (state, reason, advice) in seen.tiers.items():
        if state != "ok":
            level: Level = "error" if state == "failed" else "warning"
            yield Finding(level, f"tier {name} is {state}: {reason}", advice)
    for where, count in grown_by(seen.before, seen.now, "kvstore_checksum_failures_total", "where").items():
        yield Finding(
            "error", f"{count:g} blocks in {where} failed their checksums; nobody was given them",
            "check the machine's memory and disk (edac-util, smartctl -a); until then expect misses",
        )  # fmt: skip


def _hits(seen: Observed) -> Iterator[Finding]:
    hits = grown(seen.before, seen.now, "kvstore_hits_total")
    misses = grown_by(seen.before, seen.now, "kvstore_misses_total", "reason")
    missed = sum(misses.values())
    if hits + missed < _FEW:
        return
    if hits == 0:
        yield _nothing_hit(seen, misses)
    elif (late := misses.get("loading", 0.0)) > 0.1 * (hits + missed):
        yield Finding(
            "warning", f"{late:g} blocks were on NVMe and did not come up in time",
            "give reads more time, prefetch earlier, or give the node more DRAM (capacity)",
        )  # fmt: skip


def _nothing_hit(seen: Observed, misses: Mapping[str, float]) -> Finding:
    """A hit rate of 0 with a reason."""
    asked = f"none of the {sum(misses.values()):g} blocks that were asked for was here"
    if differs := _differing(seen):
        return Finding("error", f"{asked}: {differs[0]}", "make these fields agree; each engine logs its namespace")
    stored = grown(seen.before, seen.now, "kvstore_put_blocks_total", outcome="stored")
    refused = grown_by(seen.before, seen.now, "kvstore_put_blocks_total", "outcome")
    if not stored and refused.get("no_space"):
        return Finding(
            "error", f"{asked}, and no new block found room",
            "the node drains, or all of it is pinned or leased: see `kvstore stat`; raise capacity",
        )  # fmt: skip
    if not stored:
        return Finding(
            "error", f"{asked}, and nothing is being put",
            "the engines read only: look at their connector's role and save settings",
        )  # fmt: skip
    reason = max(misses, key=lambda name: misses[name])
    if reason == "absent" and grown(seen.before, seen.now, "kvstore_evictions_total", cause="evicted"):
        return Finding(
            "error", f"{asked}: blocks are evicted before anybody comes back for them",
            "raise capacity, add an NVMe tier (nvme_dir) or nodes",
        )  # fmt: skip
    return Finding(
        "warning", f"{asked} (mostly {reason}): prompts share no prefix, or engines hash them differently",
        "compare two requests with `kvstore match --tokens-file`; PYTHONHASHSEED and the hash algorithm of all engines "
        "must agree",
    )  # fmt: skip


def _layouts(seen: Observed) -> Iterator[Finding]:
    for text in _differing(seen):
        yield Finding(
            "note", text, "intended for different models or settings; else make the fields agree, they cannot share"
        )


def _differing(seen: Observed) -> list[str]:
    """Namespaces of one model and tenant that are in use and do not agree."""
    active = [one for one in seen.namespaces if one.idle < 3600]
    found = []
    for nth, one in enumerate(active):
        for other in active[nth + 1 :]:
            if (one.spec.model, one.spec.tenant) == (other.spec.model, other.spec.tenant):
                fields = ", ".join(differing_fields(one.spec, other.spec))
                found.append(f"engines of model {one.spec.model!r} do not agree in {fields}")
    return list(dict.fromkeys(found))


def _room(seen: Observed) -> Iterator[Finding]:
    full = grown(seen.before, seen.now, "kvstore_put_blocks_total", outcome="no_space")
    if full and seen.now.total("kvstore_draining"):
        yield Finding(
            "note", f"{full:g} blocks were not stored: the node drains",
            "`kvstore cluster drain --cancel` lets it take new blocks again",
        )  # fmt: skip
    elif full:
        yield Finding(
            "warning", f"{full:g} blocks were not stored for want of room",
            "leases or pins hold it: see kvstore_leased_bytes and kvstore_pinned_bytes; or raise capacity",
        )  # fmt: skip
    for name, capacity in seen.now.by("kvstore_tier_capacity_bytes", "tier").items():
        used = seen.now.total("kvstore_tier_used_bytes", tier=name)
        if capacity and used > _FULL * capacity:
            yield Finding("note", f"tier {name} is full ({used / capacity:.0%}): new blocks push out old ones")
    oldest = seen.now.total("kvstore_oldest_lease_seconds")
    if oldest > _LEASE:
        yield Finding(
            "warning", f"a lease is held for {oldest / 60:.0f} minutes: its blocks cannot be evicted",
            "a client keeps borrowed views; close it, or end its process",
        )  # fmt: skip


def _busy(seen: Observed) -> Iterator[Finding]:
    for bound, count in grown_by(seen.before, seen.now, "kvstore_busy_total", "bound").items():
        if bound != "other":  # told to who asked: a second drain, say
            yield Finding("warning", f"{count:g} requests were refused at the bound {bound}", f"raise {bound}")
    for code, count in grown_by(seen.before, seen.now, "kvstore_errors_total", "code").items():
        if code == "internal":
            yield Finding("error", f"{count:g} requests met an internal error", "see the node's log and report it")
        elif code == "version_mismatch":
            yield Finding(
                "warning", f"{count:g} clients of a version too far apart were refused",
                "upgrade them: versions may be one protocol step apart",
            )  # fmt: skip


def _cell(seen: Observed) -> Iterator[Finding]:
    if seen.problem:
        yield Finding("error", f"discovery: {seen.problem}", "nodes that know each other go on; mend etcd or DNS")
    for text in seen.unanswered:
        yield Finding("warning", text, "start the node there, or take its address out of discovery")
    for state in ("suspect", "gone"):
        if count := seen.now.total("kvstore_cell_nodes", state=state):
            nodes = "1 node of the cell is" if count == 1 else f"{count:g} nodes of the cell are"
            yield Finding(
                "warning", f"{nodes} {state}",
                "see `kvstore cluster status`; start them again, or leave them gone",
            )  # fmt: skip
    lag = max(seen.now.by("kvstore_cell_event_lag_seconds", "node").values(), default=0.0)
    if lag > _LAG:
        yield Finding(
            "warning", f"what is known of another node is {lag:.0f} s old",
            "that node or this one is overloaded, or the network between them is",
        )  # fmt: skip
    if (owed := seen.now.total("kvstore_owed_oldest_seconds")) > _OWED:
        yield Finding(
            "warning", f"copies are owed for {owed:.0f} s: a node that dies now may take blocks with it",
            "are enough nodes live and not full? raise repair_rate if the network allows it",
        )  # fmt: skip
    if dropped := grown(seen.before, seen.now, "kvstore_cell_index_dropped_total"):
        yield Finding(
            "warning", f"{dropped:g} blocks of other nodes were not noted: readers here miss them",
            "raise cell_index_entries",
        )  # fmt: skip


def _network(seen: Observed) -> Iterator[Finding]:
    if seen.now.total("kvstore_insecure_network"):
        yield Finding(
            "note", "the node listens beyond loopback without transport security (allow_insecure_network)",
            "keep that network to the cell's nodes and engines",
        )  # fmt: skip


_RULES = (_tiers, _hits, _layouts, _room, _busy, _cell, _network)
