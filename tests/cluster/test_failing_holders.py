"""Holders that are killed or stopped: the right bytes or none, in time, and hits again when they are back."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tests.cluster.cells import cell, peer
from tests.cluster.fetching import (
    CHAIN,
    LONG,
    SLACK,
    await_known,
    await_live,
    fresh_keys,
    get,
    opened,
    own_blocks,
    put,
)
from tests.integration.nodes import NodeProcess, wait_for


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """A cell that is whole again after each test."""
    with cell(tmp_path_factory.mktemp("cell"), capacity="224MiB") as nodes:
        yield nodes


def test_a_holder_that_is_killed_while_it_is_read_from(three: list[NodeProcess]) -> None:
    """At different moments: the bytes or a miss, never past the deadline; and hits again when it is back."""
    first, second, third = three
    dice = random.Random(7)
    for _ in range(4):
        keys = fresh_keys()
        put(first, keys)
        with opened(second) as namespace:
            await_known(namespace, keys)
            killer = threading.Timer(dice.uniform(0.0, 0.06), first.kill)
            killer.start()
            found = get(namespace, keys, timeout=3.0)
            killer.join()
            assert 0 <= found <= CHAIN
            assert own_blocks(second, keys) >= found
            mine = fresh_keys(4)
            began = time.monotonic()
            put(second, mine)
            assert get(namespace, mine) == 4
            assert time.monotonic() - began < SLACK
            first.start()
            for asked in (second, third):
                await_live(asked, first)
            await_known(namespace, keys)
            wait_for(lambda: get(namespace, keys) == CHAIN, "the chain to be a hit again")  # noqa: B023


def test_a_holder_that_does_not_run_costs_one_bounded_wait(three: list[NodeProcess]) -> None:
    first, second, _ = three
    keys, other, mine = fresh_keys(), fresh_keys(), fresh_keys(16)
    for chain in (keys, other):
        put(first, chain)
    put(second, mine)
    with opened(second) as namespace:
        await_known(namespace, other)
        assert first.process is not None
        first.process.send_signal(signal.SIGSTOP)
        try:
            assert get(namespace, keys, timeout=1.0) == 0
            assert second.metrics()['kvstore_fetch_failures_total{reason="timeout"}'] > 0
            began = time.monotonic()
            assert get(namespace, mine) == 16  # what is here is not slower for it
            assert get(namespace, other) == 0  # and the node is left alone
            assert time.monotonic() - began < SLACK
        finally:
            first.process.send_signal(signal.SIGCONT)
        await_live(second, first)
        wait_for(lambda: get(namespace, keys) == CHAIN, "the chain to be a hit again")
        assert get(namespace, other) == CHAIN


def test_another_holder_goes_on_where_one_was_stopped(three: list[NodeProcess]) -> None:
    first, second, third = three
    keys = fresh_keys()
    put(first, keys)
    with opened(third) as namespace:
        await_known(namespace, keys)
        assert get(namespace, keys) == CHAIN  # a second holder
    wait_for(lambda: peer(second, third)["blocks"] == third.stat()["blocks"], "the copy to be known")
    with opened(second) as namespace:
        await_known(namespace, keys)
        assert first.process is not None
        first.process.send_signal(signal.SIGSTOP)
        try:
            assert get(namespace, keys, timeout=10.0) == CHAIN
        finally:
            first.process.send_signal(signal.SIGCONT)
        await_live(second, first)


def test_readers_under_load_while_a_holder_is_killed_and_comes_back(three: list[NodeProcess]) -> None:
    first, second, third = three
    chains = [fresh_keys(40) for _ in range(12)]
    for number, keys in enumerate(chains):
        put((first, third)[number % 2], keys)
    stopping, failures, found = threading.Event(), list[BaseException](), [0] * 3

    def read(seed: int) -> None:
        dice = random.Random(seed)
        try:
            with opened(second, tcp=seed == 1) as namespace:
                while not stopping.is_set():
                    keys = chains[dice.randrange(len(chains))]
                    found[seed] += get(namespace, keys, timeout=2.0)
                    if dice.random() < 0.5:
                        namespace.evict(keys[dice.randrange(len(keys)) :])
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(2):
            time.sleep(0.7)
            first.kill()
            time.sleep(0.7)
            first.start()
        time.sleep(0.7)
    finally:
        stopping.set()
        for reader in readers:
            reader.join(LONG)
    assert failures == []
    assert min(found) > 0
    for asked in (second, third):
        await_live(asked, first)
    with opened(second) as namespace:
        for keys in chains:
            await_known(namespace, keys)
            wait_for(lambda: get(namespace, keys) == 40, "all chains to be hits in the end")  # noqa: B023
