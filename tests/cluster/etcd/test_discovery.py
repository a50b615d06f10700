"""Nodes that find each other in a real etcd."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kvstore.cluster.discovery.base import Seed
from kvstore.cluster.discovery.etcd import EtcdDiscovery
from kvstore.cluster.etcd.settings import EtcdSettings
from kvstore.cluster.member import Member
from tests.cluster.etcd.proxy import proxy
from tests.cluster.etcd.servers import PATIENCE, Etcd, etcd, wait_for


def member(number: int, boot: int = 0) -> Member:
    return Member(
        node_id=bytes([number]) * 16,
        boot_id=bytes([boot]) * 16,
        data_address=f"10.0.0.{number}:7000",
        control_address=f"10.0.0.{number}:7001",
        host=f"host-{number}",
        capacity_bytes=number << 30,
    )


def key(cluster: str, who: Member) -> str:
    return f"/kvstore/{cluster}/nodes/{who.node_id.hex()}"


class Node:
    """A discovery that runs, and the members that it told last."""

    def __init__(self, servers: tuple[str, ...], cluster: str, own: Member, ttl: int = 5) -> None:
        self.discovery = EtcdDiscovery(EtcdSettings(servers), cluster, ttl)
        self.own = own
        self.told: list[frozenset[Seed]] = []
        self.discovery.start(own, self.told.append)

    def sees(self, *others: Member) -> bool:
        return bool(self.told) and self.told[-1] == {Seed(one.control_address, one) for one in others}


Start = Callable[..., Node]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts nodes that are stopped at the end."""
    running: list[Node] = []

    def make(servers: tuple[str, ...], cluster: str, own: Member, ttl: int = 5) -> Node:
        running.append(Node(servers, cluster, own, ttl))
        return running[-1]

    yield make
    for node in running:
        node.discovery.stop()


def test_nodes_see_each_other_come_change_and_leave(one: Etcd, start: Start) -> None:
    first = start(one.addresses, "a", member(1))
    wait_for(lambda: first.sees(), "the first is alone")
    second = Node(one.addresses, "a", member(2))
    wait_for(lambda: first.sees(member(2)), "the first sees the second")
    wait_for(lambda: second.sees(member(1)), "the second sees the first")
    stored = one.gateway.get(key("a", member(2)))
    assert stored is not None
    assert Member.from_json(stored.value) == member(2)
    assert 1 <= one.gateway.time_to_live(stored.lease) <= 5
    draining = replace(member(2), draining=True)
    second.discovery.update(draining)
    wait_for(lambda: first.sees(draining), "the first sees that the second drains")
    second.discovery.stop()
    assert one.gateway.get(key("a", member(2))) is None  # at once, not when its lease is over
    wait_for(lambda: first.sees(), "the first is alone again")
    assert (first.discovery.problem, first.discovery.announced, first.discovery.visible) == ("", True, True)


def test_cells_with_other_names_are_apart(one: Etcd, start: Start) -> None:
    here, there = start(one.addresses, "b", member(1)), start(one.addresses, "b2", member(2))
    third = start(one.addresses, "b", member(3))
    wait_for(lambda: here.sees(member(3)) and third.sees(member(1)), "the two of one cell see each other")
    wait_for(lambda: there.sees(), "the other sees nobody")
    assert one.gateway.keys("/kvstore/b/") == [key("b", member(1)), key("b", member(3))]


def test_what_is_not_understood_is_passed_over(one: Etcd, start: Start) -> None:
    node = start(one.addresses, "c", member(1))
    newer = member(2).to_json().replace(b"{", b'{"later":[1,2],', 1)
    one.gateway.put(f"/kvstore/c/nodes/{'ee' * 16}", b"no JSON")
    one.gateway.put(f"/kvstore/c/nodes/{'ef' * 16}", member(3).to_json())  # the key of another node
    one.gateway.put(key("c", member(2)), newer)
    wait_for(lambda: node.sees(member(2)), "the node of a later version is seen, and nothing else")


def test_a_key_that_somebody_deleted_comes_back(one: Etcd, start: Start) -> None:
    node = start(one.addresses, "d", member(1))
    wait_for(lambda: one.gateway.get(key("d", member(1))), "the node is announced")
    one.gateway.delete(key("d", member(1)))
    wait_for(lambda: one.gateway.get(key("d", member(1))), "the node is announced again")
    assert node.sees()


def test_two_nodes_with_one_id_are_told(one: Etcd, start: Start) -> None:
    node = start(one.addresses, "e", member(1, boot=1))
    twin = replace(member(1, boot=2), control_address="10.0.0.99:7001")

    def told() -> bool:
        one.gateway.put(key("e", twin), twin.to_json())
        return "10.0.0.99:7001" in node.discovery.problem

    wait_for(lambda: one.gateway.get(key("e", member(1))), "the node is announced")
    wait_for(told, "the node knows of its twin")


def test_a_killed_node_leaves_with_its_lease(one: Etcd, start: Start) -> None:
    node = start(one.addresses, "f", member(1))
    program = (
        "import sys, time; from tests.cluster.etcd.test_discovery import Node, member;"
        "Node((sys.argv[1],), 'f', member(2), ttl=1); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", program, one.addresses[0]])
    try:
        wait_for(lambda: node.sees(member(2)), "the other is seen")
        other.send_signal(signal.SIGKILL)
        other.wait(PATIENCE)
        assert node.sees(member(2))
        took = wait_for(lambda: node.sees(), "the other is gone from etcd")
    finally:
        other.kill()
        other.wait()
    assert took < 10.0


def test_without_etcd_all_that_is_known_stays(start: Start) -> None:
    with etcd() as servers:
        first, second = (start(servers.addresses, "g", member(number), ttl=1) for number in (1, 2))
        wait_for(lambda: first.sees(member(2)) and second.sees(member(1)), "they see each other")
        servers.kill()
        told = len(first.told)
        wait_for(lambda: first.discovery.problem and not first.discovery.announced, "the loss is known")
        time.sleep(1.5)
        assert len(first.told) == told
        servers.start()
        wait_for(lambda: first.discovery.announced and second.discovery.announced, "both are announced again")
        wait_for(lambda: first.sees(member(2)) and second.sees(member(1)), "they see each other")
        third = start(servers.addresses, "g", member(3))
        wait_for(lambda: first.sees(member(2), member(3)), "the first follows etcd again")
        wait_for(lambda: not (first.discovery.problem or third.discovery.problem), "all is well")


def test_a_node_starts_and_stops_without_etcd(start: Start) -> None:
    began = time.monotonic()
    node = Node(("127.0.0.1:1", "127.0.0.1:2"), "h", member(1))
    assert time.monotonic() - began < 1.0
    wait_for(lambda: "127.0.0.1" in node.discovery.problem, "the problem has a name")
    assert not node.discovery.visible  # others cannot know of it
    began = time.monotonic()
    node.discovery.stop()
    assert time.monotonic() - began < 2.0
    assert node.told == []


def test_a_stop_waits_for_nobody(one: Etcd) -> None:
    with proxy(one.servers[0].address) as relay:
        node = Node((relay.address,), "i", member(1))
        wait_for(lambda: node.discovery.announced, "the node is announced")
        relay.blackhole()
        began = time.monotonic()
        node.discovery.stop()
        assert time.monotonic() - began < 4.0
