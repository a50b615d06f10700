"""A store, nodes and a directory in memory, for the fetcher: what they do is decided by the test."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvstore.cluster import holder_links
from kvstore.cluster.fetch import Fetcher
from kvstore.cluster.fetch_target import BUSY, PRESENT, STORED, Slots
from kvstore.cluster.member import Member
from kvstore.cluster.prefix_index import Holders, PrefixIndex
from kvstore.core.errors import InvalidArgument, KVStoreError, Unavailable
from kvstore.core.keys import KEY_BYTES, KeyArray, chain_keys, key_array
from kvstore.core.namespace import NamespaceSpec
from kvstore.transport.batch import GetCall, GetResult

SPEC = NamespaceSpec("fetched", 4, block_bytes=4096)
ROOT, HANDLE, OWN = SPEC.root, 7, bytes(16)
PARENT_MISSING = 5


def chain(blocks: int, seed: int = 0) -> KeyArray:
    return key_array(chain_keys(ROOT, range(seed * 100_000, seed * 100_000 + 4 * blocks), 4))


def content(key: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(key * (4096 // KEY_BYTES), np.uint8)


def checksum(key: bytes) -> int:
    return int.from_bytes(key[:8], "little")


class FakeStore:
    """A BlockTarget: blocks by key. ``log``: what was done to it."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, tuple[bytes, int]] = {}
        self.writing: dict[int, list[tuple[bytes, Any]]] = {}
        self.log: list[tuple[str, int]] = []
        self.at = (0, 0)  # the generation of its namespace
        self.room = 1_000_000  # blocks that may be written at a time
        self.fails: KVStoreError | None = None
        self._lock = threading.Lock()

    def spec(self, handle: int) -> NamespaceSpec:
        assert handle == HANDLE
        return SPEC

    def generation(self, root: bytes) -> tuple[int, int]:
        return self.at

    def reserve(
        self, handle: int, keys: KeyArray, parent: bytes, first: int, parts: tuple[int, ...], owed: bool
    ) -> Slots:
        with self._lock:
            if self.fails is not None:
                raise self.fails
            known = self.blocks.keys() | {key for taken in self.writing.values() for key, _ in taken}
            if first and parent not in known:
                return Slots(0, bytes([PARENT_MISSING]) * len(keys), [])
            names = [key.tobytes() for key in keys]
            wanted = [(name, np.zeros(4096, np.uint8)) for name in names if name not in self.blocks]
            wanted = wanted[: self.room - sum(map(len, self.writing.values()))]
            number = len(self.log) + 1
            self.log.append(("reserve", first))
            if wanted:
                self.writing[number] = wanted
            mine = {name for name, _ in wanted}
            outcomes = bytes(PRESENT if name in self.blocks else STORED if name in mine else BUSY for name in names)
            return Slots(number if wanted else 0, outcomes, [view for _, view in wanted])

    def commit(self, slots: int, sums: list[int]) -> bytes:
        with self._lock:
            taken = self.writing.pop(slots)
            assert len(sums) == len(taken)
            self.blocks.update(
                (key, (view.tobytes(), checked)) for (key, view), checked in zip(taken, sums, strict=True)
            )
            self.log.append(("commit", slots))
            return bytes([STORED]) * len(taken)

    def evict(self, keys: list[bytes]) -> None:
        with self._lock:
            for key in keys:
                self.blocks.pop(key, None)

    def abort(self, slots: int) -> None:
        with self._lock:
            if self.writing.pop(slots, None) is None:
                raise InvalidArgument(f"no reservation {slots}")
            self.log.append(("abort", slots))


class FakeNode:
    """A holder. ``asked``: (first, blocks) of each request; ``before``: is told the first block
    asked for before each answer, and may raise."""

    def __init__(self, number: int) -> None:
        self.node_id = bytes([number]) * 16
        self.answers_as = self.node_id
        self.member = Member(self.node_id, self.node_id, f"10.0.0.{number}:7000", f"10.0.0.{number}:7001")
        self.blocks: set[bytes] = set()
        self.at = (0, 0)  # generation
        self.version = 2  # of the protocol
        self.damaged: set[bytes] = set()
        self.asked: list[tuple[int, int]] = []
        self.sessions: list[FakeTransport] = []
        self.before: Callable[[int], None] = lambda first: None
        self.most = 1_000_000  # blocks in one answer


