"""What bench scale_sim makes of its figures."""

from __future__ import annotations

import pytest

from bench.cell import Figures
from bench.scale_sim import Case, IndexCosts, ceiling_rows, cell_rows, event_bytes, law_rows, missed


def case(nodes: int) -> Case:
    return Case(nodes, 6400, 16, 0)


def figures(nodes: int, hits: int = 970, events: int = 1000) -> Figures:
    return Figures(
        requests=10, blocks=2000, hits=hits, copied=12, stored=800, events=events, keys=1600, event_bytes=32_000,
        seconds=10.0, resident=[800 // nodes] * nodes, taken=[800 // nodes] * nodes,
    )  # fmt: skip


def test_a_missed_target_is_named() -> None:
    single, good, bad = figures(1, hits=1000), figures(8), figures(8, hits=960)
    assert missed(cell_rows(case(8), good, single, 1.0)) == []
    bad.resident[0] = 200
    found = missed(cell_rows(case(8), bad, single, 1.0))
    assert found == [
        "8 nodes, 6400 blocks: 0.960 of one store's hit rate, not 0.97",
        "8 nodes, 6400 blocks: most bytes stored 1.78 times the mean, not 1.3",
    ]


def test_growth_is_a_power_of_the_nodes() -> None:
    cells = [(case(nodes), figures(nodes, events=10 * nodes)) for nodes in (8, 16, 64)]
    laws = {one.case: one.value for one in law_rows(cells)}
    assert laws["law.events.same_total_load"] == pytest.approx(1.0)
    assert laws["law.keys.same_total_load"] == pytest.approx(0.0)
    assert laws["law.keys.same_load_a_node"] == pytest.approx(1.0)
    assert list(law_rows(cells[:1])) == []


def test_a_subscriber_hears_of_all_but_itself() -> None:
    assert event_bytes(case(1), figures(1)) == 0
    assert event_bytes(case(2), figures(2)) == pytest.approx(32_000 / 10 / 2, abs=100)


def test_the_dearest_resource_is_the_ceiling() -> None:
    def ceiling(key_seconds: float) -> str:
        rows = {one.case: one for one in ceiling_rows(IndexCosts(28.0, 28.0, key_seconds, [0.001]), 16.5)}
        least = min(rows[f"ceiling.{name}"].value for name in ("cpu", "network", "memory", "numbers"))
        assert rows["ceiling.cell"].value == least
        return str(rows["ceiling.cell"].params["bound"])

    assert ceiling(1e-6) == "cpu"
    assert ceiling(1e-9) == "numbers"
