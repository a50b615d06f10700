"""Clients that are on no node's machine: read from all holders at once, put where placement says, and miss nothing when
one of the nodes is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kvstore import Client, NamespaceSpec
from kvstore.client.namespace import Namespace
from kvstore.core.keys import Keys
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
