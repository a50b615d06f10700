"""Carrying one batch: slots in the own store, bytes from one holder after the other, and a commit in chain order."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby

import numpy as np

from kvstore.cluster.fetch_batch import Batch, Chain
from kvstore.cluster.fetch_plan import ranked
from kvstore.cluster.fetch_target import BUSY, NO_SPACE, PRESENT, STORED, BlockTarget, Slots
from kvstore.cluster.holder_links import HolderLinks
from kvstore.cluster.member import Member
from kvstore.core.errors import (
    ChecksumMismatch,
    DeadlineExceeded,
    KVStoreError,
    NotServed,
    SessionLost,
    Unavailable,
    UnknownNamespace,
    Unsupported,
)
from kvstore.core.keys import KEY_BYTES
from kvstore.transport.batch import GetCall, GetResult
from kvstore.transport.mapping import Bytes
from kvstore.transport.tcp import TcpTransport

PATIENCE = 0.7  # seconds that one holder may take for a batch, and what its bytes take at this rate:
SLOWEST = 32 << 20  # bytes a second
_LEAST = 0.2  # seconds that it has even where the reader waits less: else nobody would ever find out that it is dead
_log = logging.getLogger(__name__)
Count = Callable[[str, float], None]
Usable = Callable[[Chain], Mapping[int, Member]]
Pulled = tuple[int, list[int]]  # blocks, and the checksums of their chunks


class Carrier:
    """``count(name, amount)`` counts. ``usable(chain)``: by number, those holders that may be asked now."""

    def __init__(self, target: BlockTarget, links: HolderLinks, usable: Usable, count: Count) -> None:
        self._target = target
        self._links = links
        self._usable = usable
        self._count = count

    def reserve(self, batch: Batch) -> Slots | None:
        """Slots for a batch whose turn it is; None: nobody wants it any more, or it has no place here."""
        if batch.orphaned():
            self._count("failed_chain", batch.end - batch.first)
            return None
        if batch.until() <= time.monotonic():
            self._count("failed_late", batch.end - batch.first)
            return None
        slots, before = self._reserved(batch, batch.end), batch.previous
        if slots is None or before is None or before.done.is_set() or not _short(slots.outcomes):
            return slots
        self._give_up(slots)  # there may be room when the one before holds none any more
        before.done.wait()
        return None if batch.orphaned() else self._reserved(batch, batch.end)

    def _reserved(self, batch: Batch, end: int) -> Slots | None:
        chain, first = batch.chain, batch.first
        parent = chain.key(first - 1) if first else b""
        slots = None
        try:
            slots = self._target.reserve(chain.handle, chain.keys[first:end], parent, first, chain.parts, chain.owed)
            generation = self._target.generation(chain.root)  # looked at now: a reservation from before it is void
            if generation is None or batch.generation not in (None, generation):
                raise Unsupported("the namespace was rotated here while its blocks were fetched")
            batch.generation = generation
            return slots
        except KVStoreError as error:
            self._give_up(slots)
            self._failed(error, end - first)
            return None

    def carry(self, batch: Batch, slots: Slots) -> int:
        """Fills the slots and shows the blocks; up to which block the chain is here then."""
        began = time.perf_counter()
        try:
            got, sums = self._fill(batch, slots)
        except BaseException:
            self._give_up(slots)
            raise
        finally:
            self._count("seconds", time.perf_counter() - began)
            self._count("batches", 1)
        if got < len(slots.outcomes):
            fitting = self._moved(batch, slots, got)
            if fitting is None:
                return batch.first
            slots = fitting
        return self._show(batch, slots, sums)

    def _moved(self, batch: Batch, slots: Slots, got: int) -> Slots | None:
        """Only the first blocks have come: a reservation of just these, with their bytes."""
        stored = slots.outcomes[:got].count(STORED) * len(batch.chain.plan.pieces)
        kept = [view.copy() for view in slots.views[:stored]]
        self._give_up(slots)
        fitting = self._reserved(batch, batch.first + got) if got else None
        if fitting is None:
            return None
        if fitting.outcomes != slots.outcomes[:got]:  # another writer came in between
            self._give_up(fitting)
            return None
        for view, data in zip(fitting.views, kept, strict=True):
            np.copyto(view, data)
        return fitting

    # --- bytes ---------------------------------------------------------------------------------------------

    def _fill(self, batch: Batch, slots: Slots) -> Pulled:
        """Fetches into the slots: how many leading blocks of the batch can be shown, and the sums of those stored."""
        width, sums = len(batch.chain.plan.pieces), list[int]()
        for at, count, start in _runs(slots.outcomes):
            got, came = self._pull(batch, batch.first + at, slots.views[start * width : (start + count) * width])
            sums += came
            if got < count:
                return at + got, sums
        return len(slots.outcomes), sums

    def _pull(self, batch: Batch, first: int, views: list[Bytes]) -> Pulled:
        """Blocks from ``first`` on into ``views``, from as many holders as it takes."""
        chain, width = batch.chain, len(batch.chain.plan.pieces)
        total, done, sums = len(views) // width, 0, list[int]()
        sources = self._usable(chain)
        mask = sum(1 << number for number in sources)
        reason = "absent"
        for number in ranked(chain.spans, first, batch.end, mask, batch.number):
            until = self._patience(batch)
            if done == total or not until:
                break
            source = sources[number]
            try:
                while done < total:
                    result, came = self._ask(source, batch, first + done, views[done * width :], until)
                    got = max(0, result.blocks - first - done)
                    sums += came[: got * chain.plan.block_chunks]
                    done += got
                    if result.bad >= 0:
                        raise ChecksumMismatch(f"block {result.bad} came from {source.data_address} damaged")
                    if not got or not result.more:
                        break
                self._links.worked(source)
            except KVStoreError as error:
                reason = self._blame(source, chain.root, error)
        if done < total:
            self._count(f"failed_{reason}", total - done)
        return done, sums

    def _patience(self, batch: Batch) -> float:
        """Until when the next holder may take; 0: nobody waits any more."""
        now, until = time.monotonic(), batch.until()
        patience = PATIENCE + (batch.end - batch.first) * batch.chain.plan.block_bytes / SLOWEST
        return min(now + patience, max(until, now + _LEAST)) if until > now else 0.0

    def _ask(
        self, source: Member, batch: Batch, first: int, views: list[Bytes], until: float
    ) -> tuple[GetResult, list[int]]:
        """One request to a holder. A session that turns out to be over is replaced once."""
        transport, fresh = self._links.session(source, until)
        try:
            return self._request(transport, batch, first, views, until)
        except (Unavailable, SessionLost):
            transport.retire()
            if fresh:
                raise
        transport, _ = self._links.session(source, until)
        return self._request(transport, batch, first, views, until)

    def _request(
        self, transport: TcpTransport, batch: Batch, first: int, views: list[Bytes], until: float
    ) -> tuple[GetResult, list[int]]:
        chain = batch.chain
        keys = chain.raw[: (first + len(views) // len(chain.plan.pieces)) * KEY_BYTES]
        if batch.generation != (0, 0) and transport.hello.version < 2:
            raise Unsupported("the node's version cannot say of which generation its blocks are")
        for attempt in range(2):
            handle = transport.handles.get(chain.root)
            if handle is None:
                handle = transport.open_namespace(chain.spec.canonical(), chain.root, False, until).handle
            try:
                call = GetCall(handle, keys, first, chain.plan, generation=batch.generation)
                return transport.pull(call, views, until)
            except UnknownNamespace:
                transport.handles.pop(chain.root, None)
                if attempt:
                    raise
        raise AssertionError("unreachable: the second attempt returns or raises")

    def _blame(self, source: Member, root: bytes, error: KVStoreError) -> str:
        """What a failure means for the next batches; its name."""
        if isinstance(error, NotServed):
            self._links.failed(source, slow=isinstance(error, DeadlineExceeded))
        else:
            self._links.refused(source, root)
        _log.info("no blocks from %s: %s", source.data_address, error)
        return _name(error)

    # --- showing -------------------------------------------------------------------------------------------

    def _show(self, batch: Batch, slots: Slots, sums: list[int]) -> int:
        before = batch.previous
        if before is not None:
            before.done.wait()  # it has its own bounds
        if batch.orphaned():
            self._give_up(slots)
            self._count("failed_chain", len(slots.outcomes))
            return batch.first
        committed: Iterator[int] = iter(b"")
        if slots.id:
            try:
                outcomes = self._target.commit(slots.id, sums)
            except KVStoreError as error:
                self._failed(error, len(slots.outcomes))
                return batch.first
            committed = iter(outcomes)
            stored = outcomes.count(STORED)
            self._count("blocks", stored)
            self._count("bytes", stored * batch.chain.plan.block_bytes)
        final = [next(committed) if outcome == STORED else outcome for outcome in slots.outcomes]
        here = [outcome in (STORED, PRESENT) for outcome in final]
        return batch.first + (here.index(False) if False in here else len(here))

    def _give_up(self, slots: Slots | None) -> None:
        if slots is not None and slots.id:
            with contextlib.suppress(KVStoreError):  # the store may be closing
                self._target.abort(slots.id)

    def _failed(self, error: KVStoreError, blocks: int) -> None:
        self._count(f"failed_{_name(error)}", blocks)


def _short(outcomes: bytes) -> bool:
    return NO_SPACE in outcomes or BUSY in outcomes


def _runs(outcomes: bytes) -> Iterator[tuple[int, int, int]]:
    """Runs of STORED blocks: the first, how many, and how many stored ones come before it."""
    at = before = 0
    for stored, group in groupby(outcomes, lambda outcome: outcome == STORED):
        count = len(list(group))
        if stored:
            yield at, count, before
            before += count
        at += count


_NAMES = {
    "DeadlineExceeded": "timeout", "Unavailable": "unavailable", "SessionLost": "unavailable", "Busy": "busy",
    "ChecksumMismatch": "checksum", "NoSpace": "no_space", "Unsupported": "rotated", "UnknownNamespace": "dropped",
}  # fmt: skip


def _name(error: KVStoreError) -> str:
    return _NAMES.get(type(error).__name__, "error")
