"""Clients that are on no node's machine: read from all holders at once, put where placement says, and miss nothing when
one of the nodes is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kvstore import Client, NamespaceSpec
from kvstore.client.namespace import Namespace
from kvstore.core.keys import Keys, chain_keys
from tests.cluster.cells import cell, peer
from tests.cluster.etcd.servers import etcd
from tests.cluster.fetching import (
    CHAIN,
    LONG,
    SIZE,
    SLACK,
    SPEC,
    await_known,
    await_live,
    content,
    fresh_keys,
    get,
    opened,
    own_blocks,
    put,
)
from tests.integration import nodes as processes
from tests.integration.nodes import NodeProcess, node, wait_for

BYTES = CHAIN * SIZE


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """A cell that is whole again after each test."""
    with cell(tmp_path_factory.mktemp("cell"), capacity="224MiB") as nodes:
        yield nodes


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """A cell whose nodes are equally full, for placement to choose among."""
    with cell(tmp_path_factory.mktemp("even"), capacity="224MiB") as nodes:
        yield nodes


def sent(process: NodeProcess) -> float:
    """Bytes of blocks that a node has sent to clients."""
    return process.metrics().get('kvstore_sent_bytes_total{op="get",transport="tcp"}', 0.0)


def requests(process: NodeProcess, op: str) -> float:
    found = process.metrics()
    names = [name for name in found if name.startswith("kvstore_requests_total") and f'op="{op}"' in name]
    return sum(found[name] for name in names)


@contextmanager
def far(*processes: NodeProcess, spec: NamespaceSpec = SPEC) -> Iterator[Namespace]:
    """A client that knows these nodes' addresses."""
    with Client(f"kv://{','.join(one.data for one in processes)}", timeout=LONG) as client:
        yield client.namespace(spec)


def held_by(asked: NodeProcess, keys: Keys, *holders: NodeProcess) -> None:
    """Puts a chain at these nodes; returns when the node asked knows it."""
    for holder in holders:
        put(holder, keys)
        wait_for(
            lambda: peer(asked, holder)["blocks"] == holder.stat()["blocks"],  # noqa: B023
            "the copy to be known",
        )


# --- reading --------------------------------------------------------------------------------------------------


def test_a_chain_comes_from_all_its_holders_at_once_and_not_through_the_home_node(three: list[NodeProcess]) -> None:
    first, second, home = three
    keys = fresh_keys()
    held_by(home, keys, first, second)
    with far(home) as namespace:
        before = [sent(one) for one in three]
        assert namespace.match(keys) == CHAIN
        assert get(namespace, keys) == CHAIN
        assert get(namespace, keys, first=CHAIN - 7) == CHAIN
    by = [sent(one) - at for one, at in zip(three, before, strict=True)]
    assert by[0] > BYTES / 4
    assert by[1] > BYTES / 4
    assert by[2] < SIZE
    assert own_blocks(home, keys) == 0  # nothing went through it


def test_what_the_home_node_has_comes_from_it_without_another_question(three: list[NodeProcess]) -> None:
    first, second, home = three
    keys = fresh_keys(40)
    held_by(first, keys, home, second)
    with far(home) as namespace:
        assert get(namespace, keys) == 40
        before = [sent(first), sent(second), requests(home, "route")]
        assert get(namespace, keys) == 40
        assert [sent(first), sent(second), requests(home, "route")] == before


def test_a_chain_of_which_each_node_has_another_beginning(three: list[NodeProcess]) -> None:
    first, second, home = three
    keys = fresh_keys()
    held_by(home, keys, first)
    held_by(home, keys[:100], second)
    put(home, keys[:30])
    with far(home) as namespace:
        await_known(namespace, keys)
        assert get(namespace, keys) == CHAIN
        assert get(namespace, Keys(keys.raw + fresh_keys(5).raw)) == CHAIN
    assert own_blocks(home, keys) == 30


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_holder_that_fails_within_a_get_costs_no_block_that_another_has(
    three: list[NodeProcess], number: signal.Signals
) -> None:
    """At different moments; the next gets leave it alone."""
    first, second, home = three
    for delay in (0.0, 0.004, 0.02):
        keys = fresh_keys()
        held_by(home, keys, first, second)
        assert first.process is not None
        with far(home) as namespace:
            failing = threading.Timer(delay, first.process.send_signal, [number])
            failing.start()
            assert get(namespace, keys, timeout=10.0) == CHAIN
            failing.join()
            assert get(namespace, keys, timeout=10.0) == CHAIN  # it learns of the failure now at the latest
            failures = namespace.client.counters().get("failures", 0)
            assert get(namespace, keys, timeout=10.0) == CHAIN
            assert namespace.client.counters().get("failures", 0) == failures  # it is left alone for a while
        if number == signal.SIGKILL:
            first.process.wait()
            first.start()
        else:
            first.process.send_signal(signal.SIGCONT)
        for asked in (second, home):
            await_live(asked, first)


