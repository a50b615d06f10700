"""What /metrics may show: one catalog, and all that is counted is in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvstore.core.errors import Busy, NoSpace
from kvstore.node.metrics import DRAM, NVME, Collector, NodeMetrics, catalog, catalog_node, render, store_metrics
from kvstore.node.metrics.catalog_node import FAMILIES, SECTIONS
from kvstore.node.metrics.family import COUNTER, GAUGE, HISTOGRAM, Family, Histogram, distributed, sampled, single
from kvstore.node.metrics.replication import OwedCopies, replication_metrics
from kvstore.node.metrics.store import places_of
from kvstore.node.replies import code_name
from kvstore.tiers.namespaces import NamespaceSpec
from kvstore.tiers.values import Held, NamespaceStat, NvmeReport, StoreStat
from kvstore.transport.frame import Op
from tools import metrics_doc

ROOT = Path(__file__).parents[3]
UNITS = ("_seconds", "_bytes", "_total")
COUNTED = re.compile(r'counters\["(\w+)"( \+ [^\]]+)?\]')


def page(metrics: NodeMetrics, *families: object) -> dict[str, float]:
    body, _ = render(Collector(metrics, lambda: families))  # type: ignore[arg-type,return-value]
    lines = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


# --- the catalog --------------------------------------------------------------------------------------------


def test_the_page_of_the_docs_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_doc.page(), "run python -m tools.metrics_doc"


def test_every_family_is_in_one_section() -> None:
    declared = {id(v): v for module in (catalog, catalog_node) for v in vars(module).values() if isinstance(v, Family)}
    shown = [family for section in SECTIONS for family in section.families]
    assert {family.name for family in declared.values()} <= {family.name for family in shown}
    assert len(FAMILIES) == len(shown)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_names_and_kinds_follow_prometheus(family: Family) -> None:
    assert re.fullmatch(r"(kvstore|process)_[a-z_]+[a-z]", family.name)
    assert family.kind in (COUNTER, GAUGE, HISTOGRAM)
    assert family.name.endswith("_total") == (family.kind == COUNTER)
    assert family.kind != HISTOGRAM or family.name.endswith(UNITS)
    assert bool(family.buckets) == (family.kind == HISTOGRAM)
    assert list(family.buckets) == sorted(family.buckets)
    assert family.help.endswith(".")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_label_is_bounded(family: Family) -> None:
    for label in family.labels:
        assert label.values or label.means, f"nothing is said of what {label.name} can be"
    assert not {label.name for label in family.labels} & {"key", "session", "client", "tenant", "request", "chain"}
    assert len(list(family.combinations())) <= 64


def test_every_counter_of_the_store_has_a_family() -> None:
    found = set()
    for path in (ROOT / "tiers").rglob("*.py"):
        for name, more in COUNTED.findall(path.read_text()):
            found.add(name + "something" if more else name)
    assert len(found) > 30
    assert [name for name in sorted(found) if not places_of(name)] == []


def test_a_counter_that_nobody_knows_is_shown_by_its_name() -> None:
    found = page(NodeMetrics(), *store_metrics(stat(counters={"new_things": 3})))
    assert found['kvstore_other_total{counter="new_things"}'] == 3


# --- samples ------------------------------------------------------------------------------------------------


def test_counters_are_there_before_their_first_event() -> None:
    found = page(NodeMetrics(), *store_metrics(stat()))
    for reason in ("absent", "checksum", "busy", "loading"):
        assert found[f'kvstore_misses_total{{reason="{reason}"}}'] == 0
    assert found['kvstore_evictions_total{cause="evicted"}'] == found["kvstore_hits_total"] == 0
    assert found['kvstore_errors_total{code="no_space"}'] == found['kvstore_busy_total{bound="max_sessions"}'] == 0
    assert not any(name.startswith("kvstore_nvme_state") for name in found)


def test_one_counter_can_be_part_of_several_families() -> None:
    counters = {"load_failed_blocks_checksum": 2, "scrubbed_bad_blocks": 3, "verify_failed_blocks": 1}
    found = page(NodeMetrics(), *store_metrics(stat(counters=counters)))
    assert found['kvstore_nvme_load_failures_total{reason="checksum"}'] == 2
    assert found['kvstore_checksum_failures_total{where="nvme"}'] == 5
    assert found['kvstore_checksum_failures_total{where="dram"}'] == 1


def test_a_wrong_number_of_labels_is_an_error() -> None:
    with pytest.raises(ValueError, match="label"):
        single(catalog.MISSES, 1)


def test_the_largest_namespaces_are_named_and_the_others_added_up() -> None:
    names = [NamespaceStat(n, bytes([n]) * 16, spec(), b"", 1, 1000 + n, 0.0) for n in range(40)]
    found = page(NodeMetrics(), *store_metrics(stat(namespaces=tuple(names))))
    sizes = {name: value for name, value in found.items() if name.startswith("kvstore_namespace_bytes")}
    assert len(sizes) == catalog.LARGEST_NAMESPACES + 1
    assert sizes['kvstore_namespace_bytes{model="m",namespace="27272727"}'] == 1039
    assert sizes['kvstore_namespace_bytes{model="",namespace="other"}'] == sum(1000 + n for n in range(24))
    assert found["kvstore_namespaces"] == 40


def test_the_mover_s_queues_show_depth_bound_and_age() -> None:
    nvme = NvmeReport(
        "degraded", "x", 0.0, "y", 5, 0.5, {"moves_demotion_done": 4, "moved_bytes_demotion": 8, "failures_io": 1},
        {"reader": 0, "demotion": 7}, {"reader": 0.0, "demotion": 1.5}, {"reader": 10, "demotion": 20}, 3, 2,
    )  # fmt: skip
    found = page(NodeMetrics(), *store_metrics(stat(nvme=nvme)))
    assert found['kvstore_moves_waiting{priority="demotion"}'] == 7
    assert found['kvstore_moves_waiting_max{priority="demotion"}'] == 20
    assert found['kvstore_moves_oldest_seconds{priority="demotion"}'] == 1.5
    assert found['kvstore_moves_total{outcome="done",priority="demotion"}'] == 4
    assert found['kvstore_nvme_state{state="degraded"}'] == 1
    assert found['kvstore_nvme_state{state="ok"}'] == 0
    assert found['kvstore_nvme_failures_total{reason="io"}'] == 1
    assert (found["kvstore_nvme_backlog_entries"], found["kvstore_nvme_bad_slots"]) == (3, 2)


def test_what_is_owed_to_other_nodes_has_age_and_size() -> None:
    owed = OwedCopies(chains=2, blocks=9, size=90, oldest=3.5, dropped=1)
    counts = {"made": 4, "bytes": 40, "failed_busy": 2, "mended": 3}
    found = page(NodeMetrics(), *replication_metrics(owed, counts))
    assert found["kvstore_mended_chains_total"] == 3
    assert (found["kvstore_owed_bytes"], found["kvstore_owed_oldest_seconds"]) == (90, 3.5)
    assert found['kvstore_copies_total{outcome="made"}'] == 4
    assert found['kvstore_copy_failures_total{reason="busy"}'] == 2


# --- counting -----------------------------------------------------------------------------------------------


def test_requests_are_told_apart_by_op_transport_and_tier() -> None:
    metrics = NodeMetrics()
    tally = metrics.tally("unix")
    tally.transport = "shm"  # said when its session is known
    tally.request(Op.GET, 0.002, 0, 5000, DRAM)
    tally.request(Op.GET, 0.2, 0, 1 << 31, NVME)
    tally.request(Op.MATCH, 0.0001, 0, 0)
    for found in (page(metrics), (metrics.retire(tally), page(metrics))[1]):
        assert found['kvstore_request_seconds_count{op="get",tier="nvme",transport="shm"}'] == 1
        assert found['kvstore_request_bytes_bucket{le="4096.0",op="get",tier="dram",transport="shm"}'] == 0
        assert found['kvstore_request_bytes_bucket{le="16384.0",op="get",tier="dram",transport="shm"}'] == 1
        assert found['kvstore_request_bytes_bucket{le="1073741824.0",op="get",tier="nvme",transport="shm"}'] == 0
        assert found['kvstore_request_bytes_sum{op="get",tier="nvme",transport="shm"}'] == 1 << 31
        assert found['kvstore_sent_bytes_total{op="get",transport="shm"}'] == (1 << 31) + 5000
        assert not any(name.startswith("kvstore_request_bytes") and 'op="match"' in name for name in found)


def test_a_refusal_counts_its_error_and_its_bound() -> None:
    metrics = NodeMetrics()
    for error in (Busy("full", bound="max_sessions"), Busy("for another reason"), NoSpace("full")):
        metrics.error(code_name(error), error)
    found = page(metrics)
    assert found['kvstore_errors_total{code="busy"}'] == 2
    assert found['kvstore_errors_total{code="no_space"}'] == 1
    assert found['kvstore_busy_total{bound="max_sessions"}'] == found['kvstore_busy_total{bound="other"}'] == 1


def test_calls_of_the_control_plane_are_timed() -> None:
    metrics = NodeMetrics()
    metrics.control("Stat", 0.3)
    found = page(metrics)
    assert found['kvstore_control_seconds_bucket{le="0.1",method="Stat"}'] == 0
    assert found['kvstore_control_seconds_bucket{le="0.5",method="Stat"}'] == 1


def test_who_has_further_numbers_registers_a_source() -> None:
    metrics, seen = NodeMetrics(), iter((1, 2))
    metrics.register(lambda: [single(catalog_node.OWED_CHAINS, next(seen))])
    assert page(metrics)["kvstore_owed_chains"] == 1
    assert page(metrics)["kvstore_owed_chains"] == 2


def test_a_histogram_s_buckets_add_up() -> None:
    one, two = Histogram((1, 2)), Histogram((1, 2))
    for value in (0.5, 1, 1.5, 9):
        one.observe(value)
    two.add(one)
    two.add(one)
    family = Family("kvstore_x_seconds", HISTOGRAM, "x.", buckets=(1, 2))
    found = page(NodeMetrics(), distributed(family, {(): two}))
    assert [found[f'kvstore_x_seconds_bucket{{le="{le}"}}'] for le in ("1.0", "2.0", "+Inf")] == [4, 6, 8]
    assert found["kvstore_x_seconds_sum"] == 24


def test_a_gauge_is_sampled_as_given() -> None:
    found = page(NodeMetrics(), sampled(catalog.TIER_USED, {("dram",): 7}))
    assert found['kvstore_tier_used_bytes{tier="dram"}'] == 7


# --- made for the tests -------------------------------------------------------------------------------------


def spec() -> NamespaceSpec:
    return NamespaceSpec(model="m", block_tokens=16, block_bytes=4096)


def stat(**more: object) -> StoreStat:
    zero = dict.fromkeys(("blocks", "writing", "leased_blocks", "sessions", "orphan_sessions", "unverified"), 0)
    return StoreStat(bytes(16), (), held=Held(), index_bytes=0, ready_bytes=0, **zero, **more)  # type: ignore[arg-type]
