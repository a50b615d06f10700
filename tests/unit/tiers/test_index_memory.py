"""What an entry costs; the figure at five million entries comes from ``bench/index.py``."""

from __future__ import annotations

import pytest

from kvstore.cli.bench.index import run
from kvstore.tiers.eviction import POLICIES


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("block_tokens", [16, 512])
def test_an_entry_costs_less_than_300_bytes_with_all_that_its_policy_keeps(policy: str, block_tokens: int) -> None:
    rows = run(entries=200_000, policies=[policy], block_tokens=block_tokens, rounds=100)
    memory = next(row for row in rows if row.case == f"{policy}.bytes_per_entry")
    assert memory.value < 300
    assert memory.params["claimed"] < 300
