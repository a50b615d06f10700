"""Clients that are on no node's machine put where placement says: chains spread, and each is whole on its node."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from kvstore.client.namespace import Namespace
from kvstore.core.keys import Keys, chain_keys
from tests.cluster.cells import cell
from tests.cluster.fetching import (
    SIZE,
    SLACK,
    await_known,
    await_live,
    content,
    fresh_keys,
    get,
    opened,
    own_blocks,
    put,
)
from tests.cluster.test_routing import far, held_by
from tests.integration.nodes import NodeProcess


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
