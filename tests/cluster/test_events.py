"""What a real node tells a subscriber: through load, kills, restarts, pauses and watchers that do not read."""

from __future__ import annotations

import itertools
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from kvstore import Client, NamespaceSpec
from kvstore.client.namespace import Namespace
from kvstore.cluster.feed import Feed
from kvstore.tiers.values import ChainSlice
from kvstore.v1 import control_pb2 as pb
from kvstore.v1.control_pb2_grpc import ControlStub
from kvstore.v1.events_pb2 import WatchEventsRequest
from tests.cluster.etcd.proxy import proxy
from tests.cluster.following import Follower, following, narrow_channel, serving
from tests.integration.nodes import NodeProcess, node, wait_for
from tests.unit.cluster.feeding import NODE, DictSink
from tests.unit.tiers.stores import keys_of

SPEC = NamespaceSpec(model="events", block_tokens=4, block_bytes=64 << 10)
SMALL = NamespaceSpec(model="many", block_tokens=4, block_bytes=4 << 10)
DRAM, NVME = 1, 2
CHAIN = 16


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that keeps its address when it is started again."""
    with node(tmp_path, control_address=free_address()) as process:
        yield process


def identity(process: NodeProcess) -> bytes:
    return bytes.fromhex(process.node_id)


def follow(process: NodeProcess, **options: float) -> Any:
    return following(process.control, identity(process), **options)


def put(namespace: Namespace, chains: range, length: int = CHAIN) -> None:
    data = [np.full(namespace.spec.block_bytes, 7, np.uint8)] * length
    for number in chains:
        keys = namespace.keys(range(number * 10_000, number * 10_000 + 4 * length))
        done = namespace.put(keys, data)
        assert done.stored + done.present == length


def answers(process: NodeProcess, spec: NamespaceSpec, chains: range, length: int = CHAIN) -> dict[bytes, int]:
    """Prefix that the node itself says it has, by the last key of each chain with one."""
    with Client(process.target) as client:
        namespace = client.namespace(spec)
        every = [namespace.keys(range(number * 10_000, number * 10_000 + 4 * length)) for number in chains]
        found = [(keys, namespace.match(keys)) for keys in every]
    return {key: at for keys, count in found for at, key in enumerate(keys[:count])}


def told(follower: Follower, spec: NamespaceSpec) -> dict[bytes, int]:
    return {key: block for (root, key), (block, _) in follower.known().items() if root == spec.root}


def agree(process: NodeProcess, follower: Follower, spec: NamespaceSpec, chains: range, length: int = CHAIN) -> bool:
    return told(follower, spec) == answers(process, spec, chains, length)


def test_what_is_put_is_told_with_its_namespace(running: NodeProcess) -> None:
    with follow(running) as follower, Client(running.target) as client:
        put(client.namespace(SPEC), range(3))
        wait_for(lambda: len(follower.known()) == 3 * CHAIN, "three chains told")
        assert agree(running, follower, SPEC, range(3))
        assert {tiers for _, tiers in follower.known().values()} == {DRAM}
        assert follower.canonicals == {SPEC.root: SPEC.canonical()}
        wait_for(lambda: any(sign.capacity_bytes for sign in follower.signs), "a sign of life with figures")
        status = next(sign for sign in follower.signs if sign.capacity_bytes is not None)
        assert status.free_bytes is not None
        assert 0 < status.free_bytes <= status.capacity_bytes  # type: ignore[operator]
        assert (status.node_id, status.draining, follower.reasons) == (identity(running), False, [])


def test_a_late_subscriber_gets_a_snapshot_and_goes_on(running: NodeProcess) -> None:
    with Client(running.target) as client:
        namespace = client.namespace(SPEC)
        put(namespace, range(5))
        with follow(running) as follower:
            follower.await_snapshot()
            assert agree(running, follower, SPEC, range(5))
            put(namespace, range(5, 7))
            namespace.evict(namespace.keys(range(4 * CHAIN))[3:])
            wait_for(lambda: len(follower.known()) == 6 * CHAIN + 3, "the events after the snapshot")
            assert agree(running, follower, SPEC, range(7))


def test_a_killed_node_is_lost_and_told_anew_when_it_is_back(running: NodeProcess) -> None:
    with follow(running) as follower:
        with Client(running.target) as client:
            put(client.namespace(SPEC), range(4))
        wait_for(lambda: len(follower.known()) == 4 * CHAIN, "four chains told")
        boot = follower.feed.boot_id
        running.kill()
        wait_for(lambda: bool(follower.reasons), "the loss")
        assert len(follower.known()) == 4 * CHAIN  # nobody says that they are gone
        running.start()
        follower.await_snapshot(2)
        assert follower.feed.boot_id != boot
        assert follower.signs[-1].boot_id == follower.feed.boot_id
        assert agree(running, follower, SPEC, range(4))
        assert len(follower.known()) == 4 * CHAIN
        running.kill()
        running.memory_file.unlink()
        running.start()
        follower.await_snapshot(3)
        assert follower.known() == {}
        with Client(running.target) as client:
            put(client.namespace(SPEC), range(1))
        wait_for(lambda: len(follower.known()) == CHAIN, "the chain put after the restart")


def test_evictions_under_load_are_told(running: NodeProcess) -> None:
    """Three times the capacity: what was told is what is there, all along and at the end."""
    chains = range(100)
    with follow(running) as follower, Client(running.target) as client:
        namespace = client.namespace(SPEC)
        most = 0
        for number in chains:
            put(namespace, range(number, number + 1))
            most = max(most, len(follower.known()))
        wait_for(lambda: agree(running, follower, SPEC, chains), "what is told to be what is there")
        assert running.stat()["counters"]["dropped_blocks_evicted"] > 900
        assert most <= (32 << 20) // (64 << 10)
        assert "removed" in follower.sink.calls
        assert (follower.feed.snapshots, follower.reasons) == (1, [])


def test_blocks_that_move_to_nvme_and_back_change_their_tiers(tmp_path: Path) -> None:
    nvme = {"nvme_dir": str(tmp_path / "nvme"), "nvme_capacity": "128MiB", "nvme_segment_bytes": "4MiB"}
    with (
        node(tmp_path, capacity="24MiB", **nvme) as process,
        follow(process) as follower,
        Client(process.target, timeout=60.0) as client,
    ):
        namespace = client.namespace(SPEC)
        put(namespace, range(40))
        wait_for(lambda: agree(process, follower, SPEC, range(40)), "what is told to be what is there")
        wait_for(lambda: NVME in {tiers for _, tiers in follower.known().values()}, "blocks on NVMe only")
        keys = next(
            keys
            for keys in (namespace.keys(range(number * 10_000, number * 10_000 + 4 * CHAIN)) for number in range(40))
            if all(follower.known()[SPEC.root, key][1] == NVME for key in keys)
        )
        assert namespace.get(keys, [np.empty(64 << 10, np.uint8) for _ in keys]) == CHAIN
        loaded = {(SPEC.root, key): (at, DRAM | NVME) for at, key in enumerate(keys)}
        wait_for(lambda: loaded.items() <= follower.known().items(), "the blocks to be in both tiers")


def test_a_paused_node_is_lost_by_its_silence_and_goes_on_where_it_was(running: NodeProcess) -> None:
    with follow(running, silence=2.0) as follower, Client(running.target) as client:
        put(client.namespace(SPEC), range(2))
        wait_for(lambda: len(follower.known()) == 2 * CHAIN, "two chains told")
        assert running.process is not None
        running.process.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: bool(follower.reasons), "the silence to be noticed")
            assert "nothing came for 2 s" in follower.reasons[0]
        finally:
            running.process.send_signal(signal.SIGCONT)
        heard = len(follower.signs)
        put(client.namespace(SPEC), range(2, 3))
        wait_for(lambda: len(follower.known()) == 3 * CHAIN, "the chain put after the pause")
        assert len(follower.signs) > heard
        assert follower.feed.snapshots == 1  # the node has kept what was missed


def test_connections_cut_at_random_points_under_load_lose_nothing(running: NodeProcess) -> None:
    """Two clients put and evict, two subscribers, one of them late, are cut off again and again."""
    random, chains = Random(7), range(160)
    with Client(running.target) as client, proxy(running.control) as first, proxy(running.control) as second:
        namespace = client.namespace(SPEC)
        put(namespace, chains[:40])
        loads = [threading.Thread(target=load, args=(running, part)) for part in (chains[40:100], chains[100:])]
        with following(first.address, identity(running)) as early:
            for thread in loads:
                thread.start()
            with following(second.address, identity(running)) as late:
                while any(thread.is_alive() for thread in loads):
                    for cut in (first, second):
                        cut.cut_after(random.randrange(20_000))
                    time.sleep(random.random() / 4)
                for thread in loads:
                    thread.join()
                for follower in (early, late):
                    wait_for(lambda it=follower: agree(running, it, SPEC, chains), "what is told to be what is there")
                assert len(early.known()) > 100
                assert first.cuts + second.cuts > 4
                assert early.feed.snapshots < first.cuts  # mostly it goes on where it was


def load(process: NodeProcess, chains: range) -> None:
    with Client(process.target, timeout=60.0) as client:
        namespace = client.namespace(SPEC)
        for number in chains:
            put(namespace, range(number, number + 1))
            if number % 3 == 0:
                namespace.evict(namespace.keys(range(number * 10_000, number * 10_000 + 4 * CHAIN))[5:])
            time.sleep(0.02)


@pytest.mark.parametrize("ways", [{"up": True, "down": True}, {"up": False, "down": True}], ids=["both", "one"])
def test_a_partition_is_noticed_and_outlived(running: NodeProcess, ways: dict[str, bool]) -> None:
    with (
        proxy(running.control) as between,
        following(between.address, identity(running), silence=2.0) as follower,
        Client(running.target) as client,
    ):
        namespace = client.namespace(SPEC)
        put(namespace, range(2))
        wait_for(lambda: len(follower.known()) == 2 * CHAIN, "two chains told")
        between.blackhole(**ways)
        put(namespace, range(2, 3))
        wait_for(lambda: len(follower.reasons) > 1, "the silence to be noticed, twice")
        assert "nothing came for 2 s" in follower.reasons[0]
        assert len(follower.known()) == 2 * CHAIN
        between.cut()
        between.heal()
        wait_for(lambda: len(follower.known()) == 3 * CHAIN, "the chain put during the partition")
        assert follower.feed.snapshots == 1


def test_a_node_that_stops_says_goodbye(running: NodeProcess) -> None:
    with follow(running) as follower:
        follower.await_snapshot()
        boot, begun = follower.feed.boot_id, time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - begun < 3.0  # it does not wait for its watchers
        wait_for(lambda: bool(follower.goodbyes), "the goodbye")
        assert follower.goodbyes == [boot]


def test_another_node_at_the_address_is_not_believed(running: NodeProcess) -> None:
    with Client(running.target) as client:
        put(client.namespace(SPEC), range(1))
    with following(running.control, bytes(16)) as follower:
        wait_for(lambda: bool(follower.reasons), "the loss")
        assert running.node_id in follower.reasons[0]
        assert (follower.sink.calls, follower.signs) == ([], [])


def test_a_sink_that_fails_is_filled_anew(running: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with follow(running) as follower, Client(running.target) as client:
        follower.await_snapshot()
        whole = follower.sink.stored

        def failing(*arguments: Any) -> None:
            monkeypatch.undo()
            raise RuntimeError("no room")

        monkeypatch.setattr(follower.sink, "stored", failing)
        put(client.namespace(SPEC), range(2))
        follower.await_snapshot(2)
        assert follower.reasons == ["RuntimeError: no room"]
        assert follower.sink.stored == whole
        assert agree(running, follower, SPEC, range(2))
        assert len(follower.known()) == 2 * CHAIN


def test_a_watcher_that_falls_behind_gets_a_snapshot_in_its_stream(tmp_path: Path) -> None:
    """Its connection has room for some thousand keys, and the node keeps as many; 64,000 come and go."""
    with serving(tmp_path, capacity="16MiB") as served, narrow_channel(served) as channel:
        served.store.journal.ring_bytes = 64 << 10
        session, view = served.store.open_session(False), served.store.open_namespace(SMALL.canonical())
        sink = DictSink()
        feed = Feed(served.facts.node_id, NODE, sink, lambda root, canonical: None)
        stream = ControlStub(channel).WatchEvents(feed.request())  # type: ignore[no-untyped-call]
        while feed.behind:
            feed.take(next(stream))
        for number in range(250):
            chain = keys_of(SMALL, tuple(range(number * 1000, number * 1000 + 256)))
            reserved = served.store.reserve(session, view.handle, ChainSlice(chain))
            served.store.commit(session, reserved.id, np.zeros(reserved.slots, np.uint64))
            time.sleep(0.002)
        served.store._pressure.stop()  # nothing is evicted any more
        served.store.journal.flush()
        while feed.behind or feed.sequence < served.store.journal.sequence:
            feed.take(next(stream))
        assert feed.snapshots > 1
        here = b"".join(run.keys for run in served.store.journal.snapshot()[1])
        assert {key for _, key in sink.blocks} == {here[at : at + 16] for at in range(0, len(here), 16)}
        stream.cancel()


def test_watchers_that_do_not_read_cost_neither_puts_nor_memory_nor_calls(tmp_path: Path) -> None:
    """Eight of them, and a node with one control thread. What it keeps for them does not grow with what happens."""
    with node(tmp_path, control_threads=1, capacity="16MiB", shutdown_grace="100ms") as process:
        assert process.process is not None
        memory = psutil.Process(process.process.pid).memory_info
        number = itertools.count()

        def rounds(count: int) -> float:
            """Median seconds of a put of 256 blocks into the full node."""
            times = []
            for _ in range(count):
                begun = time.monotonic()
                put(namespace, range(at := next(number), at + 1), 256)
                times.append(time.monotonic() - begun)
            return float(np.median(times))

        with Client(process.target, timeout=60.0) as client, grpc.insecure_channel(process.control) as channel:
            namespace = client.namespace(SMALL)
            rounds(40)
            alone = rounds(40)
            stub = ControlStub(channel)  # type: ignore[no-untyped-call]
            deaf = [stub.WatchEvents(WatchEventsRequest()) for _ in range(8)]
            with follow(process) as follower:
                follower.await_snapshot()
                assert process.metrics()["kvstore_event_watchers"] == 9
                rounds(40)
                before = memory().rss
                watched = rounds(200)
                assert memory().rss - before < 24 << 20  # 102,400 blocks came and went
                assert watched < 3 * alone + 0.02
                assert stub.Stat(pb.StatRequest(), timeout=10).blocks
                wait_for(lambda: agree(process, follower, SMALL, range(next(number)), 256), "the one that reads")
            for call in deaf:
                call.cancel()
            wait_for(lambda: not process.metrics()["kvstore_event_watchers"], "the node to let go of all watchers")
