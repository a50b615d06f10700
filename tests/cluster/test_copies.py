"""As many nodes hold each block as are to: at once where that is asked for, soon else, and again after a loss."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore.cli.control import control
from kvstore.core.errors import NotServed
from kvstore.core.keys import Keys
from kvstore.transport.batch import GetCall
from kvstore.transport.plan import make_plan
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import types_pb2 as types
from tests.cluster.cells import await_state, cell
from tests.cluster.fetching import (
    CHAIN,
    LONG,
    SIZE,
    SLACK,
    SPEC,
    content,
    fresh_keys,
    get,
    opened,
    own_blocks,
    peer_session,
)
from tests.integration.nodes import NodeProcess, wait_for

R2 = {"replicas": 2, "capacity": "96MiB"}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """A cell that is whole again after each test."""
    with cell(tmp_path_factory.mktemp("copies"), **R2) as nodes:
        yield nodes


def put(process: NodeProcess, keys: Keys, ack: str, timeout: float = LONG, first: int = 0, tcp: bool = False):  # type: ignore[no-untyped-def]
    with opened(process, tcp=tcp) as namespace:
        blocks = [content(key) for key in keys[first:]]
        return namespace.put(keys, blocks, first=first, ack=ack, timeout=timeout)  # type: ignore[arg-type]


def holders(nodes: list[NodeProcess], keys: Keys) -> int:
    """How many nodes themselves have all of a chain."""
    return sum(own_blocks(node, keys) == len(keys) for node in nodes)


# --- acknowledged as replicated -------------------------------------------------------------------------------


@pytest.mark.parametrize("tcp", [False, True], ids=["shared memory", "tcp"])
def test_what_is_acknowledged_as_replicated_is_on_two_nodes(three: list[NodeProcess], tcp: bool) -> None:
    keys = fresh_keys()
    done = put(three[0], keys, "replicated", tcp=tcp)
    assert (done.stored, done.failed) == (CHAIN, 0)
    assert holders(three, keys) == 2
    again = put(three[0], keys, "replicated", tcp=tcp)  # true of blocks that were there before, too
    assert (again.stored + again.present, again.failed) == (CHAIN, 0)


def test_blocks_that_were_here_with_one_copy_get_the_other_before_they_are_acknowledged(
    three: list[NodeProcess],
) -> None:
    keys = fresh_keys(20)
    put(three[0], keys[:10], "visible")
    done = put(three[0], keys, "replicated")
    assert (done.stored, done.present, done.failed) == (10, 10, 0)
    assert holders(three, keys) == 2


def test_a_put_over_grpc_is_acknowledged_as_replicated_too(three: list[NodeProcess]) -> None:
    keys = fresh_keys(5)
    with opened(three[1]):  # makes the namespace known there
        pass
    with control(f"grpc://{three[1].control}", LONG) as stub:
        chain = types.ChainSlice(keys=keys.raw)
        first = pb.ControlPutRequest(root=SPEC.root, chain=chain, ack=types.ACK_LEVEL_REPLICATED)
        blocks = [pb.ControlPutRequest(data=content(key).tobytes()) for key in keys]
        reply = stub.Put(iter([first, *blocks]))
    assert reply.outcomes == bytes([types.PUT_OUTCOME_STORED]) * 5
    assert holders(three, keys) == 2


def test_what_is_put_as_visible_is_soon_on_two_nodes(three: list[NodeProcess]) -> None:
    keys = fresh_keys()
    for end in range(20, CHAIN + 1, 20):  # a chain that grows is copied as one, not once a put
        put(three[2], keys[:end], "visible", first=end - 20)
    before = three[2].metrics()['kvstore_copies_total{outcome="made"}']
    wait_for(lambda: holders(three, keys) == 2, "the copy")
    wait_for(lambda: three[2].metrics()["kvstore_owed_chains"] == 0, "the queue to be empty")
    assert three[2].metrics()['kvstore_copies_total{outcome="made"}'] - before <= 3


# --- losses ---------------------------------------------------------------------------------------------------


def test_what_was_replicated_survives_the_node_that_took_it_and_is_on_two_nodes_again(tmp_path: Path) -> None:
    with cell(tmp_path, gone_after=1.0, **R2) as nodes:
        first, *others = nodes
        chains = [fresh_keys() for _ in range(3)]
        for keys in chains:
            assert not put(first, keys, "replicated").failed
        first.kill()
        for keys in chains:
            with opened(others[0]) as namespace:
                wait_for(lambda: namespace.match(keys) == CHAIN, "the copy to be known")  # noqa: B023
                assert get(namespace, keys) == CHAIN
        for keys in chains:
            wait_for(lambda: holders(others, keys) == 2, "both nodes that are left to hold it")  # noqa: B023


def test_under_load_nothing_that_was_acknowledged_is_lost_with_the_node_that_took_it(tmp_path: Path) -> None:
    with cell(tmp_path, **R2) as nodes:
        acknowledged: list[Keys] = []
        over = threading.Event()

        def writer(tcp: bool) -> None:
            while not over.is_set():
                keys = fresh_keys(6)
                with contextlib.suppress(NotServed):
                    done = put(nodes[0], keys, "replicated", timeout=5.0, tcp=tcp)
                    if done.stored == 6:
                        acknowledged.append(keys)

        threads = [threading.Thread(target=writer, args=(nth % 2 == 1,)) for nth in range(6)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(acknowledged) >= 30, "some puts")
        nodes[0].kill()
        over.set()
        for thread in threads:
            thread.join()
        assert [keys for keys in acknowledged if holders(nodes[1:], keys) == 0] == []
        await_state(nodes[1], nodes[0], "suspect")
        for keys in acknowledged:
            with opened(nodes[1]) as namespace:
                wait_for(lambda: namespace.match(keys) == 6, "the copy to be known")  # noqa: B023
                assert get(namespace, keys) == 6


def test_every_copy_that_a_dead_node_held_is_made_again(tmp_path: Path) -> None:
    with cell(tmp_path, count=4, gone_after=1.0, **R2) as nodes:
        chains = [fresh_keys(30) for _ in range(12)]
        for nth, keys in enumerate(chains):
            assert not put(nodes[nth % 4], keys, "replicated").failed
        nodes[3].kill()
        left = nodes[:3]
        wait_for(lambda: all(holders(left, keys) == 2 for keys in chains), "two holders of each chain")


def test_a_copy_that_its_holder_gave_up_is_made_again(three: list[NodeProcess]) -> None:
    keys = fresh_keys(10)
    assert not put(three[0], keys, "replicated").failed
    holder = next(node for node in three[1:] if own_blocks(node, keys) == 10)
    done = holder.run("evict", "--keys", keys[5].hex(), "--json")  # and what hangs on it
    assert json.loads(done.stdout)["evicted"] == 5
    wait_for(lambda: holders(three, keys) == 2, "the copy")


def test_what_a_node_that_stops_held_is_copied_at_once(tmp_path: Path) -> None:
    with cell(tmp_path, **R2) as nodes:  # gone_after is minutes: its goodbye says it
        keys = fresh_keys()
        assert not put(nodes[0], keys, "replicated").failed
        assert nodes[0].stop() == 0
        wait_for(lambda: holders(nodes[1:], keys) == 2, "both others to hold it")


def test_a_put_at_a_node_that_is_alone_is_told_so_in_time(tmp_path: Path) -> None:
    with cell(tmp_path, count=2, **R2) as nodes:
        nodes[1].kill()
        keys = fresh_keys(10)
        began = time.monotonic()
        done = put(nodes[0], keys, "replicated", timeout=4.0)
        assert time.monotonic() - began < 4.0 + SLACK
        assert (done.reasons, own_blocks(nodes[0], keys)) == ({"not_replicated": 10}, 10)  # and visible


def test_a_target_that_stops_in_the_middle_of_a_copy_is_replaced_by_another(tmp_path: Path) -> None:
    with cell(tmp_path, **R2) as nodes:
        keys = fresh_keys()
        put(nodes[0], keys[:20], "replicated")
        with_copy = next(node for node in nodes[1:] if own_blocks(node, keys[:20]) == 20)
        assert with_copy.process is not None
        with_copy.process.send_signal(signal.SIGSTOP)  # it goes on listening, and answers nothing
        try:
            done = put(nodes[0], keys, "replicated", timeout=20.0, first=20)
            assert (done.stored, done.failed) == (CHAIN - 20, 0)
            rest = [node for node in nodes if node is not with_copy]
            assert holders(rest, keys) == 2
        finally:
            with_copy.process.send_signal(signal.SIGCONT)


def test_a_node_without_room_is_no_target(tmp_path: Path) -> None:
    with cell(tmp_path, **R2) as nodes, contextlib.ExitStack() as stack:
        first, full, third = nodes
        full.remove()
        full.settings["capacity"] = "32MiB"
        full.start()
        await_state(first, full, "live")
        keys = fresh_keys(200)
        for chain in (keys[:110], fresh_keys(100), fresh_keys(210)):  # leased: nothing of them can go
            namespace = stack.enter_context(opened(full))
            assert namespace.put(chain, [content(key) for key in chain]).stored == len(chain)
            stack.enter_context(namespace.borrow(chain))
        with opened(first) as namespace:
            wait_for(lambda: namespace.match(keys) == 110, "the beginning to be known")
        done = put(first, keys, "replicated", timeout=20.0)  # most of it is on the full node, which comes first
        assert done.failed == 0
        assert own_blocks(full, keys) < 200
        assert holders([first, third], keys) == 2


def test_lost_copies_are_made_within_the_bandwidth(tmp_path: Path) -> None:
    rate = 2 << 20
    with cell(tmp_path, gone_after=1.0, repair_rate=rate, **R2) as nodes:
        chains = [fresh_keys() for _ in range(2)]
        for keys in chains:
            assert not put(nodes[0], keys, "replicated").failed
        holder = next(node for node in nodes[1:] if own_blocks(node, chains[0]) == CHAIN)
        rest = [node for node in nodes if node is not holder]
        holder.kill()
        samples: list[tuple[float, float]] = []
        name = "kvstore_copied_bytes_total"
        start = rest[0].metrics()[name]

        def done() -> bool:
            samples.append((time.monotonic(), rest[0].metrics()[name] - start))
            return holders(rest, chains[0]) == 2

        wait_for(done, "the copies")
        moving = [sample for sample in samples if sample[1]]
        took = moving[-1][0] - moving[0][0]
        assert moving[-1][1] >= CHAIN * SIZE * 3 / 4  # the last sample may be older than the last copy
        assert moving[-1][1] - moving[0][1] <= rate * took * 1.25 + rate


# --- what is read much ----------------------------------------------------------------------------------------


def test_what_many_read_from_one_node_is_soon_on_another(tmp_path: Path) -> None:
    with cell(tmp_path, count=2, capacity="32MiB") as nodes:  # replicas = 1: extra copies come all the same
        keys = fresh_keys(4)
        put(nodes[0], keys, "visible")
        with peer_session(nodes[0]) as transport:
            handle = transport.open_namespace(SPEC.canonical(), SPEC.root, False, time.monotonic() + LONG).handle
            call = GetCall(handle, keys.raw, 0, make_plan(SPEC.parts, (), None))
            buffers = [np.zeros(SIZE, np.uint8) for _ in keys]

            def read_and_look() -> bool:
                for _ in range(50):
                    assert transport.get(call, buffers, time.monotonic() + LONG).blocks == 4
                return own_blocks(nodes[1], keys) == 4

            wait_for(read_and_look, "the extra copy")
        assert nodes[0].metrics()["kvstore_extra_copies_total"] >= 1
