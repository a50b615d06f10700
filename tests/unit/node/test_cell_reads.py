"""When a node asks other nodes for its readers, and what it answers meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvstore.core.errors import Unavailable, Unsupported
from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.node.cell import CellReads
from kvstore.node.layout import layout_of
from kvstore.tiers.values import NO_GENERATIONS, NO_OFFSETS, Acquired, MissReason, Prefetched
from kvstore.v1 import data_pb2 as pb

SPEC = NamespaceSpec("cell", 4, parts=(PartSpec("full", 4096), PartSpec("window", 4096, "window", "window")))
HANDLE, LENGTH = 3, 20
KEYS = np.arange(2 * LENGTH, dtype=np.uint64).reshape(-1, 2)


def told(found: Acquired) -> dict[str, Any]:
    """An answer by field; its arrays as lists, which compare whole."""
    return {name: getattr(value, "tolist", lambda value=value: value)() for name, value in asdict(found).items()}


class Other:
    """The store, and the other nodes. ``here``: leading blocks in the store; ``cell``: that other nodes have."""

    def __init__(self, here: int, cell: int) -> None:
        self.here, self.cell = here, cell
        self.calls: list[tuple[Any, ...]] = []
        self.fails: Exception | None = None
        self.brings = cell
        self.reads = CellReads(self, self, 2.0)  # type: ignore[arg-type]
        self.session = SimpleNamespace(stored="stored", peer=False, ended=False)

    # what the store does

    def spec(self, handle: int) -> NamespaceSpec:
        assert handle == HANDLE
        return SPEC

    def acquire(self, first: int) -> Acquired:
        self.calls.append(("acquire",))
        return self.found(first)

    def found(self, first: int = 0, miss: MissReason = MissReason.ABSENT) -> Acquired:
        lease = 1 if first < self.here else 0
        return Acquired(
            lease, max(min(first, self.here), self.here), self.here, NO_OFFSETS, NO_GENERATIONS, NO_OFFSETS, miss
        )

    def release(self, session: str, leases: list[int]) -> None:
        self.calls.append(("release", *leases))

    def match(self, handle: int, keys: Any, parts: Any) -> Any:
        return SimpleNamespace(blocks=self.here)

    # what the cell does

    def reach(self, root: bytes, keys: Any, have: int) -> int:
        assert root == SPEC.root
        if self.fails:
            raise self.fails
        return max(have, self.cell)

    def start(self, *asked: Any) -> int:
        *_, have, deadline, alive, far = asked
        self.calls.append(("start", have, far))
        self.until, self.alive = deadline, alive
        return max(have, self.brings)

    def fetch(self, *asked: Any) -> int:
        *_, have, deadline, alive, enough = asked
        self.calls.append(("fetch", have, enough))
        self.until, self.alive = deadline, alive
        self.here = max(have, self.brings)
        return self.here

    # what a reader does

    def get(self, first: int = 0, seconds: float | None = 60.0, whole: bool = False, parts: tuple[int, ...] = (0,),
            miss: MissReason = MissReason.ABSENT) -> Acquired:  # fmt: skip
        request = pb.GetRequest(namespace=HANDLE, first_block=first, whole=whole)
        deadline = time.monotonic() + seconds if seconds is not None else None
        layout = layout_of(SPEC, parts)
        ask: Any = (first,)
        session: Any = self.session
        return self.reads.further(session, request, KEYS, layout, deadline, self.found(first, miss), ask)


def test_what_is_here_is_answered_while_the_rest_comes() -> None:
    other = Other(here=5, cell=12)
    found = other.get()
    assert (found.lease, found.blocks, found.prefix_blocks, found.miss) == (1, 5, 12, MissReason.NONE)
    assert other.calls == [("start", 5, False)]


def test_a_reader_that_has_what_is_here_waits_for_the_next_blocks() -> None:
    other = Other(here=5, cell=12)
    other.brings = 8
    found = other.get(first=5)
    assert (found.blocks, found.prefix_blocks, found.miss) == (8, 12, MissReason.NONE)
    assert other.calls == [("fetch", 5, 6), ("acquire",)]
    other = Other(here=0, cell=12)
    assert other.get(first=10).blocks == 12
    assert other.calls[0] == ("fetch", 0, 11)  # the blocks before do not help this reader


def test_a_reader_that_wants_all_waits_for_all() -> None:
    other = Other(here=5, cell=12)
    found = other.get(whole=True)
    assert (found.blocks, found.prefix_blocks) == (12, 12)
    assert other.calls == [("fetch", 5, 12), ("release", 1), ("acquire",)]  # the first five cannot go meanwhile


def test_what_does_not_come_leaves_the_answer_as_it_was() -> None:
    other = Other(here=5, cell=12)
    other.brings = 5
    for call in (lambda: other.get(), lambda: other.get(first=5), lambda: other.get(whole=True)):
        assert told(call()) == told(replace(other.found(), lease=call().lease))
    assert not [call for call in other.calls if call[0] in ("release", "acquire")]


def test_without_time_a_reader_is_only_told() -> None:
    other = Other(here=5, cell=12)
    found = other.get(seconds=None)
    assert (found.blocks, found.prefix_blocks) == (5, 12)
    assert other.calls == []


def test_the_wait_ends_with_the_readers_deadline_or_the_nodes_bound() -> None:
    other = Other(here=0, cell=12)
    other.get(seconds=0.5)
    assert other.until <= time.monotonic() + 0.5
    other = Other(here=0, cell=12)
    other.get(seconds=60.0)
    assert other.until <= time.monotonic() + 2.0
    assert other.alive()
    other.session.ended = True
    assert not other.alive()


@pytest.mark.parametrize("error", [Unavailable("no"), ZeroDivisionError()])
def test_trouble_with_other_nodes_is_none_for_readers(error: Exception) -> None:
    other = Other(here=5, cell=12)
    other.fails = error
    assert told(other.get()) == told(other.found())
    other.fails = None

    def fail(*asked: Any) -> int:
        raise error

    other.start = other.fetch = fail  # type: ignore[method-assign]
    assert told(other.get()) == told(other.found())
    assert told(other.get(first=5)) == told(other.found(5))


def test_who_is_never_given_what_others_have() -> None:
    quiet: list[Callable[[Other], Acquired]] = [
        lambda other: other.get(parts=(0, 1)),  # holes of window parts are not known of there
        lambda other: other.get(miss=MissReason.BUSY),  # it may lease no more
        lambda other: other.get(miss=MissReason.LOADING),  # first what is on NVMe
    ]
    for ask in quiet:
        other = Other(here=5, cell=12)
        assert ask(other).prefix_blocks == 5
        assert other.calls == []
    other = Other(here=5, cell=12)
    other.session.peer = True  # no request goes round in circles
    assert other.get().prefix_blocks == 5
    session: Any = other.session
    assert other.reads.match(session, HANDLE, KEYS, layout_of(SPEC, (0,)), 5) == 0
    assert other.calls == []


def test_a_match_counts_what_others_have() -> None:
    other = Other(here=5, cell=12)
    session: Any = other.session
    assert other.reads.match(session, HANDLE, KEYS, layout_of(SPEC, (0,)), 5) == 7
    assert other.reads.match(session, HANDLE, KEYS, layout_of(SPEC, ()), 5) == 0
    assert other.reads.match(session, HANDLE, KEYS, layout_of(SPEC, (0,)), 15) == 0


def prefetch(other: Other, start: Callable[[], Prefetched], tier: int = 0) -> Prefetched:
    request, session = pb.PrefetchKeysRequest(namespace=HANDLE), other.session
    request.tier = tier  # type: ignore[assignment]
    layout, one = layout_of(SPEC, (0,)), session
    return other.reads.prefetch(one, request, KEYS, layout, None, start)  # type: ignore[arg-type]


def test_a_prefetch_goes_on_where_nvme_ends() -> None:
    other = Other(here=5, cell=12)
    assert prefetch(other, lambda: Prefetched(3, 5, 12)) == Prefetched(3 + 4, 5, 8)
    assert other.calls == [("start", 8, True)]
    assert prefetch(Other(here=5, cell=0), lambda: Prefetched(3, 5, 12)) == Prefetched(3, 5, 12)


def test_a_prefetch_without_nvme_brings_what_others_have() -> None:
    def unsupported() -> Prefetched:
        raise Unsupported("blocks are brought from NVMe to DRAM")

    assert prefetch(Other(here=5, cell=12), unsupported) == Prefetched(7, 5, 8)
    assert prefetch(Other(here=5, cell=0), unsupported) == Prefetched(0, 5, 15)
    with pytest.raises(Unsupported):
        prefetch(Other(here=5, cell=12), unsupported, tier=3)
