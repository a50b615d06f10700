"""Blocks that this node lacks and others of the cell have are fetched for its readers, and kept as extra copies.

A chain comes in batches, several at a time and from several holders; they are reserved and committed in chain order, so
a reader that waits for the first one can be served while the others come. Who wants a block that is on its way joins.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Protocol

from kvstore.cluster.fetch_batch import Batch, Chain, Coming, Reader, arrived
from kvstore.cluster.fetch_carrier import Carrier
from kvstore.cluster.fetch_plan import reach
from kvstore.cluster.fetch_target import BlockTarget, Slots
from kvstore.cluster.holder_links import HolderLinks
from kvstore.cluster.holder_sets import nodes_of
from kvstore.cluster.member import Member
from kvstore.cluster.prefix_index import Holders, Span
from kvstore.core.keys import KeyArray
from kvstore.transport.batch import Generation
from kvstore.transport.plan import make_plan

WORKERS = 4
BATCH_BYTES = 8 << 20
BATCH_BLOCKS = 1024
QUEUE = 256  # batches that wait for a worker; past it nothing more is begun
AHEAD = 16  # batches that one call of a reader begins
_FRESH = 0.05  # seconds that what the directory said is used again
_CHAINS = 64  # chains of which it is kept
_STOPPING = 10.0  # seconds for a worker to end; one that makes room in the store may take some
_log = logging.getLogger(__name__)


class Directory(Protocol):
    """Who holds what. Safe to use from several threads."""

    def lookup(self, root: bytes, keys: KeyArray) -> Holders:
        """Of a chain from block 0 on."""

    def holder(self, number: int) -> Member | None:
        """The node of a number in :class:`Holders`, if it can be read from now."""

    def generation(self, number: int, root: bytes) -> Generation:
        """Of a namespace at that node: its blocks are of use only where it is the same."""


class Fetcher:
    """Safe to use from any number of threads. ``counters`` only grow."""

    def __init__(self, target: BlockTarget, directory: Directory, node_id: bytes) -> None:
        self._target = target
        self._directory = directory
        self._links = HolderLinks(node_id, WORKERS)
        self._carrier = Carrier(target, self._links, self._usable, self._count)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._turn = threading.Lock()  # batches are reserved in the order in which they were begun
        self._queue: deque[Batch] = deque()
        self._coming: dict[tuple[bytes, tuple[int, ...], bytes], Batch] = {}
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._begun = 0
        self._counting = threading.Lock()
        self._counters: dict[str, float] = {}
        self._looking = threading.Lock()
        self._chains: OrderedDict[tuple[bytes, bytes, int], tuple[float, Holders]] = OrderedDict()

    @property
    def counters(self) -> dict[str, float]:
        """blocks, bytes, seconds, joined_blocks, busy_blocks, failed_REASON (blocks)."""
        with self._counting:
            return dict(self._counters)

    @property
    def under_way(self) -> int:
        """Blocks that are on their way, or wait for it."""
        return len(self._coming)

    # --- questions -----------------------------------------------------------------------------------------

    def reach(self, root: bytes, keys: KeyArray, have: int) -> int:
        """How many leading blocks of a chain this node can have, that has ``have`` of them."""
        spans = self._holders(root, keys).spans
        if not spans or spans[-1].end <= have:
            return have
        return reach(spans, have, _mask(self._known(root, spans)))

    def start(
        self, handle: int, root: bytes, keys: KeyArray, parts: tuple[int, ...], have: int, deadline: float,
        alive: Callable[[], bool], far: bool,
    ) -> int:  # fmt: skip
        """Begins to fetch what follows the first ``have`` blocks, as much as a reader needs next or (``far``) all that
        there is room for; up to which block it is on its way. What has not begun at the deadline (time.monotonic), or
        when nobody is ``alive`` that wants it, is dropped."""
        chain = self._chain(handle, root, keys, parts)
        coming = self._begin(chain, have, Reader(alive, deadline), QUEUE if far else AHEAD)
        return coming[-1].end if coming else have

    def fetch(
        self, handle: int, root: bytes, keys: KeyArray, parts: tuple[int, ...], have: int, deadline: float,
        alive: Callable[[], bool], enough: int,
    ) -> int:  # fmt: skip
        """Fetches until ``enough`` leading blocks are here; how many are, also when no more came by the deadline."""
        chain = self._chain(handle, root, keys, parts)
        return self._brought(chain, have, Reader(alive, deadline), enough)

    def copy(
        self, handle: int, root: bytes, keys: KeyArray, source: Member, owed: bool, have: int, deadline: float,
        alive: Callable[[], bool],
    ) -> int:  # fmt: skip
        """Fetches what of a chain is not here from one node, which says that it has it; how many leading blocks are
        here when no more came by the deadline."""
        spec, everything = self._target.spec(handle), (Span(0, len(keys), 1, 1),)
        parts = tuple(range(len(spec.parts)))
        plan = make_plan(spec.parts, parts, None)
        chain = Chain(handle, root, keys, keys.tobytes(), parts, everything, spec, plan, source, owed)
        return self._brought(chain, have, Reader(alive, deadline), len(keys))

    def _brought(self, chain: Chain, have: int, reader: Reader, enough: int) -> int:
        while have < enough:
            reached = arrived(self._begin(chain, have, reader, AHEAD), have, reader.deadline)
            if reached == have:
                break
            have = reached
        return have

    def _chain(self, handle: int, root: bytes, keys: KeyArray, parts: tuple[int, ...]) -> Chain:
        spec = self._target.spec(handle)
        spans = self._holders(root, keys).spans
        return Chain(handle, root, keys, keys.tobytes(), parts, spans, spec, make_plan(spec.parts, parts, None))

    def _holders(self, root: bytes, keys: KeyArray) -> Holders:
        """What the directory says, or said just now: a reader comes back for the rest of its chain again and again."""
        if not len(keys):
            return Holders()
        name, now = (root, keys[-1].tobytes(), len(keys)), time.monotonic()
        with self._looking:
            kept = self._chains.get(name)
        if kept is not None and now - kept[0] < _FRESH:
            return kept[1]
        found = self._directory.lookup(root, keys)
        with self._looking:
            self._chains[name] = (now, found)
            self._chains.move_to_end(name)
            if len(self._chains) > _CHAINS:
                self._chains.popitem(last=False)
        return found

    def _usable(self, chain: Chain) -> Mapping[int, Member]:
        if chain.source is None:
            return self._known(chain.root, chain.spans)
        return {0: chain.source} if self._links.usable(chain.source, chain.root) else {}

    def _known(self, root: bytes, spans: tuple[Span, ...]) -> Mapping[int, Member]:
        everyone = 0
        for span in spans:
            everyone |= span.nodes
        own, names = self._target.generation(root), self._directory
        found = {number: names.holder(number) for number in nodes_of(everyone) if names.generation(number, root) == own}
        return {
            number: member
            for number, member in found.items()
            if member is not None and self._links.usable(member, root)
        }

    # --- beginning -----------------------------------------------------------------------------------------

    def _begin(self, chain: Chain, have: int, reader: Reader, most: int) -> list[Coming]:
        """The next batches of a chain: those that are on their way already, and new ones."""
        end = reach(chain.spans, have, _mask(self._usable(chain)))
        size = max(1, min(BATCH_BLOCKS, BATCH_BYTES // chain.plan.block_bytes))
        coming: list[Coming] = []
        with self._lock:
            while have < end and len(coming) < most and not self._stopping:
                batch = self._coming.get(chain.name(have))
                stop = (
                    self._shared(batch, chain, have, end) if batch else self._free(chain, have, min(end, have + size))
                )
                if batch is None:
                    if len(self._queue) >= QUEUE:
                        self._count("busy_blocks", end - have)
                        break
                    batch = self._enqueue(chain, have, stop, coming[-1].batch if coming else None)
                else:
                    self._count("joined_blocks", stop - have)
                batch.readers.append(reader)
                coming.append(Coming(batch, stop))
                have = stop
            if coming:
                self._grow()
        return coming

    def _shared(self, batch: Batch, chain: Chain, at: int, end: int) -> int:
        """Up to which block a chain goes along with a batch."""
        while at < end and self._coming.get(chain.name(at)) is batch:
            at += 1
        return at

    def _free(self, chain: Chain, at: int, end: int) -> int:
        """Up to which block nobody fetches a chain yet."""
        while at < end and chain.name(at) not in self._coming:
            at += 1
        return at

    def _enqueue(self, chain: Chain, first: int, end: int, previous: Batch | None) -> Batch:
        batch = Batch(chain, first, end, self._begun, previous, reached=first)
        self._begun += 1
        self._coming.update((chain.name(block), batch) for block in range(first, end))
        self._queue.append(batch)
        self._work.notify()
        return batch

    def _grow(self) -> None:
        """A worker for each batch, as far as there may be."""
        while len(self._threads) < min(WORKERS, self._begun):
            thread = threading.Thread(target=self._serve, name=f"fetch-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    # --- working -------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (taken := self._take()) is not None:
            batch, slots = taken
            reached = batch.first
            try:
                if slots is not None:
                    reached = self._carrier.carry(batch, slots)
            except Exception:
                self._surprised(batch)
            finally:
                self._settle(batch, reached)

    def _take(self) -> tuple[Batch, Slots | None] | None:
        """The next batch, and its slots."""
        with self._turn:
            batch = self._next()
            if batch is None:
                return None
            try:
                return batch, self._carrier.reserve(batch)
            except Exception:
                self._surprised(batch)
                return batch, None

    def _next(self) -> Batch | None:
        with self._work:
            while not self._queue and not self._stopping:
                self._work.wait()
            return None if self._stopping else self._queue.popleft()

    def _surprised(self, batch: Batch) -> None:
        _log.exception("blocks %d to %d of a chain could not be fetched", batch.first, batch.end)
        self._count("failed_error", batch.end - batch.first)

    def _settle(self, batch: Batch, reached: int) -> None:
        batch.reached = reached
        with self._lock:
            for block in range(batch.first, batch.end):
                self._coming.pop(batch.chain.name(block), None)
        batch.done.set()
        batch.previous = None  # it has been looked at; what is kept alive by it may go

    def _count(self, name: str, amount: float) -> None:
        with self._counting:
            self._counters[name] = self._counters.get(name, 0) + amount

    def stop(self) -> None:
        """Ends what is under way: readers that wait get what they have."""
        with self._work:
            self._stopping = True
            left = list(self._queue)
            self._queue.clear()
            self._work.notify_all()
        self._links.close()
        for batch in left:
            self._settle(batch, batch.first)
        for thread in self._threads:
            thread.join(_STOPPING)


def _mask(sources: Mapping[int, Member]) -> int:
    return sum(1 << number for number in sources)
