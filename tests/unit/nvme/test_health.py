"""Health: what is wrong decides the state, and the state says what to do."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from kvstore.tiers.nvme.health import Cause, Health, HealthKeeper, HealthLog


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "write", "state", "writable"),
    [
        (errno.ENOSPC, True, "degraded", True),
        (errno.EIO, True, "degraded", False),
        (errno.EIO, False, "degraded", True),
        (errno.EROFS, True, "read_only", False),
    ],
)
def test_an_error_is_filed_under_its_cause(number: int, write: bool, state: str, writable: bool) -> None:
    keeper = HealthKeeper()
    keeper.io_error(error(number), write)
    assert keeper.health.state == state
    assert keeper.writable is writable
    assert keeper.readable
    assert os.strerror(number) in keeper.health.reason
    assert keeper.health.advice


def test_the_worst_cause_gives_the_state_and_the_advice() -> None:
    keeper = HealthKeeper()
    keeper.trouble(Cause.DISK_FULL, "full")
    keeper.trouble(Cause.DISK, "gone")
    assert keeper.health.state == "failed"
    assert keeper.health.advice == Cause.DISK.value
    assert keeper.health.reason == "gone; full"
    assert not keeper.readable
    keeper.clear(Cause.DISK)
    assert (keeper.health.state, keeper.writable, keeper.readable) == ("degraded", True, True)
    keeper.clear(*Cause)
    assert keeper.health.state == "ok"
    assert keeper.health.reason == ""


def test_each_change_is_told_once_and_since_stays_while_the_state_does() -> None:
    told: list[Health] = []
    keeper = HealthKeeper(told.append)
    for _ in range(3):
        keeper.io_error(error(errno.EIO), write=True)
    keeper.trouble(Cause.INDEX, "dead")
    keeper.clear(Cause.READ_IO)
    assert [health.causes for health in told] == [("WRITE_IO",), ("WRITE_IO", "INDEX")]
    assert told[0].since == told[1].since


def test_each_change_of_state_is_a_line_of_the_log_and_not_too_many(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lines = HealthLog("/disk")
    keeper = HealthKeeper(lines.note)
    keeper.trouble(Cause.DISK_FULL, "no space left")
    keeper.clear(*Cause)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert all(part in caplog.messages[0] for part in ("/disk", "degraded", "no space left", Cause.DISK_FULL.value))
    assert "ok again" in caplog.messages[1]
    for _ in range(100):
        keeper.trouble(Cause.DISK_FULL, "no space left")
        keeper.clear(*Cause)
    assert len(caplog.records) < 10


def test_the_advice_names_the_setting() -> None:
    assert "nvme_capacity" in Cause.DISK_FULL.value
    assert "capacity_bytes" not in Cause.DISK_FULL.value
