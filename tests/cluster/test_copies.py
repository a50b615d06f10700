"""As many nodes hold each block as are to: at once where that is asked for, soon else, and again after a loss."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import errors
from kvstore.core.keys import Keys
from tests.cluster.cells import await_state, cell
from tests.cluster.fetching import CHAIN, LONG, SIZE, SLACK, content, fresh_keys, get, opened, own_blocks
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
