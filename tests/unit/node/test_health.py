"""What a node answers to those who ask whether it lives, has started and is ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from kvstore.node import probe
from kvstore.node.health import Readiness, probe_routes
from kvstore.node.http_server import HttpServer, text
from kvstore.node.units import Address


class Cell:
    """What a node knows of its cell."""

    def __init__(self, visible: bool = True, drains: bool = False) -> None:
        self.visible, self.drains = visible, drains

    def readiness(self) -> Readiness:
        return Readiness(lambda: self.visible, lambda: self.drains)


def answers(readiness: Readiness) -> dict[str, int]:
    return {path: page().status for path, page in probe_routes(readiness).items()}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_node_is_live_before_it_has_started_and_ready_after() -> None:
    readiness = Cell().readiness()
    assert answers(readiness) == {
        "/livez": 200, "/startupz": 503, "/readyz": 503, "/health/live": 200, "/health/ready": 503,
    }  # fmt: skip
    readiness.started(None)
    assert set(answers(readiness).values()) == {200}
    readiness.stopping()
    assert answers(readiness)["/livez"] == 200
    assert answers(readiness)["/readyz"] == 503


def test_a_node_that_others_cannot_find_has_started_but_is_not_ready() -> None:
    cell = Cell(visible=False)
    readiness = cell.readiness()
    readiness.started(None)
    assert (answers(readiness)["/startupz"], answers(readiness)["/readyz"]) == (200, 503)
    assert b"cannot find it" in probe_routes(readiness)["/readyz"]().body
    cell.visible = True
    assert answers(readiness)["/readyz"] == 200


def test_losing_discovery_later_does_not_take_readiness_away() -> None:
    cell = Cell()
    readiness = cell.readiness()
    readiness.started(None)
    assert readiness.ready
    cell.visible = False
    assert readiness.ready


def test_a_draining_node_is_not_ready_until_it_drains_no_more() -> None:
    cell = Cell(drains=True)
    readiness = cell.readiness()
    readiness.started(None)
    assert readiness.state == "draining"
    assert answers(readiness)["/readyz"] == 503
    cell.drains = False
    assert answers(readiness)["/readyz"] == 200


def test_each_change_is_told_once_and_none_after_the_stop() -> None:
    cell, told = Cell(visible=False), list[bool]()
    readiness = cell.readiness()
    readiness.started(told.append)
    assert told == [False]
    cell.visible = True
    until(lambda: told == [False, True])
    cell.drains = True
    until(lambda: told == [False, True, False])
    readiness.stopping()
    until(lambda: "readiness" not in {thread.name for thread in threading.enumerate()})
    assert told == [False, True, False]


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_probe_says_what_the_page_says(status: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    server = HttpServer(Address("127.0.0.1", 0), {"/readyz": lambda: text(status, "so it is\n")}, 4)
    server.start()
    try:
        assert probe.main(["--address", str(server.address), "readyz"]) == code
    finally:
        server.stop()
    assert capsys.readouterr().out == "so it is\n"
    assert probe.main(["--address", str(server.address), "readyz"]) == 1
    assert "no answer" in capsys.readouterr().out


def test_without_an_address_the_probe_asks_where_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KVSTORE_CONFIG", raising=False)
    server = HttpServer(Address("127.0.0.1", 0), {"/livez": lambda: text(200, "live\n")}, 4)
    server.start()
    monkeypatch.setenv("KVSTORE_HTTP_ADDRESS", f"0.0.0.0:{server.address.port}")
    monkeypatch.setenv("KVSTORE_ALLOW_INSECURE_NETWORK", "true")
    try:
        assert probe.main(["livez"]) == 0
    finally:
        server.stop()
    monkeypatch.setenv("KVSTORE_HTTP_ADDRESS", "off")
    assert probe.main(["livez"]) == 2
    assert "http_address is off" in capsys.readouterr().err
