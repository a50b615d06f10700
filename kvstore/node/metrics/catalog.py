"""Every metric of a node: names, labels, help. docs/metrics.md is made of this, and a scrape can show nothing else.

Names carry their unit: seconds, bytes, or what is counted. No label names a key, a client or a chain.
"""

from __future__ import annotations

from kvstore.node.metrics.family import Label, Section, counter, gauge
from kvstore.tiers.mover import DONE, FAILED, Priority
from kvstore.tiers.moves import GONE, NO_ROOM
from kvstore.tiers.nvme.blockio import CHECKSUM, IO, STALE, TRAILER
from kvstore.tiers.values import MissReason, PutOutcome

TIER = Label("tier", means="dram, and nvme where there is one")
PRIORITY = Label("priority", tuple(priority.name.lower() for priority in Priority))
LARGEST_NAMESPACES = 16

# --- what a cache is for ------------------------------------------------------------------------------------

HITS = counter("kvstore_hits_total", "Blocks that reads asked for and got.")
NVME_HITS = counter("kvstore_nvme_hits_total", "Those of them that were brought back from NVMe first.")
MISSES = counter(
    "kvstore_misses_total",
    "Blocks that reads asked for and did not get, by why the prefix ended. busy: the session holds all that it may.",
    Label("reason", tuple(reason.name.lower() for reason in MissReason if reason)),
)
READS = counter("kvstore_reads_total", "Reads that asked for blocks.")
MATCHES = counter("kvstore_matches_total", "Questions for how much of a chain is here.")
MATCHED = counter(
    "kvstore_matched_blocks_total", "Blocks that such questions named, by answer.", Label("answer", ("hit", "missed"))
)
PUT_BLOCKS = counter(
    "kvstore_put_blocks_total",
    "Blocks of puts, by outcome.",
    Label("outcome", tuple(outcome.name.lower() for outcome in PutOutcome)),
)

# --- what there is ------------------------------------------------------------------------------------------

BLOCKS = gauge("kvstore_blocks", "Blocks in the index.")
BLOCKS_WRITING = gauge("kvstore_blocks_writing", "Blocks being written.")
READY_BYTES = gauge("kvstore_ready_bytes", "Bytes of blocks that can be read.")
INDEX_BYTES = gauge("kvstore_index_bytes", "Memory of the index.")
TIER_CAPACITY = gauge("kvstore_tier_capacity_bytes", "Bytes for blocks that a tier has.", TIER)
TIER_USED = gauge("kvstore_tier_used_bytes", "Bytes of slots given out.", TIER)
TIER_BACKED = gauge("kvstore_tier_backed_bytes", "Memory or disk really taken, tables included.", TIER)
TIER_SEGMENTS = gauge("kvstore_tier_segments", "Segments of a tier.", TIER)
TIER_SEGMENTS_READY = gauge("kvstore_tier_segments_ready", "Segments that can be handed out.", TIER)
TIER_SLOTS = gauge("kvstore_tier_slots", "Slots in segments that serve a slot size.", TIER)
TIER_SLOTS_USED = gauge("kvstore_tier_slots_used", "Slots given out.", TIER)

# --- what goes ----------------------------------------------------------------------------------------------

CAUSE = Label(
    "cause", ("evicted", "asked", "purged", "namespace", "rotated", "aborted", "checksum", "stale", "io"),
    "evicted: to make room; asked: evict; namespace: dropped or displaced; aborted: the put ended; stale: NVMe had"
    " something else there",
)  # fmt: skip
EVICTIONS = counter("kvstore_evictions_total", "Blocks dropped, by cause.", CAUSE)
EVICTED_BYTES = counter("kvstore_evicted_bytes_total", "Bytes of readable blocks dropped, by cause.", CAUSE)
NVME_EVICTIONS = counter("kvstore_nvme_evictions_total", "Copies on NVMe given up to make room there.")
RECLAIMED = counter(
    "kvstore_reclaimed_segments_total", "Segments emptied to serve another slot size.", Label("tier", ("dram", "nvme"))
)
RELOCATED = counter("kvstore_relocated_parts_total", "Parts of blocks moved within DRAM for that.")

