"""Three etcd servers, some of them killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.cluster.etcd.announcing import announce, wait_until_stored
from tests.cluster.etcd.conftest import Clients
from tests.cluster.etcd.gateway import Gateway
from tests.cluster.etcd.servers import Etcd, etcd, wait_for
from tests.cluster.etcd.watching import Watching


@pytest.fixture(scope="module")
def three() -> Iterator[Etcd]:
    with etcd(3) as running:
        yield running


class Writer(threading.Thread):
    """Writes numbers through whichever gateway answers. One whose answer was lost may be there, also twice."""

    def __init__(self, servers: Etcd, key: str) -> None:
        super().__init__(daemon=True)
        self._servers, self._key = servers, key
        self._ended = threading.Event()
        self.sure: list[bytes] = []
        self.tried: list[bytes] = []

    def run(self) -> None:
        while not self._ended.is_set():
            value = b"%d" % len(self.tried)
            self.tried.append(value)
            for server in self._servers.servers:
                try:
                    Gateway(server.address, timeout=0.5).put(self._key, value)
                except OSError:
                    continue
                self.sure.append(value)
                break
            time.sleep(0.03)

    def goes_on(self) -> None:
        """Waits for further writes."""
        so_far = len(self.sure)
        wait_for(lambda: len(self.sure) > so_far + 20, "writes go on")

    def end(self) -> None:
        self._ended.set()
        self.join()


def assert_all_seen(seen: Watching, writer: Writer) -> None:
    wait_for(lambda: writer.sure[-1] in seen.values, "the last write was seen")
    assert set(writer.sure) <= set(seen.values) <= set(writer.tried)
    assert seen.revisions == sorted(set(seen.revisions))


def test_killed_leaders_cost_neither_events_nor_the_lease(three: Etcd, clients: Clients) -> None:
    start = three.gateway.put("a/n", b"start")
    seen = Watching(clients.loop, clients.make(*three.addresses), b"a/", start + 1)
    held = announce(clients.loop, clients.make(*three.addresses), "node", b"value", ttl=10)
    wait_until_stored(three.gateway, "node", b"value")
    writer = Writer(three, "a/n")
    writer.start()
    for _ in range(2):
        writer.goes_on()
        three.leader().kill()
        writer.goes_on()
        assert held.alive()
        three.start()
    writer.end()
    assert_all_seen(seen, writer)
    stored = three.gateway.get("node")
    assert stored is not None
    assert stored.version == 1  # the lease was never lost


def test_all_of_etcd_killed_and_started_again(three: Etcd, clients: Clients) -> None:
    start = three.gateway.put("b/n", b"start")
    seen = Watching(clients.loop, clients.make(*three.addresses), b"b/", start + 1)
    announce(clients.loop, clients.make(*three.addresses), "other", b"value", ttl=2)
    wait_until_stored(three.gateway, "other", b"value")
    writer = Writer(three, "b/n")
    writer.start()
    writer.goes_on()
    three.kill()
    wait_for(lambda: seen.trouble.text, "the watch knows")
    time.sleep(2.5)  # past the lease
    three.start()
    writer.goes_on()
    writer.end()
    assert_all_seen(seen, writer)
    wait_until_stored(three.gateway, "other", b"value")
    assert seen.trouble.text == ""


def test_a_server_without_the_others_is_left_and_nothing_is_missed(three: Etcd, clients: Clients) -> None:
    """It would go on holding a watch open that can never say anything."""
    alone, *others = three.servers
    start = three.gateway.put("c/n", b"start")
    seen = Watching(clients.loop, clients.make(alone.address), b"c/", start)
    wait_for(lambda: seen.values == [b"start"], "the watch works")
    for server in others:
        server.kill()
    took = wait_for(lambda: "no leader" in seen.trouble.text, "the watch knows why")
    assert took < 8.0
    three.start()
    three.gateway.put("c/n", b"end")
    wait_for(lambda: seen.values == [b"start", b"end"], "the watch goes on")
