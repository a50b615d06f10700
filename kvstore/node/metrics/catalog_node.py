"""The metrics of a node's servers and of its cell; those of the store are in the catalog."""

from __future__ import annotations

from kvstore.node.metrics.catalog import STORE_SECTIONS
from kvstore.node.metrics.family import HISTOGRAM, Family, Label, Section, counter, gauge
from kvstore.v1 import types_pb2 as types

# Upper bounds in seconds: from a small request over a unix socket to a large batch that waits for a slow peer.
BUCKETS = (25e-6, 50e-6, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.5, 2.5, 10.0)
SIZES = tuple(4096 << 2 * step for step in range(10))  # 4 KiB to 1 GiB
TIERS = ("none", "dram", "nvme", "remote")
NONE, DRAM, NVME, REMOTE = range(len(TIERS))
TRANSPORTS = ("shm", "unix", "tcp", "nixl", "ucx", "peer")

OP = Label("op", means="of the data path, as in protocol.md")
TRANSPORT = Label(
    "transport", TRANSPORTS,
    "shm: through the memory file, with requests over the unix socket; nixl, ucx: by that library, with requests over "
    "TCP; peer: another node, over TCP",
)  # fmt: skip
FROM = Label(
    "tier", TIERS, "slowest source of a get: dram, nvme (it waited for it), remote (other nodes); none: no blocks moved"
)
METHOD = Label("method", means="of kvstore.v1.Control")
LISTENER = Label("transport", ("unix", "tcp"))
_CODES = (code.name.removeprefix("ERROR_CODE_").lower() for code in types.ErrorCode.DESCRIPTOR.values)
CODE = Label("code", tuple(code for code in _CODES if code not in ("ok", "config")))
BOUNDS = ("max_connections", "max_sessions", "http_connections", "event_watchers", "rotation", "other")

RECEIVED = counter(
    "kvstore_received_bytes_total", "Bytes of blocks received, or reserved in shared memory.", OP, TRANSPORT
)
SENT = counter("kvstore_sent_bytes_total", "Bytes of blocks sent, or leased in shared memory.", OP, TRANSPORT)
REQUEST_SECONDS = Family(
    "kvstore_request_seconds", HISTOGRAM,
    "Time from a request's first byte to the end of its reply. Copying by a shared-memory client is not in it.",
    (OP, TRANSPORT, FROM), BUCKETS,
)  # fmt: skip
REQUEST_BYTES = Family(
    "kvstore_request_bytes", HISTOGRAM, "Bytes of blocks that one request moved, where it moved any.",
    (OP, TRANSPORT, FROM), SIZES,
)  # fmt: skip
CONTROL_CALLS = counter("kvstore_control_calls_total", "Calls of the gRPC control plane.", METHOD)
CONTROL_SECONDS = Family(
    "kvstore_control_seconds", HISTOGRAM, "Time that ended calls of the control plane took, streams to their end.",
    (METHOD,), BUCKETS,
)  # fmt: skip

ERRORS = counter("kvstore_errors_total", "Requests answered with an error, by code.", CODE)
BUSY = counter(
    "kvstore_busy_total", "Requests refused because a bound is reached.",
    Label("bound", BOUNDS, "the setting; rotation: its namespace is being rotated or dropped"),
)  # fmt: skip
DAMAGED = counter(
    "kvstore_damaged_blocks_total", "Blocks of puts that did not arrive as they were sent, and were not stored.",
    TRANSPORT,
)  # fmt: skip
ACCEPTED = counter("kvstore_connections_accepted_total", "Connections accepted.", LISTENER)
REFUSED = counter("kvstore_connections_refused_total", "Connections refused because a bound is reached.", LISTENER)
CUT = counter(
    "kvstore_connections_cut_total", "Connections closed by the node.",
    Label("cause", ("stalled", "silent", "shutdown", "bye")),
)  # fmt: skip