def test_no_get_outlasts_its_deadline_when_nobody_answers(three: list[NodeProcess]) -> None:
    first, second, home = three
    keys = fresh_keys()
    held_by(home, keys, first)
    with far(home) as namespace:
        assert get(namespace, keys) == CHAIN
        assert first.process is not None
        assert home.process is not None
        for stopped in (first, home):
            stopped.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
        try:
            for _ in range(3):
                assert get(namespace, keys, timeout=0.8) == 0
        finally:
            for stopped in (first, home):
                stopped.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
        for asked, other in ((second, first), (second, home), (home, first), (first, home)):
            await_live(asked, other)
        wait_for(lambda: get(namespace, keys) == CHAIN, "the chain to be a hit again")


def test_the_next_node_of_the_list_is_the_home_node_when_the_first_is_gone(three: list[NodeProcess]) -> None:
    first, second, third = three
    keys = fresh_keys(40)
    held_by(second, keys, third)
    with far(first, second) as namespace:
        assert namespace.match(fresh_keys(1)) == 0
        first.kill()
        assert get(namespace, keys) == 40
        more = fresh_keys(3)
        assert namespace.put(more, [content(key) for key in more]).stored == 3
        assert get(namespace, more) == 3
    first.start()
    for asked in (second, third):
        await_live(asked, first)


def test_many_threads_share_a_client(three: list[NodeProcess]) -> None:
    first, second, home = three
    chains = [fresh_keys(100) for _ in range(4)]
    for keys in chains:
        held_by(home, keys, first, second)
    found, threads = list[int](), []
    with far(home) as namespace:
        known = threading.active_count()
        for keys in chains * 3:
            threads.append(threading.Thread(target=lambda keys=keys: found.append(get(namespace, keys))))
            threads[-1].start()
        for thread in threads:
            thread.join(LONG)
        assert found == [100] * 12
        assert threading.active_count() - known <= 9  # of the client, however many calls there are
    wait_for(lambda: threading.active_count() < known + 1, "the client's threads to end")


# --- putting --------------------------------------------------------------------------------------------------


def test_chains_spread_over_the_nodes_and_each_is_whole_on_one(even: list[NodeProcess]) -> None:
    home = even[0]
    used = set[int]()
    with far(home) as namespace:
        for _ in range(12):
            keys = fresh_keys(20)
            assert namespace.put(keys, [content(key) for key in keys]).stored == 20
            assert namespace.match(keys) == 20  # its writer need not wait for the news
            assert get(namespace, keys) == 20
            have = [own_blocks(one, keys) for one in even]
            assert sorted(have) == [0, 0, 20]
            used.add(have.index(20))
    assert len(used) > 1


def test_a_chain_that_grows_stays_where_it_is(three: list[NodeProcess]) -> None:
    """Put by put, at once and when the news is old, by the same client and by another one."""
    home, other, _ = three
    with far(home) as namespace, far(other) as second:
        for _ in range(4):
            keys = fresh_keys(40)
            for start, writer in ((0, namespace), (10, namespace), (20, namespace), (30, second)):
                if start >= 20:
                    await_known(writer, keys[:start])
                done = writer.put(keys[: start + 10], [content(key) for key in keys[start : start + 10]], first=start)
                assert done.stored == 10
            assert sorted(own_blocks(one, keys) for one in three) == [0, 0, 40]


def test_blocks_that_some_node_has_are_not_sent_again(three: list[NodeProcess]) -> None:
    first, _, home = three
    keys = fresh_keys(40)
    held_by(home, keys[:30], first)
    with far(home) as namespace:
        await_known(namespace, keys[:30])
        done = namespace.put(keys, [content(key) for key in keys])
        assert (done.stored, done.present) == (10, 30)
        assert own_blocks(first, keys) == 40


def test_a_branch_that_is_placed_anew_takes_what_comes_before_it_along(even: list[NodeProcess]) -> None:
    """What many chains share lies on each node that has one of them."""
    home = even[0]
    with far(home) as namespace:
        shared = fresh_keys(4)
        assert namespace.put(shared, [content(key) for key in shared]).stored == 4
        await_known(namespace, shared)
        time.sleep(0.3)
        used = set[int]()
        for branch in range(12):
            rest = chain_keys(shared[3], range(branch << 20, (branch << 20) + 4 * 60), 4)
            keys = Keys(shared.raw + rest)
            done = namespace.put(keys, [content(key) for key in keys])
            assert (done.stored, done.present, done.failed) == (60, 4, 0)
            have = [own_blocks(one, keys) for one in even]
            assert 64 in have
            assert get(namespace, keys) == 64
            used.add(have.index(64))
        assert len(used) > 1


def write(namespace: Namespace, keys: Keys, first: int) -> int:
    """Writes blocks range by range, of which there is one here; how many are stored."""
    with namespace.writer(keys, first=first) as writer:
        writer.write((0, SIZE), [content(key) for key in keys[first:]])
    return writer.result.stored


