"""A batch: consecutive blocks of one chain that are fetched together, and who waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvstore.cluster.member import Member
from kvstore.cluster.prefix_index import Span
from kvstore.core.keys import KEY_BYTES, KeyArray
from kvstore.core.namespace import NamespaceSpec
from kvstore.transport.batch import Generation
from kvstore.transport.plan import Plan


@dataclass(frozen=True, slots=True)
class Chain:
    """What a reader wants: a chain from block 0, named by its keys, in a namespace of this node (``handle``).
    ``spans``: who holds it. ``parts``: none for all; ``plan``: of these parts of a block. ``source``: the one node to
    ask, whatever else is known; ``owed``: the copy is no mere convenience."""

    handle: int
    root: bytes
    keys: KeyArray
    raw: bytes
    parts: tuple[int, ...]
    spans: tuple[Span, ...]
    spec: NamespaceSpec
    plan: Plan
    source: Member | None = None
    owed: bool = False

    def key(self, block: int) -> bytes:
        return self.raw[block * KEY_BYTES : (block + 1) * KEY_BYTES]

    def name(self, block: int) -> tuple[bytes, tuple[int, ...], bytes]:
        """Of these parts of a block, among all namespaces."""
        return self.root, self.parts, self.key(block)


@dataclass(frozen=True, slots=True)
class Reader:
    """Who waits, and until when (time.monotonic). ``alive``: whether it is still there."""

    alive: Callable[[], bool]
    deadline: float


@dataclass(slots=True, eq=False)
class Batch:
    """Blocks ``first`` to ``end``. ``previous``: the batch before it in the chain, if that is under way too.
    ``reached``, once ``done``: up to which block the chain is here, ``first`` at least."""

    chain: Chain
    first: int
    end: int
    number: int
    previous: Batch | None
    readers: list[Reader] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    reached: int = 0
    generation: Generation | None = None  # of the namespace since it has slots

    def until(self) -> float:
        """The latest deadline of those who still want it; 0: nobody does."""
        return max((one.deadline for one in list(self.readers) if one.alive()), default=0.0)

    def orphaned(self) -> bool:
        """The blocks before it did not come, so nobody could find these."""
        before = self.previous
        return before is not None and before.done.is_set() and before.reached < self.first


@dataclass(frozen=True, slots=True)
class Coming:
    """Blocks up to ``end`` of a reader's chain, in a batch that may go on, or belong to another reader."""

    batch: Batch
    end: int


def arrived(coming: list[Coming], have: int, deadline: float) -> int:
    """Waits for the first of these batches, and answers up to which block the chain is here then."""
    for nth, one in enumerate(coming):
        if not one.batch.done.wait(0.0 if nth else max(0.0, deadline - time.monotonic())):
            break
        have = max(have, min(one.batch.reached, one.end))
        if have < one.end:
            break
    return have
