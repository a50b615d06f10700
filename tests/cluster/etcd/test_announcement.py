"""A key held by a lease: what etcd has, checked through its gateway, and what the holder believes."""

from __future__ import annotations

import time

from tests.cluster.etcd.announcing import announce, wait_until_stored
from tests.cluster.etcd.conftest import Clients
from tests.cluster.etcd.proxy import proxy
from tests.cluster.etcd.servers import PATIENCE, Etcd, wait_for

TTL = 2  # seconds; etcd's shortest here is 1


def test_the_lease_outlives_its_time_to_live_and_ends_when_withdrawn(one: Etcd, clients: Clients) -> None:
    held = announce(clients.loop, clients.make(*one.addresses), "a", b"value", TTL)
    wait_until_stored(one.gateway, "a", b"value")
    time.sleep(2 * TTL)
    stored = one.gateway.get("a")
    assert stored is not None
    assert (stored.version, held.alive()) == (1, True)  # renewed, not made again
    clients.loop.call(held.say, b"new value")
    wait_until_stored(one.gateway, "a", b"new value")
    clients.run(held.withdraw(5.0))
    assert one.gateway.get("a") is None


def test_a_silent_connection_ends_the_lease_by_our_own_clock(one: Etcd, clients: Clients) -> None:
    with proxy(one.servers[0].address) as relay:
        held = announce(clients.loop, clients.make(relay.address), "b", b"value", TTL)
        wait_until_stored(one.gateway, "b", b"value")
        wait_for(held.alive, "the holder knows")
        relay.blackhole()
        began = time.monotonic()
        while one.gateway.get("b") is not None:
            assert time.monotonic() - began < PATIENCE
        assert not held.alive()  # not for a moment longer than etcd
        wait_for(lambda: held.trouble.text, "the trouble has a name")
        assert "announcing this node" in held.trouble.text
        relay.heal()
        wait_until_stored(one.gateway, "b", b"value")
        wait_for(held.alive, "the holder knows that it is back")
        wait_for(lambda: not held.trouble.text, "the trouble is over")


def test_a_lease_that_etcd_ended_is_replaced(one: Etcd, clients: Clients) -> None:
    announce(clients.loop, clients.make(*one.addresses), "c", b"value", TTL)
    wait_until_stored(one.gateway, "c", b"value")
    before = one.gateway.get("c")
    assert before is not None
    one.gateway.revoke(before.lease)
    wait_until_stored(one.gateway, "c", b"value")
    after = one.gateway.get("c")
    assert after is not None
    assert after.lease != before.lease


def test_an_old_value_of_an_earlier_start_is_replaced(one: Etcd, clients: Clients) -> None:
    one.gateway.put("d", b"old", one.gateway.grant(60))
    announce(clients.loop, clients.make(*one.addresses), "d", b"value", TTL)
    wait_until_stored(one.gateway, "d", b"value")
