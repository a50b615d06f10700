"""The policies on the real trace: the hit rates that the product claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.cli.bench.evict import run
from kvstore.cli.bench.trace import Request, load_trace

TRACE = Path(__file__).parents[3] / "bench" / "trace" / "conversation.jsonl"


@pytest.fixture(scope="module")
def trace() -> list[Request]:
    return load_trace(TRACE)


def rates(trace: list[Request], *capacities: int, pieces: int = 0, interleave: int = 1) -> dict[tuple[str, int], float]:
    rows = run(trace, capacities, pieces=pieces, interleave=interleave)
    return {
        (row.params["policy"], row.params["capacity"]): row.value
        for row in rows
        if row.params["metric"] == "block_hit_rate"
    }


def test_policies_reach_the_hit_rates_they_claim(trace: list[Request]) -> None:
    found = rates(trace, 1000, 10000)
    assert found["opt", 1000] == pytest.approx(0.1988, abs=0.0001)
    assert found["opt", 10000] == pytest.approx(0.3819, abs=0.0001)
    assert found["lru", 1000] == pytest.approx(0.0470, abs=0.0004)
    assert found["lru", 10000] == pytest.approx(0.2243, abs=0.0004)
    assert found["turnscore", 1000] >= 0.075
    assert found["turnscore", 10000] >= 0.243


def test_turnscore_stays_above_lru_when_puts_come_in_pieces_and_requests_interleave(trace: list[Request]) -> None:
    found = rates(trace, 3000, pieces=4, interleave=8)
    assert found["turnscore", 3000] >= 0.133 - 0.004
    assert found["turnscore", 3000] >= found["lru", 3000] - 0.004
