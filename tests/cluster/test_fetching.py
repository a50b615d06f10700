"""Blocks that one node holds are hits on the others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore import NamespaceSpec, PartSpec
from kvstore.cli.control import control
from kvstore.client.hold import hold
from kvstore.core.errors import Unsupported
from kvstore.core.keys import Keys
from kvstore.transport.batch import GetCall
from kvstore.transport.plan import make_plan
from kvstore.v1 import control_pb2 as pb
from tests.cluster.cells import cell, peer
from tests.cluster.etcd.servers import etcd
from tests.cluster.fetching import (
    CHAIN,
    LONG,
    SIZE,
    SPEC,
    await_known,
    await_live,
    content,
    fresh_keys,
    get,
    opened,
    own_blocks,
    peer_session,
    put,
)
from tests.integration.nodes import NodeProcess, node, wait_for

PARTS = NamespaceSpec("ranks", 4, parts=(PartSpec("tp0", 40_000), PartSpec("tp1", 24_000, layers=3)))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """A cell that is whole again after each test."""
    with cell(tmp_path_factory.mktemp("cell"), capacity="224MiB") as nodes:
        yield nodes


# --- all is well ----------------------------------------------------------------------------------------------


def test_what_was_put_at_one_node_is_matched_and_got_at_another(three: list[NodeProcess]) -> None:
    first, second, _ = three
    keys = fresh_keys()
    put(first, keys)
    with opened(second) as namespace:
        await_known(namespace, keys)
        assert own_blocks(second, keys) == 0
        before = second.metrics()["kvstore_fetched_bytes_total"]
        assert get(namespace, keys) == CHAIN
        assert second.metrics()["kvstore_fetched_bytes_total"] - before == CHAIN * SIZE
        assert own_blocks(second, keys) == CHAIN  # kept
        assert get(namespace, keys) == CHAIN
        assert second.metrics()["kvstore_fetched_bytes_total"] - before == CHAIN * SIZE


def test_ways_to_read(three: list[NodeProcess]) -> None:
    first, _, third = three
    keys = [fresh_keys() for _ in range(4)]
    for chain in keys:
        put(first, chain)
    with opened(third, tcp=True) as namespace:
        await_known(namespace, keys[3])
        assert get(namespace, keys[0]) == CHAIN
    with opened(third) as namespace:
        assert get(namespace, keys[1], first=CHAIN - 3) == CHAIN
        assert own_blocks(third, keys[1]) == CHAIN
        with namespace.borrow(keys[2]) as views:
            assert [bytes(view) for view in views] == [content(key).tobytes() for key in keys[2]]
        started = namespace.prefetch(keys[3])
        assert (started.started, started.present, started.absent) == (CHAIN, 0, 0)
        wait_for(lambda: own_blocks(third, keys[3]) == CHAIN, "the prefetch")
        again = namespace.prefetch(keys[3])
        assert (again.started, again.present, again.absent) == (0, CHAIN, 0)


def test_a_lookup_with_a_lease_counts_what_a_get_would_fetch(three: list[NodeProcess]) -> None:
    """What an engine's connector does: it looks up, prefetches, and loads when the request's turn comes."""
    first, second, _ = three
    keys = fresh_keys()
    put(first, keys)
    put(second, keys[:9])
    with opened(second) as namespace:
        await_known(namespace, keys)
        with hold(namespace, keys) as held:
            assert (held.blocks, held.leased) == (CHAIN, 9)
        assert own_blocks(second, keys) == 9  # nothing is fetched for a look
        namespace.prefetch(keys, deadline=LONG)
        wait_for(lambda: own_blocks(second, keys) == CHAIN, "the prefetch")
        with hold(namespace, keys) as held:
            assert (held.blocks, held.leased) == (CHAIN, CHAIN)


def test_a_chain_that_is_here_in_part_is_completed(three: list[NodeProcess]) -> None:
    first, second, _ = three
    keys = fresh_keys()
    put(first, keys)
    put(second, keys[:50])
    with opened(second) as namespace:
        await_known(namespace, keys)
        longer = Keys(keys.raw + fresh_keys(3).raw)  # and ends where nobody goes on
        before = second.metrics()["kvstore_fetched_blocks_total"]
        assert namespace.match(longer) == CHAIN
        assert get(namespace, longer) == CHAIN
        assert second.metrics()["kvstore_fetched_blocks_total"] - before == CHAIN - 50


def test_parts_come_as_they_are_asked_for(three: list[NodeProcess]) -> None:
    first, second, _ = three
    keys = fresh_keys(20, PARTS)
    blocks = [content(key, size) for key in keys for size in (40_000, 24_000)]
    with opened(first, PARTS) as namespace:
        assert namespace.put(keys, blocks).stored == 20
    with opened(second, PARTS) as namespace:
        await_known(namespace, keys)
        one = [np.zeros(24_000, np.uint8) for _ in keys]
        before = second.metrics()["kvstore_fetched_bytes_total"]
        assert namespace.get(keys, one, parts=["tp1"]) == 20
        assert second.metrics()["kvstore_fetched_bytes_total"] - before == 20 * 24_000
        assert all((block == content(key, 24_000)).all() for key, block in zip(keys, one, strict=True))
        layer = [np.zeros(8_000, np.uint8) for _ in keys]
        assert namespace.get(keys, layer, parts=["tp1"], range=(8_000, 8_000)) == 20
        assert all((block == content(key, 24_000)[8_000:16_000]).all() for key, block in zip(keys, layer, strict=True))
        every = [np.zeros(size, np.uint8) for _ in keys for size in (40_000, 24_000)]
        assert namespace.get(keys, every) == 20
        assert all((got == put).all() for got, put in zip(every, blocks, strict=True))


def test_what_another_node_asks_for_goes_no_further(three: list[NodeProcess]) -> None:
    first, second, _ = three
    keys = fresh_keys(8)
    put(first, keys)
    with opened(second) as namespace:
        await_known(namespace, keys)
    plan = make_plan(SPEC.parts, (), None)
    with peer_session(second) as transport:
        until = time.monotonic() + LONG
        handle = transport.open_namespace(SPEC.canonical(), SPEC.root, False, until).handle
        call = GetCall(handle, keys.raw, 0, plan)
        assert transport.match(call, until).blocks == 0
        assert transport.get(call, [np.zeros(SIZE, np.uint8) for _ in keys], until).blocks == 0
        with pytest.raises(Unsupported):
            transport.prefetch(handle, keys.raw, 1, (), None, until)
    assert own_blocks(second, keys) == 0


def test_what_was_evicted_at_its_node_is_a_miss_elsewhere(three: list[NodeProcess]) -> None:
    first, second, _ = three
    keys = fresh_keys(8)
    put(first, keys)
    with opened(second) as namespace, opened(first) as holder:
        await_known(namespace, keys)
        assert holder.evict(keys[3:]) == 5
        assert get(namespace, keys) == 3  # also when the news of it is still on its way
        wait_for(lambda: namespace.match(keys) == 3, "the eviction to be known")


def test_grpc_and_commands_answer_for_the_cell(three: list[NodeProcess]) -> None:
    first, second, third = three
    keys, other = fresh_keys(30), fresh_keys(30)
    for chain in (keys, other):
        put(first, chain)
    with opened(second) as near, opened(third):
        await_known(near, other)
    with control(f"grpc://{second.control}", LONG) as stub:
        found = stub.Match(pb.ControlMatchRequest(root=SPEC.root, keys=keys.raw + fresh_keys(2).raw))
        assert (found.blocks, found.remote_blocks) == (30, 30)
        assert own_blocks(second, keys) == 0
        replies = list(stub.Get(pb.ControlGetRequest(root=SPEC.root, keys=keys.raw, first_block=10)))
        assert replies[0].blocks == 30
        assert [one.data for one in replies[1:]] == [content(key).tobytes() for key in keys[10:]]
        assert own_blocks(second, keys) == 30
        started = stub.Prefetch(pb.PrefetchRequest(root=SPEC.root, keys=other.raw))
        assert (started.started, started.present, started.absent) == (30, 0, 0)
        wait_for(lambda: own_blocks(second, other) == 30, "the prefetch")
    asked = third.run("match", "--namespace", SPEC.root.hex(), "--keys", ",".join(key.hex() for key in keys), "--json")
    assert asked.returncode == 0, asked.stderr
    assert {name: json.loads(asked.stdout)[name] for name in ("blocks", "remote_blocks", "miss")} == {
        "blocks": 30, "remote_blocks": 30, "miss": ""
    }  # fmt: skip


# --- other cells ------------------------------------------------------------------------------------------------


def test_nodes_of_etcd_and_one_that_does_not_fetch(tmp_path: Path) -> None:
    with etcd() as servers:
        discovery = f"etcd://{servers.addresses[0]}/fetching"
        with (
            node(tmp_path / "a", discovery=discovery) as first,
            node(tmp_path / "b", discovery=discovery) as second,
            node(tmp_path / "c", discovery=discovery, fetch="off") as third,
        ):
            for asked in (second, third):
                await_live(asked, first)
            servers.kill()  # those who know each other need it no more
            keys = fresh_keys(20)
            put(first, keys)
            with opened(second) as namespace:
                await_known(namespace, keys)
                assert get(namespace, keys) == 20
            wait_for(lambda: peer(third, first)["blocks"] == 20, "the chain to be known")
            with opened(third) as namespace:
                assert namespace.match(keys) == 0
                assert get(namespace, keys) == 0


def test_a_full_node_makes_room_for_what_its_readers_want(tmp_path: Path) -> None:
    with cell(tmp_path, 2, capacity="48MiB") as (holder, small):
        small.stop()
        small.settings["capacity"] = "24MiB"
        small.memory_file.unlink(missing_ok=True)
        small.start()
        await_live(small, holder)
        chains = [fresh_keys() for _ in range(4)]
        for keys in chains:
            put(holder, keys)
        with opened(small) as namespace:
            for keys in chains:
                await_known(namespace, keys)
                assert get(namespace, keys) == CHAIN
        assert small.stat()["counters"]["dropped_blocks_evicted"] > CHAIN


def test_what_another_node_has_on_nvme_alone_is_fetched(tmp_path: Path) -> None:
    """The holder loads it for the fetching node, which has it in DRAM then."""
    nvme = {"nvme_dir": str(tmp_path / "nvme"), "nvme_capacity": "128MiB", "nvme_segment_bytes": "4MiB"}
    with cell(tmp_path, 2, capacity="24MiB") as (holder, second):
        holder.stop()
        holder.settings.update(nvme)
        holder.start()
        chains = [fresh_keys(40) for _ in range(20)]
        with opened(holder) as namespace:
            for keys in chains:
                assert namespace.put(keys, [content(key) for key in keys]).stored == 40
        await_live(second, holder)
        with opened(second) as namespace:
            for keys in chains:
                await_known(namespace, keys)
                assert get(namespace, keys) == 40
        assert holder.metrics()['kvstore_promotions_total{why="read"}'] > 100