# --- who holds what -----------------------------------------------------------------------------------------

SESSIONS = gauge("kvstore_sessions", "Client sessions.")
ORPHANS = gauge("kvstore_orphan_sessions", "Sessions of an earlier start whose process still lives.")
LEASES = gauge("kvstore_leases", "Leases held by sessions.")
LEASED_BLOCKS = gauge("kvstore_blocks_leased", "Blocks under a lease, or held by the node itself for a moment.")
LEASED_BYTES = gauge("kvstore_leased_bytes", "Bytes that sessions hold to read, each lease by itself.")
OLDEST_LEASE = gauge("kvstore_oldest_lease_seconds", "Age of the lease that is held longest; 0: there is none.")
RESERVATIONS = gauge("kvstore_reservations", "Puts in progress.")
RESERVED_BYTES = gauge("kvstore_reserved_bytes", "Bytes that sessions hold to write.")

# --- between tiers ------------------------------------------------------------------------------------------

DEMOTIONS = counter(
    "kvstore_demotions_total", "Blocks that left DRAM and stayed on NVMe.",
    Label("how", ("clean", "written"), "clean: NVMe had it already"),
)  # fmt: skip
REFUSED = counter(
    "kvstore_demotions_refused_total", "Blocks that left DRAM and were not written to NVMe, by reason.",
    Label("reason", ("off", "score", "budget", "unavailable", "busy")),
)  # fmt: skip
DEMOTIONS_FAILED = counter("kvstore_demotions_failed_total", "Blocks whose write to NVMe failed.")
PROMOTIONS = counter(
    "kvstore_promotions_total", "Blocks brought from NVMe to DRAM.", Label("why", ("read", "prefetch"))
)
PROMOTED_BYTES = counter("kvstore_promoted_bytes_total", "Bytes of these blocks.")
PREFETCHED = counter("kvstore_prefetched_blocks_total", "Blocks that prefetches began to bring to DRAM.")
PREFETCH_OUTCOMES = counter(
    "kvstore_prefetch_outcomes_total", "Prefetched blocks that came, by whether somebody read them before they left.",
    Label("outcome", ("used", "wasted")),
)  # fmt: skip
MOVES_WAITING = gauge("kvstore_moves_waiting", "Moves that have not started.", PRIORITY)
MOVES_MAX = gauge("kvstore_moves_waiting_max", "Moves that may wait; further ones are refused.", PRIORITY)
MOVES_AGE = gauge(
    "kvstore_moves_oldest_seconds", "How long the next move to start has waited; 0: none waits.", PRIORITY
)
MOVES = counter(
    "kvstore_moves_total", "Moves that ended.", PRIORITY,
    Label("outcome", (DONE, FAILED, GONE, NO_ROOM), "gone: the block was dropped or moved meanwhile"),
)  # fmt: skip
MOVED_BYTES = counter("kvstore_moved_bytes_total", "Bytes moved between tiers.", PRIORITY)

# --- NVMe ---------------------------------------------------------------------------------------------------

