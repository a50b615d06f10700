"""What the dashboard shows: rows of panels, each with its unit and expressions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """``queries``: expression and legend. ``§`` in an expression stands for the nodes chosen, ``§(...)`` for more
    conditions, ``~`` for a rate's window."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    text: str = ""
    stacked: bool = False


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def stat(title: str, unit: str, expr: str, text: str = "") -> Panel:
    return Panel(title, unit, ((expr, ""),), "stat", 4, text)


def rate(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({metric}§({more})~))" if more else f"sum by ({by}) (rate({metric}§~))"


def quantile(share: float, by: str, more: str) -> str:
    return f"histogram_quantile({share}, {rate('kvstore_request_seconds_bucket', f'le, {by}', more)})"


def hit_share(hits: str, misses: str) -> str:
    return f"sum(rate({hits}~)) / (sum(rate({hits}~)) + sum(rate({misses}~)))"


READ_SHARE = hit_share("kvstore_hits_total§", "kvstore_misses_total§")
MATCH_SHARE = hit_share('kvstore_matched_blocks_total§(answer="hit")', 'kvstore_matched_blocks_total§(answer="missed")')
BAD = "sum(increase(kvstore_checksum_failures_total§[24h])) + sum(increase(kvstore_damaged_blocks_total§[24h]))"
OPS, SHARE, RATE_BYTES, SECONDS, BYTES, COUNT = "ops", "percentunit", "Bps", "s", "bytes", "short"

REPLICAS = "Of nodes with replicas of 2 or more."

