"""Chains move between nodes: replicate, migrate, drain and warm, by the commands that people use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.client.namespace import Namespace
from kvstore.core.keys import Keys
from tests.cluster.cells import await_state, cell, peer
from tests.cluster.fetching import SIZE, content, fresh_keys, get, opened, own_blocks, put
from tests.integration.nodes import NodeProcess, node, wait_for

FEW = 24  # blocks of a chain


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    with cell(tmp_path, capacity="96MiB") as nodes:
        yield nodes


def run(process: NodeProcess, *arguments: str, status: int = 0) -> list[Any]:
    """What `kvstore cluster … --json` prints, line by line."""
    command = [sys.executable, "-m", "kvstore.cli", "cluster", *arguments, "--target", process.target, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def hexed(keys: Keys) -> str:
    return ",".join(key.hex() for key in keys)


def await_blocks(asked: NodeProcess, other: NodeProcess, count: int) -> None:
    wait_for(lambda: peer(asked, other)["blocks"] >= count, f"{other.control} to be known to hold {count} blocks")


# --- replicate and migrate ------------------------------------------------------------------------------------


def test_a_chain_is_copied_to_as_many_nodes_as_are_asked_for(three: list[NodeProcess]) -> None:
    first, second, third = three
    keys = fresh_keys(FEW)
    put(first, keys)
    (one,) = run(first, "replicate", "--keys", hexed(keys))
    assert [(result["blocks"], result["trouble"]) for result in one["results"]] == [(FEW, "")]
    assert sorted(own_blocks(node, keys) for node in (second, third)) == [0, FEW]
    holder = second if own_blocks(second, keys) else third
    await_blocks(first, holder, FEW)
    (both,) = run(first, "replicate", "--keys", hexed(keys), "--copies", "2")
    assert both["started"] == 1  # the other one has it already
    assert own_blocks(second, keys) == own_blocks(third, keys) == FEW
    with opened(second) as namespace:
        assert get(namespace, keys) == FEW
    await_blocks(first, second, FEW)
    await_blocks(first, third, FEW)
    (none,) = run(first, "replicate", "--keys", hexed(keys), "--copies", "2")
    assert none["started"] == 0


def test_a_chain_is_copied_to_the_node_that_is_named_from_the_node_that_has_it(three: list[NodeProcess]) -> None:
    first, second, third = three
    keys = fresh_keys(FEW)
    put(second, keys)
    put(first, fresh_keys(1))  # the node asked knows the namespace
    await_blocks(first, second, FEW)
    (done,) = run(first, "replicate", "--keys", hexed(keys), "--to", third.node_id[:10])
    assert done["results"] == [{"node": third.node_id, "blocks": FEW, "trouble": ""}]
    assert (own_blocks(first, keys), own_blocks(third, keys)) == (0, FEW)
    failed = subprocess.run(
        [sys.executable, "-m", "kvstore.cli", "cluster", "replicate", "--keys", hexed(keys), "--to", "feed",
         "--target", first.target], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert failed.returncode == 2
    assert "0 live nodes match 'feed'" in failed.stderr
    assert third.control in failed.stderr


def test_a_chain_that_migrates_is_there_and_not_here_but_for_what_others_go_on_from(three: list[NodeProcess]) -> None:
    first, second, _ = three
    keys = fresh_keys(FEW)
    put(first, keys)
    (done,) = run(first, "migrate", "--keys", hexed(keys), "--to", second.control)
    assert (done["moved"], done["dropped"]) == (FEW, FEW)
    assert (own_blocks(first, keys), own_blocks(second, keys)) == (0, FEW)
    with opened(second) as namespace:
        assert get(namespace, keys) == FEW
    trunk = fresh_keys(FEW)
    put(first, trunk)
    with opened(first) as namespace, namespace.borrow(trunk[:5]) as views:
        assert len(views) == 5
        (done,) = run(first, "migrate", "--keys", hexed(trunk), "--to", second.control)
        assert (done["moved"], done["dropped"]) == (FEW, FEW - 5)
    assert (own_blocks(first, trunk), own_blocks(second, trunk)) == (5, FEW)


# --- drain ----------------------------------------------------------------------------------------------------


class Reader(threading.Thread):
    """Reads chains again and again, each block compared, until told to stop. ``lost``: blocks that did not come."""

    def __init__(self, namespace: Namespace, chains: list[Keys]) -> None:
        super().__init__()
        self.namespace = namespace
        self.chains = chains
        self.lost = self.reads = 0
        self.failure = ""
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while not self._over.is_set():
                for keys in self.chains:
                    self.lost += len(keys) - get(self.namespace, keys)
                    self.reads += 1
        except BaseException as error:
            self.failure = repr(error)

    def stop(self) -> None:
        self._over.set()
        self.join()


def test_a_node_that_was_drained_under_load_takes_no_block_with_it(three: list[NodeProcess]) -> None:
    first, second, third = three
    chains = [fresh_keys(FEW) for _ in range(8)]
    for keys in chains:
        put(first, keys)
    await_blocks(second, first, 8 * FEW)
    with opened(second) as namespace:
        reader = Reader(namespace, chains[:4])
        reader.start()
        steps = run(second, "drain", first.node_id[:12], "--timeout", "60")
        assert (steps[-1]["finished"], steps[-1]["blocks_left"], steps[-1]["trouble"]) == (True, 0, "")
        assert steps[-1]["blocks_total"] >= 4 * FEW
        await_state(second, first, "draining")
        with opened(first) as writer:  # its own clients may still read, and put in vain
            assert get(writer, chains[0]) == FEW
            refused = fresh_keys(2)
            assert writer.put(refused, [content(key) for key in refused]).stored == 0
        first.stop()
        reader.stop()
        assert (reader.lost, reader.failure) == (0, "")
        assert reader.reads
        for keys in chains:
            assert get(namespace, keys) == FEW
    with opened(third) as namespace:
        for keys in chains:
            assert get(namespace, keys) == FEW


def test_a_drain_without_another_node_says_what_is_left_and_can_be_taken_back(tmp_path: Path) -> None:
    with cell(tmp_path, 2, capacity="64MiB") as (node, other):
        other.kill()
        await_state(node, other, "suspect")
        keys = fresh_keys(3)
        put(node, keys)
        (*_, last) = run(node, "drain", "--timeout", "20", status=1)
        assert (last["blocks_left"], last["trouble"]) == (3, "no other live node of the cell takes blocks")
        with opened(node) as namespace:
            more = fresh_keys(2)
            assert namespace.put(more, [content(key) for key in more]).stored == 0
            run(node, "drain", "--cancel")
            assert namespace.put(more, [content(key) for key in more]).stored == 2


def test_a_drain_does_not_push_out_what_was_used_more_lately_and_says_so(tmp_path: Path) -> None:
    with cell(tmp_path, 2, capacity="32MiB") as (first, second):
        put(first, fresh_keys(20))
        for _ in range(8):  # more than it can hold
            keys = fresh_keys(100)
            with opened(second) as namespace:
                namespace.put(keys, [content(key) for key in keys])
        wait_for(lambda: peer(first, second)["free_bytes"] < 4 << 20, "the other node to be known as full")
        (*_, last) = run(first, "drain", "--timeout", "15", status=1)
        assert (last["finished"], last["blocks_left"]) == (True, 20)
        assert "no room" in last["trouble"]
        assert own_blocks(second, keys) == 100


def test_a_drain_that_is_cancelled_ends_and_promises_nothing(three: list[NodeProcess]) -> None:
    first, second, third = three
    put(first, fresh_keys(FEW))
    for other in (second, third):  # nobody takes copies: the drain cannot end by itself
        os.kill(other.process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
    command = [sys.executable, "-m", "kvstore.cli", "cluster", "drain", "--target", first.target]
    draining = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: first.metrics()["kvstore_draining"] == 1, "the drain")
        run(first, "drain", "--cancel")
        output, _ = draining.communicate(timeout=90)
    finally:
        draining.kill()
        for other in (second, third):
            os.kill(other.process.pid, signal.SIGCONT)  # type: ignore[union-attr]
    assert draining.returncode == 1
    assert "cancelled" in output
    assert "nothing is lost" not in output
    with opened(first) as namespace:
        more = fresh_keys(2)
        assert namespace.put(more, [content(key) for key in more]).stored == 2


# --- warm -----------------------------------------------------------------------------------------------------


def test_a_node_that_comes_back_empty_is_warmed_with_what_is_used_most(three: list[NodeProcess]) -> None:
    first, second, third = three
    old, hot = [fresh_keys(FEW) for _ in range(2)], [fresh_keys(FEW) for _ in range(2)]
    for keys in (*old, *hot):
        put(first, keys)
    with opened(first) as namespace:
        for keys in hot:
            assert get(namespace, keys) == FEW
    await_blocks(third, first, 4 * FEW)
    steps = run(second, "warm", third.node_id[:12], "--max-bytes", str(2 * FEW * SIZE))
    assert (steps[-1]["finished"], steps[-1]["blocks_done"], steps[-1]["trouble"]) == (True, 2 * FEW, "")
    assert [own_blocks(third, keys) for keys in (*hot, *old)] == [FEW, FEW, 0, 0]
    first.kill()
    with opened(third) as namespace:
        for keys in hot:
            assert get(namespace, keys) == FEW


def test_commands_for_a_node_that_stands_alone_say_what_to_set(tmp_path: Path) -> None:

    with node(tmp_path) as alone:
        for command in (["drain"], ["warm"]):
            done = subprocess.run(
                [sys.executable, "-m", "kvstore.cli", "cluster", *command, "--target", alone.target],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 1
            assert "set discovery" in done.stderr