READY = gauge("kvstore_ready", "1 when the node serves, and others can find it.")
DRAINING = gauge("kvstore_draining", "1 while the node wants no new blocks.")
CONNECTIONS = gauge("kvstore_connections", "Open data connections.")
STARTED = gauge("kvstore_start_time_seconds", "When the node was started, in seconds since the epoch.")
UPTIME = gauge("kvstore_uptime_seconds", "Time since the start.")
RECOVERY = gauge(
    "kvstore_recovery_seconds", "How long the start took, until the node served with all it had found again."
)
INSECURE = gauge("kvstore_insecure_network", "1 when it listens beyond loopback without security.")
INFO = gauge(
    "kvstore_node_info", "Always 1; its labels say who the node is.", Label("node_id", means="its own"),
    Label("version", means="of the program"),
)  # fmt: skip

CELL_NODES = gauge(
    "kvstore_cell_nodes", "Other nodes of the cell, as this one sees them.",
    Label("state", ("live", "draining", "suspect", "gone")),
)  # fmt: skip
CELL_LAG = gauge(
    "kvstore_cell_event_lag_seconds", "Time since what is known of a node's blocks was complete.",
    Label("node", means="its id; a cell has at most 255 nodes"),
)  # fmt: skip
CELL_PROBLEM = gauge("kvstore_cell_discovery_problem", "1 while discovery does not work.")
CELL_UNANSWERED = gauge("kvstore_cell_unanswered", "Addresses at which no node of the cell answers.")
CELL_BLOCKS = gauge("kvstore_cell_index_blocks", "Blocks of other nodes in the index.")
CELL_MAX_BLOCKS = gauge("kvstore_cell_index_max_blocks", "Room for blocks there.")
CELL_BYTES = gauge("kvstore_cell_index_bytes", "Memory of that index when it is full.")
CELL_DROPPED = counter("kvstore_cell_index_dropped_total", "Blocks that were not noted, for want of room.")
EVENTS_RECEIVED = counter("kvstore_events_received_batches_total", "Batches of events received from other nodes.")
EVENTS_RECEIVED_BLOCKS = counter("kvstore_events_received_blocks_total", "Blocks told of in these batches.")
SNAPSHOTS_RECEIVED = counter(
    "kvstore_events_received_snapshots_total", "Times that all blocks of a node were learnt anew."
)
EVENT_GAPS = counter(
    "kvstore_events_gaps_total", "Times that events of a running node were missing: it is asked for all anew."
)
STREAMS_LOST = counter("kvstore_events_streams_lost_total", "Times that the event stream of another node broke.")

FETCH_REASONS = (
    "absent",
    "timeout",
    "unavailable",
    "checksum",
    "busy",
    "no_space",
    "rotated",
    "dropped",
    "late",
    "chain",
    "error",
)
FETCHED = counter("kvstore_fetched_blocks_total", "Blocks fetched from other nodes for readers of this one.")
FETCHED_BYTES = counter("kvstore_fetched_bytes_total", "Bytes of these blocks.")
FETCH_BATCHES = counter("kvstore_fetch_batches_total", "Batches of blocks for which other nodes were asked.")
FETCH_SECONDS = counter("kvstore_fetch_seconds_total", "Time that these batches took to arrive, added up.")
FETCH_JOINED = counter("kvstore_fetch_joined_blocks_total", "Blocks that were on their way for another reader already.")
FETCH_BUSY = counter("kvstore_fetch_busy_blocks_total", "Blocks that were not fetched because too many waited.")
FETCH_FAILURES = counter("kvstore_fetch_failures_total", "Blocks that did not come.", Label("reason", FETCH_REASONS))
FETCHING = gauge("kvstore_fetch_under_way", "Blocks on their way, or waiting for it.")