class FakeTransport:
    """A session with a FakeNode."""

    def __init__(self, node: FakeNode) -> None:
        self.fake = node
        self.handles: dict[bytes, int] = {}
        self.lost = self.over = False
        self.hello = SimpleNamespace(version=node.version)
        self.node = SimpleNamespace(node_id=node.answers_as)
        node.sessions.append(self)

    def open_namespace(self, canonical: bytes, root: bytes, strict: bool, deadline: float) -> Any:
        assert canonical == SPEC.canonical()
        self.handles[root] = 1
        return SimpleNamespace(handle=1)

    def pull(self, call: GetCall, into: list[Any], deadline: float) -> tuple[GetResult, list[int]]:
        if self.over:
            raise Unavailable("the node closed the connection")
        keys = [call.keys[at : at + KEY_BYTES] for at in range(0, len(call.keys), KEY_BYTES)]
        self.fake.asked.append((call.first, len(into)))
        self.fake.before(call.first)
        have = next((at for at, key in enumerate(keys) if key not in self.fake.blocks), len(keys))
        if call.generation != self.fake.at:  # a holder looks after it has acquired
            have = 0
        end = max(call.first, min(have, call.first + min(len(into), self.fake.most)))
        for key, view in zip(keys[call.first : end], into, strict=False):
            np.copyto(view, content(key))
        bad = next((at for at in range(call.first, end) if keys[at] in self.fake.damaged), -1)
        sums = [checksum(key) for key in keys[call.first : end]]
        if bad >= 0:
            return GetResult(bad, False, "checksum", bad), sums
        return GetResult(end, end < min(have, len(keys)), ""), sums

    def retire(self) -> None:
        self.lost = True

    close = retire


class Cell:
    """The directory of the test, and a fetcher that asks it."""

    def __init__(self, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = FakeStore()
        self.nodes = [FakeNode(number + 1) for number in range(nodes)]
        self.index = PrefixIndex(100_000)
        self.gone: set[int] = set()
        self.dialled: Counter[str] = Counter()
        self._numbers = [self.index.add_node(node.node_id) for node in self.nodes]
        monkeypatch.setattr(holder_links, "TcpTransport", self._dial)
        self.fetcher = Fetcher(self.store, self, OWN)

    def _dial(self, address: Any, deadline: float, **options: Any) -> FakeTransport:
        assert options["node_id"] == OWN
        self.dialled[address.host] += 1
        return FakeTransport(
            next(node for node in self.nodes if node.member.data_address.startswith(address.host + ":"))
        )

    def lookup(self, root: bytes, keys: KeyArray) -> Holders:
        return self.index.lookup(root, keys)

    def holder(self, number: int) -> Member | None:
        return None if number in self.gone else self.nodes[self._numbers.index(number)].member

    def generation(self, number: int, root: bytes) -> tuple[int, int]:
        return self.nodes[self._numbers.index(number)].at

    def hold(self, node: int, keys: KeyArray, told: int | None = None, tiers: int = 1) -> None:
        """``told``: how many of the blocks the index knows of; None: all."""
        self.nodes[node].blocks |= {key.tobytes() for key in keys}
        self.index.stored(self._numbers[node], ROOT, 0, keys[:told], tiers)


@contextmanager
def cell(nodes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    found = Cell(nodes, monkeypatch)
    try:
        yield found
    finally:
        for node in found.nodes:
            node.before = lambda first: None
        found.fetcher.stop()


# --- what tests do with a cell ------------------------------------------------------------------------------

LONG = 30.0


def get(found: Cell, keys: KeyArray, have: int = 0, enough: int | None = None, seconds: float = LONG) -> int:
    until = time.monotonic() + seconds
    return found.fetcher.fetch(HANDLE, ROOT, keys, (), have, until, lambda: True, enough or len(keys))


def start(found: Cell, keys: KeyArray, far: bool = True, alive: Callable[[], bool] = lambda: True) -> int:
    return found.fetcher.start(HANDLE, ROOT, keys, (), 0, time.monotonic() + LONG, alive, far)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def stored(found: Cell, keys: KeyArray) -> bool:
    """All of a chain is in the store, with the bytes and checksums of the holder, and nothing is left in between."""
    names = [key.tobytes() for key in keys]
    right = all(found.store.blocks.get(name) == (content(name).tobytes(), checksum(name)) for name in names)
    return right and not found.store.writing and not found.fetcher.under_way
