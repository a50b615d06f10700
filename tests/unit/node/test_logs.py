"""Log lines that a stranger can cause are few."""

from __future__ import annotations

import logging

import pytest

from kvstore.node.logs import Seldom


def test_a_warning_of_one_kind_comes_once_and_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("test"), every=0.0)
    seldom.warn("a", "first")
    quiet = Seldom(logging.getLogger("test"), every=60.0)
    for _ in range(5):
        quiet.warn("a", "garbage")
    quiet.warn("b", "version")
    assert [record.message for record in caplog.records] == ["first", "garbage", "version"]
