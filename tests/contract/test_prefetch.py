"""Prefetch: blocks of a slower tier are in memory before they are asked for, for as long as somebody wants them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvstore import Client, Namespace, PrefetchResult, aio
from kvstore.core.errors import InvalidArgument, Unsupported
from tests.contract.conftest import OFFERED, empty, payload, spec, tokens
from tests.contract.running import ROOT, NodeProcess, wait_until

CHAIN = 20  # blocks of 200,000 bytes; the node's memory holds about 150
OTHERS = 12  # further chains, which push the first one out


@pytest.fixture(scope="module")
def tiered_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with little memory and an NVMe tier, shared by the tests of this module."""
    home = tmp_path_factory.mktemp("tiered")
    settings = {"nvme_dir": str(home / "nvme"), "nvme_capacity": "1GiB", "transports": OFFERED}
    node = NodeProcess(home, capacity="32MiB", **settings)
    try:
        yield node.start()
    finally:
        node.remove()


def demoted(client: Client) -> tuple[Namespace, list[bytes]]:
    """A namespace whose chain 0 is on NVMe, at least in part."""
    namespace = client.namespace(spec())
    data = payload(namespace, CHAIN)
    assert namespace.put(namespace.keys(tokens(CHAIN)), data).complete
    for number in range(1, OTHERS):
        assert namespace.put(namespace.keys(tokens(CHAIN, number)), payload(namespace, CHAIN, number)).complete
    return namespace, data


def settled(namespace: Namespace, keys: Any) -> PrefetchResult:
    """The result once nothing of the chain is on its way any more."""
    found = PrefetchResult()

    def done() -> bool:
        nonlocal found
        found = namespace.prefetch(keys)
        return not found.started

    assert wait_until(done, 60.0)
    return found


def test_prefetched_blocks_come_to_memory_and_are_what_was_put(
    tiered_node: NodeProcess, transport: str, connect: Callable[..., Client]
) -> None:
    namespace, data = demoted(connect(tiered_node, transport))
    keys, into = namespace.keys(tokens(CHAIN)), empty(namespace, CHAIN)
    first = namespace.prefetch(keys)
    assert first.started > 0
    assert first.started + first.present == CHAIN
    assert settled(namespace, keys) == PrefetchResult(present=CHAIN)
    assert namespace.get(keys, into) == CHAIN
    assert into == data
    longer = namespace.keys(tokens(CHAIN + 5))
    assert namespace.prefetch(longer).absent == 5
    assert namespace.prefetch([]) == PrefetchResult()


def test_prefetch_is_the_same_when_awaited(tiered_node: NodeProcess, connect: Callable[..., Client]) -> None:
    namespace, _ = demoted(connect(tiered_node, "tcp"))
    keys = namespace.keys(tokens(CHAIN))

    async def main() -> PrefetchResult:
        async with aio.Client(tiered_node.target("shm"), timeout=30.0) as client:
            awaited = await client.namespace(namespace.spec)
            return await awaited.prefetch(keys, "dram", 10.0)

    found = asyncio.run(main())
    assert found.started + found.present == CHAIN


def test_what_a_client_asked_for_is_dropped_when_it_goes(
    tiered_node: NodeProcess, transport: str, connect: Callable[..., Client]
) -> None:
    """Whatever had not started then never does; what had is complete, and the node serves on."""
    namespace, data = demoted(connect(tiered_node, transport))
    keys, into = namespace.keys(tokens(CHAIN)), empty(namespace, CHAIN)
    going = connect(tiered_node, transport)
    assert going.namespace(namespace.spec).prefetch(keys).started > 0
    going.close()
    assert namespace.get(keys, into) == CHAIN
    assert into == data


def test_wrong_arguments_and_tiers_that_cannot_be_filled(
    tiered_node: NodeProcess, shared_node: NodeProcess, transport: str, connect: Callable[..., Client]
) -> None:
    namespace = connect(tiered_node, transport).namespace(spec())
    keys = namespace.keys(tokens(2))
    with pytest.raises(InvalidArgument, match="tier"):
        namespace.prefetch(keys, "tape")
    with pytest.raises(InvalidArgument, match="deadline"):
        namespace.prefetch(keys, deadline=0)
    with pytest.raises(Unsupported, match="hbm"):
        namespace.prefetch(keys, "hbm")
    with pytest.raises(Unsupported, match="both"):
        connect(shared_node, transport).namespace(spec()).prefetch(keys)
    assert namespace.prefetch(keys) == PrefetchResult(absent=2)


def test_a_node_that_is_away_is_a_miss(own_node: Callable[..., NodeProcess], connect: Callable[..., Client]) -> None:
    node = own_node()
    namespace = connect(node, "shm", timeout=2.0).namespace(spec())
    node.kill()
    assert namespace.prefetch(namespace.keys(tokens(3))) == PrefetchResult(absent=3)


def test_the_command_line_prefetches(tiered_node: NodeProcess, connect: Callable[..., Client]) -> None:
    client = connect(tiered_node, "shm")
    namespace, _ = demoted(client)
    keys = namespace.keys(tokens(CHAIN))
    command = [
        sys.executable, "-m", "kvstore.cli", "prefetch", "--json", "--keys", ",".join(key.hex() for key in keys),
        "--namespace", namespace.root.hex(), "--target", tiered_node.target("shm"), "--timeout", "60",
        "--deadline", "30",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["started"] + found["present"] == found["asked"] == CHAIN


def test_a_prefetch_past_its_deadline_starts_nothing_more(
    tiered_node: NodeProcess, connect: Callable[..., Client]
) -> None:
    namespace, _ = demoted(connect(tiered_node, "shm"))
    keys = namespace.keys(tokens(CHAIN))
    namespace.prefetch(keys, deadline=0.001)
    time.sleep(0.05)
    assert settled(namespace, keys).present == CHAIN
