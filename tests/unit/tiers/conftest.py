"""Fixtures of the tiers' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.tiers.filled import Filled
from tests.unit.tiers.stores import audit
from tests.unit.tiers.two_tiers import audit_tiers, opened, still


@pytest.fixture
def filled() -> Iterator[Filled]:
    with opened() as store:
        yield Filled(store)
        still(store)
        audit(store)
        audit_tiers(store)
