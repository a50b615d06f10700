"""Which holders are left alone, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.cluster import holder_links
from kvstore.cluster.holder_links import HolderLinks
from kvstore.cluster.member import Member
from kvstore.core.errors import Unavailable

ROOT, OTHER = bytes(16), bytes([1]) * 16


def member(number: int, port: int = 7000) -> Member:
    node_id = bytes([number]) * 16
    return Member(node_id, node_id, f"10.0.0.{number}:{port}", f"10.0.0.{number}:7001")


class Transport:
    """A session; ``made``: all of them."""

    made: list[Transport]

    def __init__(self, address: Any, deadline: float, **options: Any) -> None:
        self.node = SimpleNamespace(node_id=bytes([int(address.host.rpartition(".")[2])]) * 16)
        self.address, self.lost = str(address), False
        Transport.made.append(self)

    def close(self) -> None:
        self.lost = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(holder_links.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(holder_links, "TcpTransport", Transport)
    Transport.made = []
    return now


def delays(links: HolderLinks, source: Member, clock: list[float], slow: bool, count: int) -> list[float]:
    """How long it is left alone after each of so many failures in a row."""
    found = []
    for _ in range(count):
        links.failed(source, slow=slow)
        began = clock[0]
        while not links.usable(source, ROOT):
            clock[0] += 0.1
        found.append(round(clock[0] - began, 1))
    return found


def test_each_failure_in_a_row_doubles_the_time_until_it_works_again(clock: list[float]) -> None:
    links, source = HolderLinks(bytes(16), 4), member(1)
    links.session(source, 200.0)
    assert links.usable(source, ROOT)
    assert delays(links, source, clock, False, 4) == pytest.approx([0.2, 0.4, 0.8, 1.6], abs=0.11)
    links.worked(source)
    assert delays(links, source, clock, True, 6) == pytest.approx([1, 2, 4, 8, 10, 10], abs=0.11)


def test_failures_of_the_same_moment_count_once(clock: list[float]) -> None:
    links, source = HolderLinks(bytes(16), 4), member(1)
    links.session(source, 200.0)
    for _ in range(4):
        links.failed(source)
    clock[0] += 0.21
    assert links.usable(source, ROOT)


def test_a_refusal_is_of_one_namespace(clock: list[float]) -> None:
    links, source = HolderLinks(bytes(16), 4), member(1)
    links.session(source, 200.0)
    links.refused(source, ROOT)
    assert not links.usable(source, ROOT)
    assert links.usable(source, OTHER)
    clock[0] += holder_links.LONGEST_BACKOFF
    assert links.usable(source, ROOT)


def test_a_node_that_has_moved_is_news(clock: list[float]) -> None:
    links, before, after = HolderLinks(bytes(16), 4), member(1), member(1, 7100)
    links.session(before, 200.0)
    links.failed(before, slow=True)
    assert links.usable(after, ROOT)
    transport, fresh = links.session(after, 200.0)
    assert fresh
    assert Transport.made[0].lost  # the session with the old address has ended
    assert links.session(after, 200.0) == (transport, False)
    transport.lost = True
    assert links.session(after, 200.0)[1]


def test_after_the_end_there_are_no_sessions(clock: list[float]) -> None:
    links = HolderLinks(bytes(16), 4)
    links.session(member(1), 200.0)
    links.close()
    assert all(one.lost for one in Transport.made)
    with pytest.raises(Unavailable):
        links.session(member(2), 200.0)


def test_nodes_that_come_and_go_do_not_add_up(clock: list[float]) -> None:
    links = HolderLinks(bytes(16), 4)
    for number in range(1, 200):
        links.session(member(number), 200.0)
        if number % 2:
            Transport.made[-1].lost = True
    for nth in range(2 * holder_links._KEPT):
        node_id = nth.to_bytes(16, "big")
        moved = Member(node_id, node_id, "10.0.0.1:7000", "10.0.0.1:7001")
        with pytest.raises(Unavailable, match="was expected"):
            links.session(moved, 200.0)
    assert len(links._links) <= holder_links._KEPT
    assert sum(one.alive for one in links._links.values()) == 99
