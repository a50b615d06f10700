"""Random faults and random calls by a seed: a few histories of the many of `make soak`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.history.faults import random_faults
from tests.history.run import running
from tests.soak.__main__ import options_of

pytestmark = pytest.mark.timeout(900)  # many processes: long where others use the machine too


@pytest.mark.parametrize("seed", [1, 2])
def test_a_history_of_random_faults_keeps_all_promises(seed: int) -> None:
    with running(replace(options_of(seed), chains=60)) as run:
        run.load()
        random_faults(run, 2)
        assert [str(violation) for violation in run.check()] == []
