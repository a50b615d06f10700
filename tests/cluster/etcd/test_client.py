"""Calls to a real etcd: what they do is checked through its JSON gateway."""

from __future__ import annotations

import time

import pytest

from kvstore.cluster.etcd.client import ATTEMPT, Entry
from kvstore.cluster.etcd.errors import EtcdUnavailable, LeaseGone
from tests.cluster.etcd.conftest import Clients, Run
from tests.cluster.etcd.proxy import proxy
from tests.cluster.etcd.servers import Etcd, free_ports, wait_for


def test_what_is_stored_is_what_the_gateway_sees_and_the_other_way_round(one: Etcd, clients: Clients, run: Run) -> None:
    client = clients.make(*one.addresses)
    run(client.store(b"a/ours", b"\x00\xff bytes", 0))
    revision = one.gateway.put("a/theirs", b"text")
    stored = one.gateway.get("a/ours")
    assert stored is not None
    assert stored.value == b"\x00\xff bytes"
    assert run(client.get(b"a/theirs")) == Entry(b"a/theirs", b"text", revision)
    assert run(client.get(b"a/nothing")) is None
    listing = run(client.list(b"a/"))
    assert [entry.key for entry in listing.entries] == [b"a/ours", b"a/theirs"]
    assert listing.revision == revision


def test_a_write_on_an_outdated_revision_is_refused(one: Etcd, clients: Clients, run: Run) -> None:
    client = clients.make(*one.addresses)
    assert run(client.compare_and_put(b"b", b"1", 0))
    assert not run(client.compare_and_put(b"b", b"2", 0))
    seen = run(client.get(b"b"))
    one.gateway.put("b", b"theirs")
    assert not run(client.compare_and_put(b"b", b"2", seen.revision))
    stored = one.gateway.get("b")
    assert stored is not None
    assert stored.value == b"theirs"


def test_a_write_whose_answer_is_lost_is_not_repeated(one: Etcd, clients: Clients, run: Run) -> None:
    """The first attempt is applied and its answer never comes: storing looks before it writes again."""
    with proxy(one.servers[0].address) as relay:
        client = clients.make(relay.address)
        relay.lose_answers_from(b"the value")
        storing = clients.loop.submit(client.store(b"c", b"the value", 0))
        wait_for(lambda: one.gateway.get("c"), "the write is applied")
        time.sleep(ATTEMPT + 0.2)
        assert not storing.done()
        relay.heal()
        storing.result(15)
    stored = one.gateway.get("c")
    assert stored is not None
    assert (stored.value, stored.version) == (b"the value", 1)


def test_a_compare_and_put_without_an_answer_is_not_repeated_by_itself(one: Etcd, clients: Clients) -> None:
    """A second attempt would be refused because of the first, and tell a lie."""
    with proxy(one.servers[0].address) as relay:
        client = clients.make(relay.address)
        relay.lose_answers_from(b"the value")
        writing = clients.loop.submit(client.compare_and_put(b"d", b"the value", 0))
        wait_for(lambda: one.gateway.get("d"), "the write is applied")
        time.sleep(ATTEMPT + 0.2)
        relay.heal()
        with pytest.raises(EtcdUnavailable):
            writing.result(15)
    stored = one.gateway.get("d")
    assert stored is not None
    assert stored.version == 1


def test_an_endpoint_that_is_dead_or_silent_costs_one_attempt(one: Etcd, clients: Clients, run: Run) -> None:
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    with proxy(one.servers[0].address) as silent:
        silent.blackhole()
        client = clients.make(dead, silent.address, f"localhost:{one.servers[0].client_port}")
        began = time.monotonic()
        assert run(client.get(b"e")) is None
        first = time.monotonic() - began
        began = time.monotonic()
        run(client.get(b"e"))
        second = time.monotonic() - began
    assert first < 5.0
    assert second < 1.0  # it stays with the endpoint that answers


def test_no_endpoint_that_answers_is_an_error_at_the_deadline(clients: Clients, run: Run) -> None:
    ports = free_ports(2)
    client = clients.make(*(f"127.0.0.1:{port}" for port in ports))
    began = time.monotonic()
    with pytest.raises(EtcdUnavailable, match=r"127\.0\.0\.1"):
        run(client.get(b"f", deadline=1.5))
    assert 0.5 < time.monotonic() - began < 4.0


def test_leases_are_those_of_etcd(one: Etcd, clients: Clients, run: Run) -> None:
    client = clients.make(*one.addresses)
    number, ttl = run(client.grant(60))
    assert ttl == 60
    run(client.store(b"g", b"held", number))
    stored = one.gateway.get("g")
    assert stored is not None
    assert stored.lease == number
    assert 50 <= one.gateway.time_to_live(number) <= 60
    run(client.revoke(number))
    assert one.gateway.get("g") is None
    assert one.gateway.time_to_live(number) == -1
    run(client.revoke(number))  # is over already, as wanted
    with pytest.raises(LeaseGone, match="lease not found"):
        run(client.store(b"g", b"held", number))
