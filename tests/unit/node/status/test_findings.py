"""What is concluded from a node's numbers, and what people are told to do."""

from __future__ import annotations

import pytest

from kvstore.core.namespace import NamespaceSpec
from kvstore.node.status.findings import Finding, NamespaceView, Observed, findings
from kvstore.node.status.samples import Labels, Sample

EMPTY = Sample(0.0)


def at(**values: float | dict[str, float]) -> Sample:
    """A sample of metrics named without their prefix; a dict gives values by ``label=value``."""
    found: dict[str, dict[Labels, float]] = {}
    for name, value in values.items():
        by_label = value if isinstance(value, dict) else {"": value}
        found[f"kvstore_{name}"] = {
            tuple(tuple(pair.split("=")) for pair in labels.split(",") if pair): number  # type: ignore[misc]
            for labels, number in by_label.items()
        }
    return Sample(300.0, found)


def only(seen: Observed) -> Finding:
    (found,) = findings(seen)
    return found


def test_a_node_without_trouble_has_no_findings() -> None:
    assert findings(Observed(EMPTY, at(hits_total=1000, misses_total={"reason=absent": 200}))) == []
    assert findings(Observed(EMPTY, EMPTY)) == []


def test_a_few_misses_are_no_verdict() -> None:
    assert findings(Observed(EMPTY, at(misses_total={"reason=absent": 99}))) == []


MISSES = {"misses_total": {"reason=absent": 500.0}}


@pytest.mark.parametrize(
    ("now", "words", "fix"),
    [
        (at(**MISSES), "nothing is being put", "role"),
        (at(**MISSES, put_blocks_total={"outcome=no_space": 5}), "no new block found room", "capacity"),
        (
            at(**MISSES, put_blocks_total={"outcome=stored": 9}, evictions_total={"cause=evicted": 9}),
            "evicted before anybody comes back", "NVMe",
        ),
        (at(**MISSES, put_blocks_total={"outcome=stored": 9}), "share no prefix", "PYTHONHASHSEED"),
    ],
)  # fmt: skip
def test_a_hit_rate_of_zero_is_explained(now: Sample, words: str, fix: str) -> None:
    found = next(one for one in findings(Observed(EMPTY, now)) if "none of the 500 blocks" in one.what)
    assert words in found.what
    assert fix in found.fix


def test_a_hit_rate_of_zero_names_the_fields_in_which_engines_differ() -> None:
    one = NamespaceSpec("llama", 16, 4096, kv_dtype="bf16")
    other = NamespaceSpec("llama", 16, 4096, kv_dtype="fp8", layout="NHD")
    views = tuple(NamespaceView(spec, 10, 5.0) for spec in (one, other))
    now = at(**MISSES, put_blocks_total={"outcome=stored": 9})
    error, note = findings(Observed(EMPTY, now, views))
    assert (error.level, note.level) == ("error", "note")
    assert "'llama' do not agree in kv_dtype, layout" in error.what
    idle = (views[0], NamespaceView(other, 10, 9_999_999.0))
    assert not any("do not agree" in one.what for one in findings(Observed(EMPTY, now, idle)))
    foreign = (views[0], NamespaceView(NamespaceSpec("qwen", 16, 4096), 10, 1.0))
    assert findings(Observed(EMPTY, EMPTY, foreign)) == []


def test_only_what_grew_in_the_window_counts() -> None:
    before = at(checksum_failures_total={"where=dram": 7}, busy_total={"bound=max_sessions": 2})
    assert findings(Observed(before, before)) == []
    now = at(checksum_failures_total={"where=dram": 9}, busy_total={"bound=max_sessions": 2})
    assert only(Observed(before, now)).what.startswith("2 blocks in dram failed their checksums")


def test_a_tier_in_trouble_comes_with_its_advice() -> None:
    failed = only(Observed(EMPTY, EMPTY, tiers={"dram": ("ok", "", ""), "nvme": ("failed", "EIO", "replace the disk")}))
    assert failed == Finding("error", "tier nvme is failed: EIO", "replace the disk")
    assert only(Observed(EMPTY, EMPTY, tiers={"nvme": ("degraded", "slow", "wait")})).level == "warning"


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (at(cell_nodes={"state=suspect": 2}), "2 nodes of the cell are suspect"),
        (at(cell_event_lag_seconds={"node=ab": 9.0}), "9 s old"),
        (at(owed_oldest_seconds=99.0), "owed for 99 s"),
        (at(cell_index_dropped_total=3), "3 blocks of other nodes were not noted"),
        (at(oldest_lease_seconds=1200.0), "20 minutes"),
        (at(put_blocks_total={"outcome=no_space": 4}), "4 blocks were not stored"),
        (at(busy_total={"bound=max_connections": 1}), "bound max_connections"),
        (at(errors_total={"code=version_mismatch": 1}), "too far apart"),
        (at(errors_total={"code=internal": 1}), "internal error"),
        (at(hits_total=50, misses_total={"reason=loading": 60}), "did not come up in time"),
        (at(insecure_network=1), "without transport security"),
        (at(tier_capacity_bytes={"tier=dram": 100}, tier_used_bytes={"tier=dram": 99}), "tier dram is full (99%)"),
    ],
)
def test_each_trouble_is_told_with_what_to_do(now: Sample, words: str) -> None:
    found = only(Observed(EMPTY, now))
    assert words in found.what
    assert found.fix or found.level == "note"


def test_errors_come_before_warnings_and_notes() -> None:
    now = at(insecure_network=1, cell_nodes={"state=gone": 1}, errors_total={"code=internal": 1})
    assert [one.level for one in findings(Observed(EMPTY, now, problem="etcd is lost"))] == [
        "error", "error", "warning", "note",
    ]  # fmt: skip
