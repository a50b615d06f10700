"""A rotation is one of the whole cell: what was put before it is never found again, wherever it lay, and whoever was
away voids it when it is back."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import NamespaceSpec
from kvstore.core.keys import Keys
from tests.cluster.cells import cell
from tests.cluster.fetching import SIZE, await_live, content, fresh_keys, get, opened
from tests.cluster.test_routing import far
from tests.integration.nodes import NodeProcess, wait_for

_numbers = itertools.count()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """A cell that is whole again after each test."""
    with cell(tmp_path_factory.mktemp("cell"), capacity="96MiB") as nodes:
        yield nodes


@pytest.fixture
def spec() -> NamespaceSpec:
    """A namespace of its own for each test."""
    return NamespaceSpec(model=f"weights changed in place {next(_numbers)}", block_tokens=4, block_bytes=SIZE)


def fill(process: NodeProcess, spec: NamespaceSpec, blocks: int = 8) -> Keys:
    """A fresh chain at one node."""
    keys = fresh_keys(blocks, spec)
    with opened(process, spec) as namespace:
        assert namespace.put(keys, [content(key) for key in keys]).stored == blocks
    return keys


def found(process: NodeProcess, spec: NamespaceSpec, keys: Keys) -> int:
    with opened(process, spec) as namespace:
        return namespace.match(keys)


def known_to_all(nodes: list[NodeProcess], spec: NamespaceSpec, *chains: Keys) -> None:
    for keys in chains:
        for one in nodes:
            wait_for(lambda one=one, keys=keys: found(one, spec, keys) == len(keys), "a chain to be known")  # type: ignore[misc]


def generation(process: NodeProcess, spec: NamespaceSpec) -> int:
    listed = json.loads(process.run("namespace", "list", "--json").stdout)["namespaces"]
    return next(int(one["generation"]) for one in listed if one["root"] == spec.root.hex())


def test_what_all_nodes_hold_is_void_when_it_returns(three: list[NodeProcess], spec: NamespaceSpec) -> None:
    chains = [fill(one, spec) for one in three]
    known_to_all(three, spec, *chains)
    with far(three[0], spec=spec) as distant, opened(three[1], spec) as namespace:
        assert [get(distant, keys) for keys in chains] == [8, 8, 8]
        assert namespace.rotate(timeout=20) == 1
        assert [get(distant, keys) for keys in chains] == [0, 0, 0]
    for keys in chains:
        for one in three:
            with opened(one, spec) as namespace:
                assert get(namespace, keys) == 0
    again = [fill(one, spec) for one in three]  # and what comes now is shared as ever
    known_to_all(three, spec, *again)
    for keys in again:
        for one in three:
            with opened(one, spec) as namespace:
                assert get(namespace, keys) == 8
    assert [generation(one, spec) for one in three] == [1, 1, 1]


def test_by_command_and_for_a_client_far_away(three: list[NodeProcess], spec: NamespaceSpec) -> None:
    chains = [fill(one, spec) for one in three]
    known_to_all(three, spec, *chains)
    done = three[0].run("namespace", "rotate", spec.root.hex(), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) | {"root": ""} == {
        "root": "", "blocks": 8, "leased": 0, "generation": 1, "unreached": []
    }  # fmt: skip
    assert [found(one, spec, keys) for one in three for keys in chains] == [0] * 9


def test_a_namespace_that_a_node_opens_later_is_of_the_same_generation(
    three: list[NodeProcess], spec: NamespaceSpec
) -> None:
    first, second, third = three
    fill(first, spec)
    with opened(first, spec) as namespace:
        namespace.rotate(timeout=20)
        namespace.rotate(timeout=20)
    keys = fill(first, spec)
    for other in (second, third):
        with opened(other, spec) as namespace:
            wait_for(lambda: namespace.match(keys) == 8, "the chain to be known")
            assert get(namespace, keys) == 8
        assert generation(other, spec) == 2


@pytest.mark.parametrize("away", ["stopped", "killed"])
def test_a_node_that_was_away_voids_its_blocks_when_it_is_back(
    three: list[NodeProcess], spec: NamespaceSpec, away: str
) -> None:
    first, second, third = three
    chains = [fill(one, spec) for one in three]
    known_to_all(three, spec, *chains)
    assert third.process is not None
    third.process.send_signal(signal.SIGSTOP if away == "stopped" else signal.SIGKILL)
    done = first.run("namespace", "rotate", spec.root.hex(), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["unreached"] == [third.control]
    for one in (first, second):
        assert [found(one, spec, keys) for keys in chains] == [0, 0, 0]
    if away == "stopped":
        third.process.send_signal(signal.SIGCONT)
    else:
        third.process.wait()
        third.start()
    for asked in (first, second):
        for _ in range(20):  # while it comes back nobody gets of it what is void
            with opened(asked, spec) as namespace:
                assert [get(namespace, keys) for keys in chains] == [0, 0, 0]
        await_live(asked, third)
    wait_for(lambda: [found(third, spec, keys) for keys in chains] == [0, 0, 0], "its blocks to be void")
    assert generation(third, spec) == generation(first, spec) == 1
    keys = fill(third, spec)
    known_to_all(three, spec, keys)


def test_rotations_at_the_same_time_leave_nothing_of_before(three: list[NodeProcess], spec: NamespaceSpec) -> None:
    chains = [fill(one, spec) for one in three]
    known_to_all(three, spec, *chains)
    meet = threading.Barrier(3)

    def rotate(one: NodeProcess) -> None:
        with opened(one, spec) as namespace:
            meet.wait(20)
            for _ in range(3):
                try:
                    namespace.rotate(timeout=20)
                except Exception:  # another one's is under way here
                    time.sleep(0.05)

    threads = [threading.Thread(target=rotate, args=(one,)) for one in three]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for keys in chains:
        for one in three:
            with opened(one, spec) as namespace:
                assert get(namespace, keys) == 0
    wait_for(lambda: len({generation(one, spec) for one in three}) == 1, "one generation")
    keys = [fill(one, spec) for one in three]  # may be void once more, while the last news is on its way
    time.sleep(0.5)
    keys = [fill(one, spec) for one in three]
    known_to_all(three, spec, *keys)


def test_a_restart_keeps_the_generation_and_which_rotation_it_was(tmp_path: Path, spec: NamespaceSpec) -> None:
    with cell(tmp_path, 2, capacity="32MiB") as (first, second):
        fill(first, spec)
        with opened(first, spec) as namespace:
            assert namespace.rotate(timeout=20) == 1
        keys = fill(second, spec)
        known_to_all([first, second], spec, keys)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for one in (first, second):
                one.kill(number)
            for one in (first, second):
                one.start()
            await_live(first, second)
            await_live(second, first)
            known_to_all([first, second], spec, keys)  # had either another rotation, it would be void
            assert [generation(one, spec) for one in (first, second)] == [1, 1]
            with opened(first, spec) as namespace:
                assert get(namespace, keys) == 8
