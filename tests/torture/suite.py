"""All torture scenarios."""

from __future__ import annotations

from tests.torture import disks, scenarios, tiers

SCENARIOS = (*scenarios.SCENARIOS, *tiers.SCENARIOS, *disks.SCENARIOS)
