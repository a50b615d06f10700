"""What makes each alert fire, and what is like it and must not: series by the minute, as promtool writes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """``series`` by name, labels of the node are added. ``fires``: whether the alert does after ``minutes``."""

    alert: str
    fires: bool
    series: dict[str, str]
    minutes: int = 40


def nothing_hits(fires: bool, hits: str, misses: str, matched: str, missed: str) -> Case:
    """Of reads, and of questions for how much is there."""
    series = {
        "kvstore_hits_total": hits,
        'kvstore_misses_total{reason="absent"}': misses,
        'kvstore_matched_blocks_total{answer="hit"}': matched,
        'kvstore_matched_blocks_total{answer="missed"}': missed,
    }
    return Case("KvstoreNothingHits", fires, series, 50)


FETCH = 'kvstore_fetch_failures_total{reason="%s"}'
TIER = 'kvstore_tier_%s_bytes{tier="dram"}'
MOVES = 'kvstore_moves_%s{priority="demotion"}'
CASES = (
    Case("KvstoreNodeDown", True, {"up": "1x10 0x40"}),
    Case("KvstoreNodeDown", False, {"up": "1x40"}),
    Case("KvstoreNodeDown", False, {'up{job="other"}': "0x40"}),
    Case("KvstoreNodeNotReady", True, {"kvstore_ready": "0x40", "kvstore_draining": "0x40"}),
    Case("KvstoreNodeNotReady", False, {"kvstore_ready": "0x40", "kvstore_draining": "1x40"}),
    Case("KvstoreNodeNotReady", False, {"kvstore_ready": "0x3 1x40", "kvstore_draining": "0x40"}, 10),
    Case("KvstoreNodeRestarts", True, {"kvstore_start_time_seconds": "100x20 200x5 300x5 400x10"}),
    Case("KvstoreNodeRestarts", False, {"kvstore_start_time_seconds": "100x20 200x20"}),
    Case("KvstoreSlowRecovery", True, {"kvstore_recovery_seconds": "90x40", "kvstore_uptime_seconds": "0+10x40"}),
    Case("KvstoreSlowRecovery", False, {"kvstore_recovery_seconds": "5x40", "kvstore_uptime_seconds": "0+10x40"}),
    Case("KvstoreSlowRecovery", False, {"kvstore_recovery_seconds": "90x40", "kvstore_uptime_seconds": "9000x40"}),
    Case("KvstoreInsecureNetwork", True, {"kvstore_insecure_network": "1x40"}),
    Case("KvstoreInsecureNetwork", False, {"kvstore_insecure_network": "0x40"}),
    Case("KvstoreInternalErrors", True, {'kvstore_errors_total{code="internal"}': "0x30 1x10"}),
    Case("KvstoreInternalErrors", True, {"kvstore_background_failures_total": "0x30 1x10"}),
    Case("KvstoreInternalErrors", False, {'kvstore_errors_total{code="busy"}': "0+5x40"}),
    nothing_hits(True, "0x60", "0x60", "0x60", "0+600x60"),
    nothing_hits(True, "7x60", "0+600x60", "9x60", "0x60"),
    nothing_hits(False, "0+1x60", "0+600x60", "0x60", "0x60"),
    nothing_hits(False, "0x60", "0x60", "0+9x60", "0+600x60"),
    nothing_hits(False, "0x60", "0x60", "0x60", "0x60"),
    Case("KvstorePutsRefused", True, {'kvstore_put_blocks_total{outcome="no_space"}': "0+2x40"}),
    Case("KvstorePutsRefused", False, {'kvstore_put_blocks_total{outcome="stored"}': "0+2x40"}),
    Case("KvstorePutsRefused", False, {'kvstore_put_blocks_total{outcome="no_space"}': "0x38 5x2"}),
    Case("KvstoreTierFull", True, {TIER % "used": "99x40", TIER % "capacity": "100x40"}),
    Case("KvstoreTierFull", False, {TIER % "used": "95x40", TIER % "capacity": "100x40"}),
    Case("KvstoreBusy", True, {'kvstore_busy_total{bound="max_sessions"}': "0+1x40"}),
    Case("KvstoreBusy", False, {'kvstore_busy_total{bound="rotation"}': "0+1x40"}),
    Case("KvstoreChecksumFailures", True, {'kvstore_checksum_failures_total{where="nvme"}': "0x30 1x10"}),
    Case("KvstoreChecksumFailures", True, {'kvstore_damaged_blocks_total{transport="tcp"}': "0x30 1x10"}),
    Case("KvstoreChecksumFailures", True, {FETCH % "checksum": "0x30 1x10"}),
    Case("KvstoreChecksumFailures", False, {'kvstore_checksum_failures_total{where="dram"}': "3x70"}, 60),
    Case("KvstoreChecksumFailures", False, {FETCH % "absent": "0+3x40"}),
    Case("KvstoreLeasesHeldLong", True, {"kvstore_oldest_lease_seconds": "0+60x40"}),
    Case("KvstoreLeasesHeldLong", False, {"kvstore_oldest_lease_seconds": "0+1x40"}),
    Case("KvstoreNamespacesRefused", True, {"kvstore_namespaces_refused_total": "0x30 2x10"}),
    Case("KvstoreNamespacesRefused", False, {"kvstore_namespaces_refused_total": "2x40"}),
    Case("KvstoreNvmeNotOk", True, {'kvstore_nvme_state{state="ok"}': "1x10 0x30"}),
    Case(
        "KvstoreNvmeNotOk",
        False,
        {'kvstore_nvme_state{state="ok"}': "1x40", 'kvstore_nvme_state{state="failed"}': "0x40"},
    ),
    Case("KvstoreNvmeErrors", True, {'kvstore_nvme_failures_total{reason="scrub_io"}': "0x30 1x10"}),
    Case("KvstoreNvmeErrors", True, {"kvstore_nvme_lost_blocks_total": "0x30 1x10"}),
    Case("KvstoreNvmeErrors", True, {"kvstore_nvme_index_restarts_total": "0x30 1x10"}),
    Case("KvstoreNvmeErrors", False, {'kvstore_nvme_failures_total{reason="stale"}': "0+1x40"}),
    Case("KvstoreMovesWait", True, {MOVES % "waiting": "900x40", MOVES % "waiting_max": "1000x40"}),
    Case("KvstoreMovesWait", True, {MOVES % "oldest_seconds": "45x40"}),
    Case(
        "KvstoreMovesWait",
        False,
        {MOVES % "waiting": "9x40", MOVES % "waiting_max": "1000x40", MOVES % "oldest_seconds": "1x40"},
    ),
    Case("KvstoreNodeSuspect", True, {'kvstore_cell_nodes{state="suspect"}': "0x10 1x30"}),
    Case("KvstoreNodeSuspect", False, {'kvstore_cell_nodes{state="live"}': "2x40"}),
    Case("KvstoreNodeGone", True, {'kvstore_cell_nodes{state="gone"}': "0x35 1x5"}),
    Case("KvstoreNodeGone", False, {'kvstore_cell_nodes{state="gone"}': "1x40"}),
    Case("KvstoreDiscoveryProblem", True, {"kvstore_cell_discovery_problem": "1x40"}),
    Case("KvstoreDiscoveryProblem", False, {"kvstore_cell_discovery_problem": "0x40"}),
    Case("KvstoreEventGaps", True, {"kvstore_events_gaps_total": "0+2x40"}),
    Case("KvstoreEventGaps", False, {"kvstore_events_gaps_total": "0x30 1x10"}),
    Case("KvstoreFetchFailures", True, {FETCH % "timeout": "0+20x40", "kvstore_fetched_blocks_total": "0+60x40"}),
    Case("KvstoreFetchFailures", False, {FETCH % "timeout": "0+2x40", "kvstore_fetched_blocks_total": "0+60x40"}),
    Case("KvstoreFetchFailures", False, {FETCH % "absent": "0+90x40", "kvstore_fetched_blocks_total": "0+60x40"}),
    Case("KvstoreCellIndexFull", True, {"kvstore_cell_index_dropped_total": "0+5x40"}),
    Case("KvstoreCellIndexFull", False, {"kvstore_cell_index_dropped_total": "5x40"}),
    Case("KvstoreCopiesOwed", True, {"kvstore_owed_oldest_seconds": "0+60x40"}),
    Case("KvstoreCopiesOwed", True, {"kvstore_lacking_chains": "5x70"}, 60),
    Case("KvstoreCopiesOwed", False, {"kvstore_owed_oldest_seconds": "2x40"}),
    Case("KvstoreCopiesOwed", False, {"kvstore_lacking_chains": "5x30 0x40"}, 60),
)