OWED_CHAINS = gauge("kvstore_owed_chains", "Chains of which other nodes are to have a copy and do not yet.")
OWED_BLOCKS = gauge("kvstore_owed_blocks", "Blocks of these chains.")
OWED_BYTES = gauge("kvstore_owed_bytes", "Bytes of these chains that are new.")
OWED_AGE = gauge("kvstore_owed_oldest_seconds", "How long one of them has waited; 0: none waits.")
OWED_DROPPED = counter("kvstore_owed_dropped_total", "Chains for which there was no room: a later scan finds them.")
COPIES = counter(
    "kvstore_copies_total", "Chains of which another node was given a copy.",
    Label("outcome", ("made", "confirmed"), "confirmed: it had the copy already"),
)  # fmt: skip
COPIED_BYTES = counter("kvstore_copied_bytes_total", "Bytes of these copies.")
COPY_SECONDS = counter("kvstore_copy_seconds_total", "Time that these copies took, added up.")
COPY_FAILURES = counter(
    "kvstore_copy_failures_total", "Copies that could not be made.", Label("reason", means="what the other node said")
)
LACKING = gauge("kvstore_lacking_chains", "Chains that lost copies, found by the last look and not copied again yet.")
COPY_BUSY = counter("kvstore_copy_busy_total", "Puts that did not wait for their copies because too many waited.")
UNREPLICATED = counter("kvstore_unreplicated_blocks_total", "Blocks acknowledged as not on as many nodes in time.")
OWED_MISSED = counter("kvstore_owed_missed_total", "Chains given up after several attempts: a later scan finds them.")
MEND_LOOKS = counter("kvstore_mend_looks_total", "Times that all chains were looked through for lost copies.")
MENDED = counter("kvstore_mended_chains_total", "Chains that have as many copies again.")
MEND_FAILURES = counter("kvstore_mend_failures_total", "Chains for which no node had room, or that did not arrive.")
EXTRA_COPIES = counter("kvstore_extra_copies_total", "Copies beyond those owed, of chains that are read much.")
COOLED = counter("kvstore_cooled_blocks_total", "Blocks given up here because enough other nodes hold them.")

PROCESS = (  # made by prometheus-client, and named as by every program that uses it
    gauge("process_virtual_memory_bytes", "Virtual memory size in bytes."),
    gauge("process_resident_memory_bytes", "Resident memory size in bytes."),
    gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds."),
    counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds."),
    gauge("process_open_fds", "Number of open file descriptors."),
    gauge("process_max_fds", "Maximum number of open file descriptors."),
)

SECTIONS = (
    *STORE_SECTIONS[:1],
    Section("Requests", (REQUEST_SECONDS, REQUEST_BYTES, RECEIVED, SENT, CONTROL_CALLS, CONTROL_SECONDS)),
    Section("Errors and refusals", (ERRORS, BUSY, DAMAGED, ACCEPTED, REFUSED, CUT)),
    *STORE_SECTIONS[1:-1],
    Section(
        "Cell",
        (
            CELL_NODES, CELL_LAG, CELL_PROBLEM, CELL_UNANSWERED, CELL_BLOCKS, CELL_MAX_BLOCKS, CELL_BYTES,
            CELL_DROPPED, EVENTS_RECEIVED, EVENTS_RECEIVED_BLOCKS, SNAPSHOTS_RECEIVED, EVENT_GAPS, STREAMS_LOST,
        ),
        "of a node that is one of a cell",
    ),
    Section(
        "Fetching from other nodes",
        (
            FETCHED, FETCHED_BYTES, FETCH_BATCHES, FETCH_SECONDS, FETCH_JOINED, FETCH_BUSY, FETCH_FAILURES, FETCHING,
        ),
        "of a node that is one of a cell, with fetch on",
    ),
    Section(
        "Copies on other nodes",
        (
            OWED_CHAINS, OWED_BLOCKS, OWED_BYTES, OWED_AGE, OWED_DROPPED, COPIES, COPIED_BYTES, COPY_SECONDS,
            COPY_FAILURES, LACKING, COPY_BUSY, UNREPLICATED, OWED_MISSED, MEND_LOOKS, MENDED, MEND_FAILURES,
            EXTRA_COPIES, COOLED,
        ),
        "of a node that is one of a cell",
    ),
    Section("Node", (READY, DRAINING, CONNECTIONS, STARTED, UPTIME, RECOVERY, INSECURE, INFO)),
    Section("Process", PROCESS),
    STORE_SECTIONS[-1],
)  # fmt: skip
FAMILIES = {family.name: family for section in SECTIONS for family in section.families}