def test_what_is_written_by_ranges_goes_where_a_put_goes(even: list[NodeProcess]) -> None:
    used = set[int]()
    with far(even[0]) as namespace:
        for _ in range(6):
            keys = fresh_keys(20)
            assert write(namespace, keys[:10], 0) == 10
            assert write(namespace, keys, 10) == 10  # at once
            assert get(namespace, keys) == 20
            have = [own_blocks(one, keys) for one in even]
            assert sorted(have) == [0, 0, 20]
            used.add(have.index(20))
    assert len(used) > 1


def test_what_hangs_on_blocks_of_another_node_takes_them_along(three: list[NodeProcess]) -> None:
    """Of a client that is bound to the node of its machine too."""
    first, second, _ = three
    keys, other = fresh_keys(30), fresh_keys(30)
    for chain in (keys, other):
        put(first, chain[:20])
    with opened(second) as namespace:
        await_known(namespace, keys[:20])
        await_known(namespace, other[:20])
        assert namespace.put(keys, [content(key) for key in keys[20:]], first=20).stored == 10
        assert write(namespace, other, 20) == 10
        for chain in (keys, other):
            assert own_blocks(second, chain) == 30
            assert get(namespace, chain) == 30
        lost = fresh_keys(3)  # whose beginning nobody has
        done = namespace.put(lost, [content(key) for key in lost[1:]], first=1)
        assert done.reasons == {"parent_missing": 2}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_what_a_failed_node_should_have_taken_goes_to_the_home_node(
    three: list[NodeProcess], number: signal.Signals
) -> None:
    home, second, third = three
    with far(home) as namespace:
        for failing in (second, third):
            assert failing.process is not None
            failing.process.send_signal(number)
            try:
                for _ in range(6):
                    keys = fresh_keys(10)
                    began = time.monotonic()
                    done = namespace.put(keys, [content(key) for key in keys], timeout=6.0)
                    assert time.monotonic() - began < 6.0 + SLACK
                    assert done.stored == 10
                    assert get(namespace, keys) == 10
            finally:
                if number == signal.SIGKILL:
                    failing.process.wait()
                    failing.start()
                else:
                    failing.process.send_signal(signal.SIGCONT)
            for asked in three:
                if asked is not failing:
                    await_live(asked, failing)
                    await_live(failing, asked)


# --- nodes of another version, clients that fork ----------------------------------------------------------------


def test_a_home_node_that_knows_no_routes_serves_its_clients_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cell(tmp_path, capacity="64MiB") as (old, new, third):
        old.stop()
        with monkeypatch.context() as patched:
            patched.setattr(processes, "COMMAND", [sys.executable, "-m", "tests.cluster.old_node"])
            old.start()
        for asked in (new, third):
            await_live(asked, old)
            await_live(old, asked)
        keys, mine = fresh_keys(40), fresh_keys(40)
        held_by(old, keys, new)
        with far(old) as namespace:
            await_known(namespace, keys)
            assert get(namespace, keys) == 40
            assert own_blocks(old, keys) == 40  # it fetched them
            assert namespace.put(mine, [content(key) for key in mine]).stored == 40
            assert own_blocks(old, mine) == 40
        with far(third) as namespace:  # and as a holder, and as one that blocks are placed on
            await_known(namespace, mine)
            assert get(namespace, mine) == 40
            for _ in range(6):
                more = fresh_keys(8)
                assert namespace.put(more, [content(key) for key in more]).stored == 8
                assert get(namespace, more) == 8


def test_a_client_finds_a_cell_by_etcd(tmp_path: Path) -> None:
    """Without knowing a node; and another one when the one that it had is gone."""
    with etcd() as servers:
        discovery = f"etcd://{servers.addresses[0]}/blue"
        with (
            node(tmp_path / "a", discovery=discovery) as first,
            node(tmp_path / "b", discovery=discovery) as second,
        ):
            await_live(first, second)
            await_live(second, first)
            keys = fresh_keys(20)
            held_by(first, keys, second)
            held_by(second, keys, first)
            with Client(discovery, timeout=LONG) as client:
                namespace = client.namespace(SPEC)
                assert get(namespace, keys) == 20
                first.kill()
                wait_for(lambda: get(namespace, keys, timeout=5.0) == 20, "the other node to be used")
                second.kill()
                first.start()
                wait_for(lambda: get(namespace, keys, timeout=5.0) == 20, "the other node to be used")
            with Client(discovery.replace("blue", "green"), timeout=5.0) as client:
                assert client.namespace(SPEC).match(keys) == 0
                assert client.last_miss == "unavailable"


def test_a_forked_child_cannot_disturb_its_parents_reads(three: list[NodeProcess]) -> None:
    first, second, home = three
    keys = fresh_keys()
    held_by(home, keys, first, second)
    with far(home) as namespace:
        assert get(namespace, keys) == CHAIN
        child = os.fork()
        if child == 0:
            try:
                namespace.get(keys, [np.zeros(SIZE, np.uint8) for _ in keys])
            except Exception as error:
                os._exit(0 if type(error).__name__ == "Closed" else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert get(namespace, keys) == CHAIN
