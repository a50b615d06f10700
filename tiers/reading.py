"""Acquiring: a prefix under lease whose bytes may be used, because everything left by a crash was checked first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvstore.core.errors import InvalidArgument
from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import IntArray
from kvstore.tiers.leases import NO_ROWS
from kvstore.tiers.matching import Found, Matcher, part_mask
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.registry import Registry
from kvstore.tiers.sessions import Session
from kvstore.tiers.state import State
from kvstore.tiers.values import Acquired, MissReason
from kvstore.tiers.verifying import Verifier

if TYPE_CHECKING:
    from kvstore.tiers.promoting import Promoter


_TRIES = 2  # waits for blocks that brought nothing before the prefix ends


class _Ask(NamedTuple):
    """What a reader asks for."""

    session: Session
    namespace: Namespace
    keys: KeyArray
    first: int
    parts: tuple[int, ...]
    mask: int
    request: int
    max_blocks: int


class Reader:
    """Matches, leases, verifies and tells where the bytes are."""

    def __init__(self, state: State, matcher: Matcher, registry: Registry) -> None:
        self._state = state
        self._matcher = matcher
        self._verifier = Verifier(state)
        self._registry = registry
        self.promoter: Promoter | None = None  # of a store with an NVMe tier

    def acquire(
        self, session: Session, namespace: Namespace, keys: KeyArray, first: int, parts: Sequence[int], request: int,
        max_blocks: int, range_offset: int, range_length: int, deadline: float | None = None, whole: bool = False,
    ) -> Acquired:  # fmt: skip
        """As BlockStore.acquire."""
        if first < 0 or max_blocks < 0:
            raise InvalidArgument(
                f"first_block {first} and max_blocks {max_blocks} must be 0 or more", field="first_block"
            )
        wanted, mask = part_mask(namespace, parts)
        spans = [namespace.cuts[part].span(range_offset, range_length) for part in wanted]
        ask = _Ask(session, namespace, keys, first, wanted, mask, request, max_blocks)
        found, failed = self._sound(ask)
        if found.miss is MissReason.LOADING:
            found, failed = self._arriving(ask, found, failed, deadline, whole)
        miss = found.miss or self._matcher.miss(namespace, keys, found.prefix, mask)
        if failed and found.prefix < len(keys):
            miss = MissReason.CHECKSUM
        namespace.used = time.time()
        if found.prefix < len(keys):
            self._count("miss_blocks_" + miss.name.lower(), len(keys) - found.prefix)
        return self._matcher.answer(found, first, spans, miss)

    def _sound(self, ask: _Ask, again: bool = False) -> tuple[Found, bool]:
        """Acquires again until everything leased has passed its checks; what fails is dropped. Whether any did."""
        failed = False
        while True:
            found = self._matcher.acquire(
                ask.session, ask.namespace, ask.keys, ask.first, ask.parts, ask.mask, ask.request, ask.max_blocks, again
            )
            if found.lease is None or not self._state.unverified_parts:
                return found, failed
            leased = ask.keys[ask.first : ask.first + len(found.lease.rows)]
            bad = self._verifier.first_bad(ask.namespace, leased, ask.parts, found.part_rows, found.slots)
            if bad is None:
                return found, failed
            failed = again = True
            self._discard(int(found.lease.rows[bad]))
            self._registry.release(ask.session, [found.lease.id])

    def _discard(self, row: int) -> None:
        """Damaged in DRAM: the block goes, unless NVMe has it and nobody else looks at it here."""
        state = self._state
        with state.lock:
            state.counters["verify_failed_blocks"] += 1
            placement = state.placement
            whole = placement is not None and placement.clean(row) and state.index.leases_at[row] == 1
            if placement is not None and whole:
                state.counters["dram_copies_damaged"] += 1
                placement.free_dram(row)
        if not whole:
            state.drop_subtree(row, "checksum")

    # --- blocks that come from NVMe --------------------------------------------------------------------------

    def _arriving(
        self, ask: _Ask, found: Found, failed: bool, deadline: float | None, whole: bool
    ) -> tuple[Found, bool]:
        """Loads what is on NVMe only. What has come is answered at once while the rest is being loaded: the reader
        asks for that next. ``whole``: answered when all has come. At the deadline the prefix ends where loading is;
        without one nothing is loaded."""
        tries, promoter = 0, self.promoter
        while found.miss is MissReason.LOADING and promoter is not None and deadline is not None:
            got = len(found.lease.rows) if found.lease else 0
            end = min(found.prefix, ask.first + ask.max_blocks) if ask.max_blocks else found.prefix
            tickets = promoter.ahead(
                ask.session.token,
                ask.namespace,
                ask.keys[:end],
                ask.first + got,
                sum(1 << p for p in ask.parts),
                deadline,
            )
            if got and not whole:
                found.miss = MissReason.NONE
                return found, failed
            held = self._keep(ask, found)
            try:
                come = promoter.wait(ask.namespace, tickets, deadline)
                tries += not come
                found, bad = self._sound(ask, again=True)
                found.loaded = True
            finally:
                self._let_go(held)
            failed = failed or bad
            if tries > _TRIES or time.monotonic() >= deadline:
                break
        if found.miss is MissReason.LOADING and deadline is not None:
            found.prefix = ask.first + (len(found.lease.rows) if found.lease else 0)
        return found, failed

    def _keep(self, ask: _Ask, found: Found) -> IntArray:
        """Gives a lease up but keeps its blocks where they are."""
        if found.lease is None:
            return NO_ROWS
        with self._state.lock:
            self._state.hold(found.lease.rows)
        self._registry.release(ask.session, [found.lease.id])
        return found.lease.rows

    def _let_go(self, rows: IntArray) -> None:
        if len(rows):
            with self._state.lock:
                self._state.unhold(rows)

    def _count(self, name: str, blocks: int) -> None:
        with self._state.lock:
            self._state.counters[name] += blocks
