"""Acquiring: a prefix under lease whose bytes may be used, because everything left by a crash was checked first."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kvstore.core.errors import InvalidArgument
from kvstore.core.keys import KeyArray
from kvstore.tiers.matching import Found, Matcher, part_mask
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.registry import Registry
from kvstore.tiers.sessions import Session
from kvstore.tiers.state import State
from kvstore.tiers.values import Acquired, MissReason
from kvstore.tiers.verifying import Verifier


class Reader:
    """Matches, leases, verifies and tells where the bytes are."""

    def __init__(self, state: State, matcher: Matcher, registry: Registry) -> None:
        self._state = state
        self._matcher = matcher
        self._verifier = Verifier(state)
        self._registry = registry

    def acquire(
        self, session: Session, namespace: Namespace, keys: KeyArray, first: int, parts: Sequence[int], request: int,
        max_blocks: int, range_offset: int, range_length: int,
    ) -> Acquired:  # fmt: skip
        """As BlockStore.acquire."""
        if first < 0 or max_blocks < 0:
            raise InvalidArgument(
                f"first_block {first} and max_blocks {max_blocks} must be 0 or more", field="first_block"
            )
        wanted, mask = part_mask(namespace, parts)
        spans = [namespace.cuts[part].span(range_offset, range_length) for part in wanted]
        found, failed = self._sound(session, namespace, keys, first, wanted, mask, request, max_blocks)
        miss = found.miss or self._matcher.miss(namespace, keys, found.prefix, mask)
        if failed and found.prefix < len(keys):
            miss = MissReason.CHECKSUM
        namespace.used = time.time()
        if found.prefix < len(keys):
            self._count("miss_blocks_" + miss.name.lower(), len(keys) - found.prefix)
        return self._matcher.answer(found, first, spans, miss)

    def _sound(
        self, session: Session, namespace: Namespace, keys: KeyArray, first: int, parts: tuple[int, ...], mask: int,
        request: int, max_blocks: int,
    ) -> tuple[Found, bool]:  # fmt: skip
        """Acquires again until everything leased has passed its checks; what fails is dropped. Whether any did."""
        failed = False
        while True:
            found = self._matcher.acquire(session, namespace, keys, first, parts, mask, request, max_blocks)
            if found.lease is None or not self._state.unverified_parts:
                return found, failed
            leased = keys[first : first + len(found.lease.rows)]
            bad = self._verifier.first_bad(namespace, leased, parts, found.part_rows, found.slots)
            if bad is None:
                return found, failed
            failed = True
            self._state.drop_subtree(int(found.lease.rows[bad]), "checksum")
            self._registry.release(session, [found.lease.id])

    def _count(self, name: str, blocks: int) -> None:
        with self._state.lock:
            self._state.counters[name] += blocks