ROWS = (
    Row(
        "Overview",
        (
            stat("Nodes up", COUNT, 'sum(up{job=~"$job"})', "That Prometheus reaches."),
            stat("Nodes ready", COUNT, "sum(kvstore_ready§)"),
            stat("Hits of reads", SHARE, READ_SHARE, "Of the blocks that reads asked for."),
            stat("Hits of questions", SHARE, MATCH_SHARE, "Of the blocks that engines asked about before they read."),
            stat(
                "Used of DRAM",
                SHARE,
                'sum(kvstore_tier_used_bytes§(tier="dram")) / sum(kvstore_tier_capacity_bytes§(tier="dram"))',
            ),
            stat("Checksum failures in 24 h", COUNT, BAD, "0 is right; every other number is damage that was caught."),
        ),
    ),
    Row(
        "Hits and misses",
        (
            Panel("Hit rate", SHARE, ((READ_SHARE, "reads"), (MATCH_SHARE, "questions"))),
            Panel("Misses by reason", OPS, ((rate("kvstore_misses_total", "reason"), "{{reason}}"),), stacked=True),
            Panel(
                "Where hits come from",
                OPS,
                (
                    (rate("kvstore_hits_total", "job"), "all"),
                    (rate("kvstore_nvme_hits_total", "job"), "from NVMe"),
                    (rate("kvstore_fetched_blocks_total", "job"), "fetched from other nodes"),
                ),
            ),
            Panel(
                "Blocks put, by outcome",
                OPS,
                ((rate("kvstore_put_blocks_total", "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            Panel("Evictions by cause", OPS, ((rate("kvstore_evictions_total", "cause"), "{{cause}}"),), stacked=True),
            Panel(
                "Bytes evicted",
                RATE_BYTES,
                ((rate("kvstore_evicted_bytes_total", "cause"), "{{cause}}"),),
                stacked=True,
            ),
        ),
    ),
    Row(
        "Requests",
        (
            Panel(
                "Bytes to clients and nodes",
                RATE_BYTES,
                ((rate("kvstore_sent_bytes_total", "transport"), "{{transport}}"),),
                stacked=True,
            ),
            Panel(
                "Bytes from clients",
                RATE_BYTES,
                ((rate("kvstore_received_bytes_total", "transport"), "{{transport}}"),),
                stacked=True,
            ),
            Panel("Requests", OPS, ((rate("kvstore_request_seconds_count", "op"), "{{op}}"),)),
            Panel(
                "Time of gets, by where blocks came from",
                SECONDS,
                (
                    (quantile(0.5, "tier", 'op="get"'), "half, {{tier}}"),
                    (quantile(0.99, "tier", 'op="get"'), "99 %, {{tier}}"),
                ),
            ),
            Panel("Time of requests, 99 %", SECONDS, ((quantile(0.99, "op", 'op!="get"'), "{{op}}"),)),
            Panel(
                "Bytes of a request, mean",
                BYTES,
                (
                    (
                        " / ".join(rate(f"kvstore_request_bytes_{part}", "op, transport") for part in ("sum", "count")),
                        "{{op}} {{transport}}",
                    ),
                ),
            ),
            Panel("Calls of the control plane", OPS, ((rate("kvstore_control_calls_total", "method"), "{{method}}"),)),
            Panel(
                "Errors by code",
                OPS,
                ((rate("kvstore_errors_total", "code") + " > 0 or vector(0)", "{{code}}"),),
                stacked=True,
            ),
            Panel("Refused for want of", OPS, ((rate("kvstore_busy_total", "bound"), "{{bound}}"),), stacked=True),
        ),
    ),
    Row(
        "Tiers",
        (
            Panel(
                "Used share",
                SHARE,
                (("kvstore_tier_used_bytes§ / kvstore_tier_capacity_bytes§", "{{instance}} {{tier}}"),),
            ),
            Panel(
                "Used",
                BYTES,
                (
                    ("sum by (tier) (kvstore_tier_used_bytes§)", "{{tier}}"),
                    ("sum by (tier) (kvstore_tier_capacity_bytes§)", "{{tier}}, all"),
                ),
            ),
            Panel(
                "Largest namespaces",
                BYTES,
                (("sum by (namespace, model) (kvstore_namespace_bytes§)", "{{namespace}} {{model}}"),),
                stacked=True,
            ),
            Panel(
                "Held by sessions",
                BYTES,
                (
                    ("sum(kvstore_leased_bytes§)", "leased"),
                    ("sum(kvstore_reserved_bytes§)", "reserved"),
                    ("sum(kvstore_pinned_bytes§)", "pinned"),
                ),
            ),
            Panel("Oldest lease", SECONDS, (("kvstore_oldest_lease_seconds§", "{{instance}}"),)),
            Panel(
                "Sessions and connections",
                COUNT,
                (("sum(kvstore_sessions§)", "sessions"), ("sum(kvstore_connections§)", "connections")),
            ),
        ),
    ),
    Row(
        "NVMe",
        (
            Panel("State", COUNT, (("sum by (state) (kvstore_nvme_state§)", "{{state}}"),), stacked=True),
            Panel(
                "Bytes of the disk",
                RATE_BYTES,
                (
                    (rate("kvstore_nvme_read_bytes_total", "job"), "read"),
                    (rate("kvstore_nvme_written_bytes_total", "job"), "written"),
                    (rate("kvstore_nvme_scrubbed_bytes_total", "job"), "checked at rest"),
                ),
            ),
            Panel("Moves that wait", COUNT, (("sum by (priority) (kvstore_moves_waiting§)", "{{priority}}"),)),
            Panel(
                "How long the next move has waited",
                SECONDS,
                (("max by (priority) (kvstore_moves_oldest_seconds§)", "{{priority}}"),),
            ),
            Panel("Moves", OPS, ((rate("kvstore_moves_total", "priority, outcome"), "{{priority}} {{outcome}}"),)),
            Panel(
                "Leave DRAM",
                OPS,
                (
                    (rate("kvstore_demotions_total", "how"), "{{how}}"),
                    (rate("kvstore_demotions_refused_total", "reason"), "not written: {{reason}}"),
                ),
            ),
            Panel("Come back to DRAM", OPS, ((rate("kvstore_promotions_total", "why"), "{{why}}"),)),
            Panel(
                "Prefetched blocks",
                OPS,
                (
                    (rate("kvstore_prefetched_blocks_total", "job"), "begun"),
                    (rate("kvstore_prefetch_outcomes_total", "outcome"), "{{outcome}}"),
                ),
            ),
            Panel(
                "Failures",
                OPS,
                (
                    (rate("kvstore_nvme_load_failures_total", "reason"), "{{reason}}"),
                    (rate("kvstore_demotions_failed_total", "job"), "writes"),
                ),
            ),
        ),
    ),
    Row(
        "Cell",
        (
            Panel(
                "Other nodes, as the nodes see them", COUNT, (("max by (state) (kvstore_cell_nodes§)", "{{state}}"),)
            ),
            Panel("Lag of events", SECONDS, (("max by (instance) (kvstore_cell_event_lag_seconds§)", "{{instance}}"),)),
            Panel(
                "Blocks told and heard of",
                OPS,
                (
                    (rate("kvstore_events_sent_blocks_total", "job"), "told"),
                    (rate("kvstore_events_received_blocks_total", "job"), "heard"),
                ),
            ),
            Panel(
                "Told anew",
                OPS,
                (
                    (rate("kvstore_events_gaps_total", "job"), "gaps"),
                    (rate("kvstore_events_received_snapshots_total", "job"), "snapshots"),
                    (rate("kvstore_events_streams_lost_total", "job"), "streams lost"),
                ),
            ),
            Panel("Bytes fetched", RATE_BYTES, ((rate("kvstore_fetched_bytes_total", "instance"), "{{instance}}"),)),
            Panel(
                "Blocks that were not fetched",
                OPS,
                (
                    (rate("kvstore_fetch_failures_total", "reason"), "{{reason}}"),
                    (rate("kvstore_fetch_busy_blocks_total", "job"), "not tried"),
                ),
                stacked=True,
            ),
            Panel(
                "Index of the cell",
                SHARE,
                (("kvstore_cell_index_blocks§ / kvstore_cell_index_max_blocks§", "{{instance}}"),),
            ),
            Panel(
                "Discovery",
                COUNT,
                (
                    ("kvstore_cell_discovery_problem§", "problem {{instance}}"),
                    ("kvstore_cell_unanswered§", "unanswered {{instance}}"),
                ),
            ),
            Panel("Fetches under way", COUNT, (("kvstore_fetch_under_way§", "{{instance}}"),)),
            Panel("New bytes without their copies", BYTES, (("kvstore_owed_bytes§", "{{instance}}"),), text=REPLICAS),
            Panel(
                "Age of the oldest copy owed",
                SECONDS,
                (("kvstore_owed_oldest_seconds§", "{{instance}}"),),
                text=REPLICAS,
            ),
            Panel(
                "Chains that lack copies",
                COUNT,
                (("kvstore_owed_chains§", "new, {{instance}}"), ("kvstore_lacking_chains§", "lost, {{instance}}")),
                text=REPLICAS,
            ),
            Panel(
                "Copies made",
                OPS,
                (
                    (rate("kvstore_copies_total", "outcome"), "{{outcome}}"),
                    (rate("kvstore_copy_failures_total", "reason") + " or vector(0)", "failed: {{reason}}"),
                ),
                text=REPLICAS,
            ),
        ),
    ),
    Row(
        "Processes",
        (
            Panel(
                "Processor", COUNT, ((rate("process_cpu_seconds_total", "instance"), "{{instance}}"),), text="Cores."
            ),
            Panel(
                "Memory",
                BYTES,
                (("process_resident_memory_bytes§", "{{instance}}"), ("kvstore_index_bytes§", "index {{instance}}")),
            ),
            Panel("Open files", COUNT, (("process_open_fds§", "{{instance}}"),)),
            Panel("Up since", SECONDS, (("kvstore_uptime_seconds§", "{{instance}}"),)),
            Panel("Time of the start", SECONDS, (("kvstore_recovery_seconds§", "{{instance}}"),)),
            Panel("Versions", COUNT, (("count by (version) (kvstore_node_info§)", "{{version}}"),)),
        ),
    ),
)
