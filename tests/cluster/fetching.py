"""Chains whose bytes tell whose they are, put at one node and read at another."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvstore import Client, NamespaceSpec
from kvstore.client.namespace import Namespace
from kvstore.core.keys import Keys, chain_keys
from kvstore.transport.batch import GetCall
from kvstore.transport.plan import make_plan
from kvstore.transport.tcp import TcpTransport
from kvstore.transport.wire import Address
from tests.cluster.cells import states
from tests.integration.nodes import NodeProcess, wait_for

SIZE = 64 << 10
SPEC = NamespaceSpec(model="fetched", block_tokens=4, block_bytes=SIZE)
CHAIN = 160  # blocks: 10 MiB, in more than one batch
LONG = 30.0
SLACK = 1.5  # seconds that this machine may be late
_numbers = itertools.count(1)


def fresh_keys(blocks: int = CHAIN, spec: NamespaceSpec = SPEC) -> Keys:
    """Of a chain that no test has used."""
    start = next(_numbers) * 1_000_000
    return Keys(chain_keys(spec.root, range(start, start + 4 * blocks), 4))


def content(key: bytes, size: int = SIZE) -> np.ndarray:  # type: ignore[type-arg]
    return np.resize(np.frombuffer(key, np.uint8), size)


def put(process: NodeProcess, keys: Keys) -> None:
    with opened(process) as namespace:
        done = namespace.put(keys, [content(key) for key in keys])
        assert done.stored == len(keys)


@contextmanager
def opened(process: NodeProcess, spec: NamespaceSpec = SPEC, tcp: bool = False) -> Iterator[Namespace]:
    with Client(f"kv://{process.data}" if tcp else process.target, timeout=LONG) as client:
        yield client.namespace(spec)


def get(namespace: Namespace, keys: Keys, timeout: float = LONG, first: int = 0) -> int:
    """How many blocks came; each is what was put, and the call ends in time."""
    into = [np.zeros(SIZE, np.uint8) for _ in keys[first:]]
    began = time.monotonic()
    found = namespace.get(keys, into, first=first, timeout=timeout)
    assert time.monotonic() - began < timeout + SLACK
    for key, block in zip(keys[first:found], into, strict=False):
        assert block.tobytes() == content(key).tobytes()
    return found


def await_known(namespace: Namespace, keys: Keys) -> None:
    wait_for(lambda: namespace.match(keys) == len(keys), "the chain to be known")


def await_live(asked: NodeProcess, other: NodeProcess) -> None:
    wait_for(lambda: states(asked, [other]) == {"live"}, f"{other.control} to be live")


def own_blocks(process: NodeProcess, keys: Keys) -> int:
    """How much of a chain a node itself has: what it answers other nodes."""
    with peer_session(process) as transport:
        handle = transport.open_namespace(SPEC.canonical(), SPEC.root, False, time.monotonic() + LONG).handle
        call = GetCall(handle, keys.raw, 0, make_plan(SPEC.parts, (), None))
        return transport.match(call, time.monotonic() + LONG).blocks


@contextmanager
def peer_session(process: NodeProcess) -> Iterator[TcpTransport]:
    host, _, port = process.data.rpartition(":")
    transport = TcpTransport(Address(host=host, port=int(port)), time.monotonic() + LONG, node_id=b"another node of it")
    try:
        yield transport
    finally:
        transport.close()
