"""What these tests need of the machine."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(autouse=True, scope="session")
def _tools() -> None:
    if missing := [name for name in ("prometheus", "promtool") if shutil.which(name) is None]:
        pytest.skip(f"there is no {' and no '.join(missing)} on this machine: apt-get install prometheus")
