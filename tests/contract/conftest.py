from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore import Client, Namespace, NamespaceSpec
from tests.contract.running import NodeProcess

_numbers = itertools.count()
# Python versions that are only tried in short have no fabric libraries; everywhere else one that is missing fails.
WITHOUT_FABRIC = os.environ.get("KVSTORE_TEST_FABRIC") == "off"
TRANSPORTS = ("shm", "tcp", "unix") if WITHOUT_FABRIC else ("shm", "tcp", "unix", "nixl", "ucx")

OFFERED = "shm,tcp" if WITHOUT_FABRIC else "shm,nixl,ucx,tcp"


def kind_of(transport: str) -> Any:
    """What a Client is told: bytes copied over the unix socket are its transport tcp."""
    return "tcp" if transport == "unix" else transport


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that the tests of a module share; each uses namespaces of its own."""
    node = NodeProcess(tmp_path_factory.mktemp("node"), capacity="512MiB", transports=OFFERED)
    try:
        yield node.start()
    finally:
        node.remove()


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Starts nodes with settings of the test's choice."""
    started: list[NodeProcess] = []

    def start(**settings: str) -> NodeProcess:
        home = tmp_path / f"node{next(_numbers)}"
        home.mkdir()
        started.append(NodeProcess(home, **{"transports": OFFERED, **settings}))
        return started[-1].start()

    yield start
    for node in started:
        node.remove()


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """How bytes move: shared memory, TCP, copied over the unix socket, or by a fabric library."""
    return str(request.param)


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Makes clients and closes them after the test."""
    clients: list[Client] = []

    def make(node: NodeProcess, transport: str, **options: Any) -> Client:
        clients.append(Client(node.target(transport), transport=kind_of(transport), **{"timeout": 30.0, **options}))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(shared_node: NodeProcess, transport: str, connect: Callable[..., Client]) -> Client:
    return connect(shared_node, transport)


def spec(**fields: Any) -> NamespaceSpec:
    """A namespace that no other test uses."""
    sized = {} if "parts" in fields else {"block_bytes": 200_000}
    return NamespaceSpec(**{"model": f"test-{next(_numbers)}", "block_tokens": 4, **sized, **fields})


@pytest.fixture
def namespace(client: Client) -> Namespace:
    return client.namespace(spec())


def tokens(blocks: int, seed: int = 0, block_tokens: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50_000, blocks * block_tokens, dtype=np.uint32)


def payload(namespace: Namespace, blocks: int, seed: int = 0) -> list[bytes]:
    """Random bytes, one buffer a (block, part)."""
    random = np.random.default_rng(seed)
    return [random.bytes(part.bytes) for _ in range(blocks) for part in namespace.spec.parts]


def empty(namespace: Namespace, blocks: int) -> list[bytearray]:
    return [bytearray(part.bytes) for _ in range(blocks) for part in namespace.spec.parts]
