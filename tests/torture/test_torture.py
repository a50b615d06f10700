"""A few seeded rounds of every torture scenario (`make torture` runs many)."""

from __future__ import annotations

import os

import pytest

from tests.torture.suite import SCENARIOS

ROUNDS = int(os.environ.get("KVSTORE_TORTURE_ROUNDS", "1"))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(1, ROUNDS + 1))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_no_wrong_byte_and_nothing_acknowledged_lost_when(scenario, seed: int) -> None:  # type: ignore[no-untyped-def]
    tally, lost = scenario(seed)
    assert tally.wrong == 0
    assert lost == 0
    assert tally.checked > 0
