"""A cell of one keeper whose other nodes are fakes: how each takes copies is told beforehand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from kvstore.cluster.cell import PeerView
from kvstore.cluster.member import Member
from kvstore.cluster.membership import State
from kvstore.cluster.prefix_index import PrefixIndex
from kvstore.cluster.stock import Chain
from kvstore.cluster.taken import Taken
from kvstore.core.errors import DeadlineExceeded, NoSpace, Unavailable, Unsupported
from kvstore.core.keys import KeyArray

ROOT, HANDLE, BLOCK = b"r" * 16, 1, 1000
CAPACITY = 10_000 * BLOCK


def keys_of(number: int, blocks: int = 10) -> KeyArray:
    """Of chain ``number``: no two share a block."""
    found = np.empty((blocks, 2), np.uint64)
    found[:, 0], found[:, 1] = number, np.arange(blocks)
    return found


def member(number: int, host: str = "") -> Member:
    address = f"127.0.0.1:{1000 + number}"
    return Member(bytes([number]) * 16, b"b" * 16, address, address, host=host or f"h{number}", capacity_bytes=CAPACITY)


@dataclass
class Node:
    """``takes``: blocks of a chain that it ever has room for. ``does``: instead of taking them."""

    member: Member
    number: int
    state: State = State.LIVE
    takes: int = 1 << 30
    does: Callable[[float], None] = lambda deadline: None
    free: int = CAPACITY
    age: float = 0.0
    has: dict[bytes, int] = field(default_factory=dict)  # first key of a chain: leading blocks


@dataclass(frozen=True)
class Leaf:
    handle: int
    root: bytes
    key: bytes
    blocks: int


class FakeCell:
    """The cell, the copier and the store of node 0, in one."""

    def __init__(self, others: int) -> None:
        self.member = member(0)
        self.index = PrefixIndex(10_000)
        self.nodes = []
        for number in range(1, others + 1):
            self.nodes.append(Node(member(number), self.index.add_node(member(number).node_id)))
        self.asked: list[tuple[int, int, bool]] = []  # node, blocks, owed
        self.chains: dict[bytes, Chain] = {}
        self.unused: dict[bytes, float] = {}
        self.dropped: list[bytes] = []
        self.lock = threading.Lock()
        self.taken = Taken()
        self.full = False

    # what the cell does

    def peers(self) -> tuple[PeerView, ...]:
        return tuple(PeerView(one.member, one.state, 0, one.free, 0.0, "", one.number, one.age) for one in self.nodes)

    def lookup(self, root: bytes, keys: KeyArray):  # type: ignore[no-untyped-def]
        return self.index.lookup(root, keys)

    # what the copier does

    def copy(self, target: Member, canonical: bytes, root: bytes, keys: KeyArray, owed: bool, deadline: float):  # type: ignore[no-untyped-def]
        node = next(one for one in self.nodes if one.member == target)
        with self.lock:
            self.asked.append((node.number, len(keys), owed))
        node.does(deadline)
        before = node.has.get(keys[0].tobytes(), 0)
        now = max(before, min(len(keys), node.takes))
        node.has[keys[0].tobytes()] = now
        self.tell(node, keys[:now])
        return SimpleNamespace(blocks=min(now, len(keys)), bytes=max(0, now - before) * BLOCK)

    def tell(self, node: Node, keys: KeyArray) -> None:
        """Its events say that it has them."""
        self.index.stored(node.number, ROOT, 0, keys, 1)

    # what the store does

    def put(self, number: int, blocks: int = 10, unused: float = 0.0) -> Chain:
        chain = Chain(HANDLE, ROOT, b"canonical", keys_of(number, blocks), BLOCK)
        self.chains[chain.key(blocks - 1)] = chain
        self.unused[chain.key(blocks - 1)] = unused
        return chain

    def chain(self, handle: int, key: bytes) -> Chain | None:
        return self.chains.get(key)

    def block_bytes(self, handle: int) -> int:
        return BLOCK

    def leaves(self) -> Iterator[Leaf]:
        for key in sorted(self.chains, key=lambda key: self.unused[key]):
            yield Leaf(HANDLE, ROOT, key, self.chains[key].blocks)

    def idle(self, handle: int, key: bytes) -> float:
        return self.unused[key]

    def pressed(self) -> bool:
        return self.full

    def drop(self, chain: Chain) -> int:
        self.dropped.append(chain.key(chain.blocks - 1))
        del self.chains[chain.key(chain.blocks - 1)]
        return chain.blocks


def dead(deadline: float) -> None:
    raise Unavailable("nobody answers")


def hung(deadline: float) -> None:
    time.sleep(max(0.0, deadline - time.monotonic()))
    raise DeadlineExceeded("no answer in time")


def full(deadline: float) -> None:
    raise NoSpace("no room")


def refusing(deadline: float) -> None:
    raise Unsupported("not this one")