NVME_REASON = Label("reason", (CHECKSUM, TRAILER, STALE, IO, FAILED))
NVME_STATE = gauge(
    "kvstore_nvme_state", "1 for the state that the NVMe tier is in.",
    Label("state", ("ok", "degraded", "read_only", "failed")),
)  # fmt: skip
NVME_BLOCKS = gauge("kvstore_nvme_blocks", "Blocks that can be read from NVMe.")
NVME_SCORE = gauge("kvstore_nvme_admission_score", "Least score of a block that is written now.")
NVME_BACKLOG = gauge("kvstore_nvme_backlog_entries", "Changes of the index that are not durable yet.")
NVME_BAD_SLOTS = gauge("kvstore_nvme_bad_slots", "Slots set aside because the disk could not read them.")
NVME_READS = counter("kvstore_nvme_reads_total", "Reads of parts of blocks from the disk.")
NVME_READ_BYTES = counter("kvstore_nvme_read_bytes_total", "Bytes of these reads.")
NVME_WRITES = counter("kvstore_nvme_writes_total", "Writes of parts of blocks to the disk.")
NVME_WRITTEN_BYTES = counter("kvstore_nvme_written_bytes_total", "Bytes really written, checksums included.")
NVME_STORED = counter("kvstore_nvme_stored_blocks_total", "Blocks handed over to be written, whatever became of it.")
NVME_STORED_BYTES = counter("kvstore_nvme_stored_bytes_total", "Bytes of these blocks.")
NVME_LOST = counter("kvstore_nvme_lost_blocks_total", "Blocks of which the disk lost what it was given.")
NVME_COMMITS = counter("kvstore_nvme_commits_total", "Commits of the index.")
NVME_RESTARTS = counter("kvstore_nvme_index_restarts_total", "Times that the index process died and was started again.")
NVME_LOAD_FAILURES = counter(
    "kvstore_nvme_load_failures_total", "Blocks that could not be read from NVMe.", NVME_REASON
)
NVME_FAILURES = counter(
    "kvstore_nvme_failures_total", "Reads of parts of blocks that failed; scrub_: by the check at rest.",
    Label("reason", means="those of kvstore_nvme_load_failures_total, also with scrub_ before them"),
)  # fmt: skip
NVME_SCRUBBED = counter("kvstore_nvme_scrubbed_total", "Parts of blocks on NVMe checked at rest.")
NVME_SCRUBBED_BYTES = counter("kvstore_nvme_scrubbed_bytes_total", "Bytes of these parts.")

# --- checks -------------------------------------------------------------------------------------------------

CHECKSUM_FAILURES = counter(
    "kvstore_checksum_failures_total", "Blocks that failed their checksums, at use or at rest; nobody was given them.",
    Label("where", ("dram", "nvme")),
)  # fmt: skip
RESCUED = counter("kvstore_rescued_blocks_total", "Blocks damaged in DRAM of which NVMe had a good copy.")
SCRUBBED = counter("kvstore_scrubbed_blocks_total", "Blocks in DRAM checked at rest.")
SCRUBBED_BYTES = counter("kvstore_scrubbed_bytes_total", "Bytes of these blocks.")
UNVERIFIED = gauge("kvstore_parts_unverified", "Parts re-adopted after a restart and not yet checked.")
ADOPTED = counter("kvstore_adopted_parts_total", "Parts of blocks that the start found again.")
ORPHANED = counter("kvstore_orphaned_parts_total", "Parts that the start dropped: those before them were not there.")
BACKGROUND = counter("kvstore_background_failures_total", "Errors of the node's own threads; the log has them.")

# --- namespaces ---------------------------------------------------------------------------------------------

NAMESPACES = gauge("kvstore_namespaces", "Namespaces that the node knows.")
NAMESPACE_BYTES = gauge(
    "kvstore_namespace_bytes", "Bytes of readable blocks.",
    Label("namespace", means=f"the {LARGEST_NAMESPACES} largest by the first 8 digits of their root; other: the rest"),
    Label("model", means="of the namespace, its first 64 characters"),
)  # fmt: skip
NAMESPACES_ENDED = counter(
    "kvstore_namespaces_ended_total", "Namespaces dropped by the node itself.",
    Label("cause", ("expired", "displaced"), "displaced: another one needed the place"),
)  # fmt: skip
NAMESPACES_REFUSED = counter(
    "kvstore_namespaces_refused_total", "Namespaces not opened because the table is full: engines without a cache."
)
PINNED_SOFT = gauge("kvstore_blocks_pinned_soft", "Blocks that are the last to be evicted.")
PINNED_HARD = gauge("kvstore_blocks_pinned_hard", "Blocks that are never evicted.")
PINNED_BYTES = gauge("kvstore_pinned_bytes", "Bytes of blocks that are never evicted.")
PINNED_MAX = gauge("kvstore_pinned_max_bytes", "Bytes that such blocks may take.")
PINS_REFUSED = counter("kvstore_pins_refused_total", "Requests to pin that would have passed that bound.")
PINS_EXPIRED = counter("kvstore_pins_expired_total", "Pins whose time was up.")

