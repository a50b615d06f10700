"""Discovery that needs no server: a list, and DNS with a resolver of the test."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from kvstore.cluster.discovery.base import Report, Seed
from kvstore.cluster.discovery.dns import DnsDiscovery, addresses_of
from kvstore.cluster.discovery.etcd import EtcdDiscovery
from kvstore.cluster.discovery.static import StaticDiscovery
from kvstore.cluster.etcd.settings import EtcdSettings
from kvstore.cluster.member import Member
from kvstore.core.errors import InvalidArgument

OWN = Member(bytes(16), bytes(16), "10.0.0.1:7000", "10.0.0.1:7001")
Seeds = frozenset[Seed]


def seeds(*addresses: str) -> Seeds:
    return frozenset(map(Seed, addresses))


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_list_is_told_at_once_without_this_node() -> None:
    told: list[Seeds] = []
    discovery = StaticDiscovery(["10.0.0.1:7001", "10.0.0.2:7001", "node-3:7001"])
    discovery.start(OWN, told.append)
    assert told == [seeds("10.0.0.2:7001", "node-3:7001")]
    discovery.update(OWN)
    discovery.stop()
    assert (len(told), discovery.problem) == (1, "")


def test_addresses_without_a_port_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="node-2"):
        StaticDiscovery(["node-1:7001", "node-2"])
    with pytest.raises(InvalidArgument, match="DNS name"):
        DnsDiscovery("headless")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 65])
def test_a_cluster_name_must_fit_into_a_key(name: str) -> None:
    with pytest.raises(InvalidArgument, match="cluster name"):
        EtcdDiscovery(EtcdSettings(("a:1",)), name)


class Resolver:
    """Answers what the test says."""

    def __init__(self, *answer: str) -> None:
        self.answer: tuple[str, ...] | Exception = answer
        self.asked: list[str] = []
        self.free = threading.Event()
        self.free.set()

    def __call__(self, name: str) -> tuple[str, ...]:
        self.asked.append(name)
        self.free.wait(30)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def again(self) -> None:
        """Waits until a question that begins from now on is answered."""
        asked = len(self.asked)
        wait_for(lambda: len(self.asked) > asked + 1)


def test_dns_is_asked_again_and_again_and_changes_are_told_once() -> None:
    told: list[Seeds] = []
    resolver = Resolver("10.0.0.1", "10.0.0.2")
    discovery = DnsDiscovery("headless:7001", every=0.01, resolve=resolver)
    discovery.start(OWN, told.append)
    resolver.again()
    assert told == [seeds("10.0.0.2:7001")]
    resolver.answer = ("10.0.0.2", "fd00::3", "10.0.0.2")
    resolver.again()
    assert told[1:] == [seeds("10.0.0.2:7001", "[fd00::3]:7001")]
    discovery.stop()
    assert set(resolver.asked) == {"headless"}


@pytest.mark.parametrize("answer", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label"), ()])
def test_a_dns_that_fails_changes_nothing(answer: tuple[str, ...] | Exception) -> None:
    told: list[Seeds] = []
    resolver = Resolver("10.0.0.2")
    discovery = DnsDiscovery("headless:7001", every=0.01, resolve=resolver)
    discovery.start(OWN, told.append)
    resolver.again()
    resolver.answer = answer
    resolver.again()
    assert "headless" in discovery.problem
    assert len(told) == 1
    resolver.answer = ("10.0.0.3",)
    resolver.again()
    assert discovery.problem == ""
    assert told[1:] == [seeds("10.0.0.3:7001")]
    discovery.stop()


def test_a_resolver_that_hangs_keeps_nobody() -> None:
    told: list[Seeds] = []
    resolver = Resolver("10.0.0.2")
    resolver.free.clear()
    discovery = DnsDiscovery("headless:7001", every=0.01, resolve=resolver)
    discovery.start(OWN, told.append)
    wait_for(lambda: resolver.asked)
    began = time.monotonic()
    discovery.stop()
    assert time.monotonic() - began < 1.0
    resolver.free.set()
    time.sleep(0.1)
    assert told == []  # the late answer is nobody's
    assert len(resolver.asked) == 1


def test_localhost_is_resolved() -> None:
    assert addresses_of("localhost") & {"127.0.0.1", "::1"}
    told: list[Seeds] = []
    discovery = DnsDiscovery("localhost:7001")
    discovery.start(OWN, told.append)
    wait_for(lambda: told)
    discovery.stop()
    assert told[0] & seeds("127.0.0.1:7001", "[::1]:7001")


def test_a_listener_that_fails_is_told_again() -> None:
    calls: list[Seeds] = []

    def listen(found: Seeds) -> None:
        calls.append(found)
        raise RuntimeError("the listener's own trouble")

    report = Report(listen, "10.0.0.1:7001")
    for address in ("a:1", "a:1", "b:1"):
        report.tell(seeds(address))
    assert calls == [seeds("a:1"), seeds("b:1")]
    report.close()
    report.tell(seeds("c:1"))
    assert len(calls) == 2
