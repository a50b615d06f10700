"""Watches of a real etcd over connections that fail: every event once, in order, and no silent standstill."""

from __future__ import annotations

import time

import pytest

from kvstore.cluster.etcd.errors import HistoryLost
from tests.cluster.etcd.conftest import Clients
from tests.cluster.etcd.proxy import proxy
from tests.cluster.etcd.servers import PATIENCE, Etcd, etcd, wait_for
from tests.cluster.etcd.watching import Following, Watching


def test_a_catch_up_that_is_cut_midway_loses_and_repeats_nothing(one: Etcd, clients: Clients) -> None:
    gateway = one.gateway
    written = [b"%04d" % number + 100 * b"." for number in range(2500)]
    start = gateway.put("a/0", written[0])
    for number, value in enumerate(written[1:], 1):
        gateway.put(f"a/{number % 50}", value)
    with proxy(one.servers[0].address) as relay:
        relay.cut_after(150_000)
        seen = Watching(clients.loop, clients.make(relay.address), b"a/", start)
        wait_for(lambda: len(seen.values) >= len(written), "all events were seen")
        assert relay.cuts == 1
        assert seen.values == written
        assert seen.revisions == sorted(set(seen.revisions))
        gateway.put("a/0", b"one more")
        wait_for(lambda: len(seen.values) > len(written), "the watch goes on")
        assert seen.values[-1] == b"one more"


def test_events_under_connections_that_break_again_and_again(one: Etcd, clients: Clients) -> None:
    with proxy(one.servers[0].address) as relay:
        seen = Watching(clients.loop, clients.make(relay.address), b"b/", one.gateway.put("b/0", b"0"))
        written = [b"0"]
        for number in range(1, 120):
            written.append(b"%d" % number)
            one.gateway.put(f"b/{number % 7}", written[-1])
            if number % 20 == 0:
                wait_for(lambda: len(seen.values) > len(written) - 10, "the watch is not far behind")
                relay.cut()
        wait_for(lambda: len(seen.values) >= len(written), "all events were seen")
    assert seen.values == written


def test_compacted_events_are_an_error_and_no_silence(one: Etcd, clients: Clients) -> None:
    first = one.gateway.put("c/0", b"0")
    last = [one.gateway.put("c/0", b"%d" % number) for number in range(5)][-1]
    one.gateway.compact(last)
    seen = Watching(clients.loop, clients.make(*one.addresses), b"c/", first)
    with pytest.raises(HistoryLost, match="compacted"):
        seen.task.result(PATIENCE)


def test_after_a_compaction_while_cut_off_a_listing_tells_what_changed(one: Etcd, clients: Clients) -> None:
    gateway = one.gateway
    for name in ("stays", "changes", "goes"):
        gateway.put(f"d/{name}", b"before")
    with proxy(one.servers[0].address) as relay:
        follower = Following(clients.loop, clients.make(relay.address), b"d/")
        wait_for(lambda: len(follower.now) == 3, "the follower knows all")
        relay.blackhole()
        relay.cut()
        told = len(follower.updates)
        gateway.put("d/changes", b"after")
        gateway.delete("d/goes")
        gateway.put("d/comes", b"new")
        gateway.compact(gateway.put("d-elsewhere", b""))
        relay.heal()
        relay.cut()
        wait_for(lambda: len(follower.updates) >= told + 3, "the follower knows what changed")
    assert follower.now == {b"d/stays": b"before", b"d/changes": b"after", b"d/comes": b"new"}
    assert sorted(update.key for update in follower.updates[told:]) == [b"d/changes", b"d/comes", b"d/goes"]


def test_a_connection_that_went_silent_is_given_up_for_another(one: Etcd, clients: Clients) -> None:
    with proxy(one.servers[0].address) as relay:
        start = one.gateway.put("e/0", b"0")
        seen = Watching(clients.loop, clients.make(relay.address, *one.addresses), b"e/", start)
        wait_for(lambda: seen.values == [b"0"], "the watch works")
        relay.blackhole()
        one.gateway.put("e/0", b"1")
        took = wait_for(lambda: seen.values == [b"0", b"1"], "the other endpoint is used")
    assert took < 8.0


def test_idle_watches_go_on_and_ask_for_signs_of_life(one: Etcd, clients: Clients) -> None:
    with proxy(one.servers[0].address) as relay:
        start = one.gateway.put("f/0", b"0")
        client = clients.make(relay.address)
        seen = Watching(clients.loop, client, b"f/", start)
        quiet = Watching(clients.loop, client, b"quiet/", start)  # behind etcd, and without a single event
        wait_for(lambda: seen.values == [b"0"], "the watch works")
        time.sleep(4.0)
        given = relay.given
        time.sleep(4.0)
        assert relay.given > given  # signs of life came
        assert (relay.accepted, seen.trouble.all, quiet.trouble.all) == (1, [], [])
        one.gateway.put("f/0", b"1")
        one.gateway.put("quiet/0", b"2")
        wait_for(lambda: seen.values + quiet.values == [b"0", b"1", b"2"], "the watches work still")


def test_an_etcd_set_up_anew_is_listed_and_not_waited_for(clients: Clients) -> None:
    """Its revisions start again: who waited for the next one that was expected would wait for a long time."""
    with etcd() as fresh:
        for number in range(50):
            fresh.gateway.put(f"a/{number % 2}", b"old")
        follower = Following(clients.loop, clients.make(*fresh.addresses), b"a/")
        wait_for(lambda: len(follower.now) == 2, "the follower knows all")
        fresh.kill()
        fresh.servers[0].wipe()
        fresh.start()
        fresh.gateway.put("a/1", b"new")
        wait_for(lambda: follower.now == {b"a/1": b"new"}, "the follower knows the new etcd")
        fresh.gateway.put("a/2", b"newer")
        wait_for(lambda: b"a/2" in follower.now, "it follows the new etcd")