# --- events told to others ----------------------------------------------------------------------------------

EVENTS_SENT = counter("kvstore_events_sent_batches_total", "Batches of events made; each watcher gets all of them.")
EVENTS_SENT_BLOCKS = counter("kvstore_events_sent_blocks_total", "Blocks told of in these batches.")
SNAPSHOTS_SENT = counter("kvstore_events_sent_snapshots_total", "Times that a watcher was told everything anew.")
WATCHERS = gauge("kvstore_event_watchers", "Peers and routers that watch events.")

OTHER = counter(
    "kvstore_other_total", "Counters of the store without a metric of their own.",
    Label("counter", means="its name, as kvstore stat prints it"),
)  # fmt: skip

STORE_SECTIONS = (
    Section("Hits and misses", (HITS, NVME_HITS, MISSES, READS, MATCHES, MATCHED, PUT_BLOCKS)),
    Section(
        "Tiers",
        (
            BLOCKS, BLOCKS_WRITING, READY_BYTES, INDEX_BYTES, TIER_CAPACITY, TIER_USED, TIER_BACKED, TIER_SEGMENTS,
            TIER_SEGMENTS_READY, TIER_SLOTS, TIER_SLOTS_USED,
        ),
    ),
    Section("Eviction", (EVICTIONS, EVICTED_BYTES, NVME_EVICTIONS, RECLAIMED, RELOCATED)),
    Section(
        "Sessions and leases",
        (SESSIONS, ORPHANS, LEASES, LEASED_BLOCKS, LEASED_BYTES, OLDEST_LEASE, RESERVATIONS, RESERVED_BYTES),
    ),
    Section(
        "Between DRAM and NVMe",
        (
            DEMOTIONS, REFUSED, DEMOTIONS_FAILED, PROMOTIONS, PROMOTED_BYTES, PREFETCHED, PREFETCH_OUTCOMES,
            MOVES_WAITING, MOVES_MAX, MOVES_AGE, MOVES, MOVED_BYTES,
        ),
        "with an NVMe tier; without one the counters stay 0",
    ),
    Section(
        "NVMe",
        (
            NVME_STATE, NVME_BLOCKS, NVME_SCORE, NVME_BACKLOG, NVME_BAD_SLOTS, NVME_READS, NVME_READ_BYTES,
            NVME_WRITES, NVME_WRITTEN_BYTES, NVME_STORED, NVME_STORED_BYTES, NVME_LOST, NVME_COMMITS, NVME_RESTARTS,
            NVME_LOAD_FAILURES, NVME_FAILURES, NVME_SCRUBBED, NVME_SCRUBBED_BYTES,
        ),
        "with an NVMe tier",
    ),
    Section(
        "Checks and recovery",
        (CHECKSUM_FAILURES, RESCUED, SCRUBBED, SCRUBBED_BYTES, UNVERIFIED, ADOPTED, ORPHANED, BACKGROUND),
    ),
    Section(
        "Namespaces and pins",
        (
            NAMESPACES, NAMESPACE_BYTES, NAMESPACES_ENDED, NAMESPACES_REFUSED, PINNED_SOFT, PINNED_HARD, PINNED_BYTES,
            PINNED_MAX, PINS_REFUSED, PINS_EXPIRED,
        ),
    ),
    Section("Events for others", (EVENTS_SENT, EVENTS_SENT_BLOCKS, SNAPSHOTS_SENT, WATCHERS)),
    Section("Other counters", (OTHER,)),
)  # fmt: skip
