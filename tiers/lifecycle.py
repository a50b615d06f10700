"""The life of a namespace: rotated when its content is void, dropped when unwanted, expired when unused."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kvstore.core.errors import Unavailable
from kvstore.tiers.namespaces import Generation, Namespace
from kvstore.tiers.state import State

if TYPE_CHECKING:
    from kvstore.tiers.evicting import Evictor

log = logging.getLogger(__name__)
_SETTLE = 0.2  # seconds between looks at drops that are not durable yet


class Rotated(NamedTuple):
    """Blocks dropped, those of them a lease still keeps (invisible), the new generation, and what rotation it was."""

    blocks: int
    leased: int
    generation: int
    rotation: int = 0


class Lifecycle:
    """Each method takes the lock itself, for short times."""

    def __init__(self, state: State, evictor: Evictor) -> None:
        self._state = state
        self._evictor = evictor

    def rotate(self, root: bytes, to: Generation | None = None) -> Rotated:
        """Everything in a namespace is void, as after new weights: it is empty when this returns, and puts begun before
        are lost. Its generation is one higher, or (``to``) that of other nodes. Handles stay valid; a call that comes
        meanwhile is told to try again.

        Raises UnknownNamespace, Busy, and Unavailable when a tier cannot forget its blocks for good.
        """
        with self._state.lock:
            found, empty = self._state.namespaces.by_root(root), False
            to = to or (found.generation + 1, secrets.randbits(63) + 1)
            self._state.namespaces.start_rotation(found, to)
            self._state.journal.voided(root)
        try:
            blocks, leased = self._evictor.drop_all(found, "rotated")
            self._sync(found)
            empty = True
        finally:
            with self._state.lock:
                self._state.namespaces.finish_rotation(found, empty)
        return Rotated(blocks, leased, *to)

    def generation(self, root: bytes) -> Generation | None:
        """Of a namespace; None: it is not here."""
        with self._state.lock:
            found = self._state.namespaces.at(root)
            return None if found is None else (found.generation, found.rotation)

    def begin_at(self, heard: Callable[[bytes], Generation]) -> None:
        """From now on ``heard(root)`` says which generation a namespace has that is new here."""
        self._state.namespaces.begins_at = heard

    def drop(self, root: bytes) -> tuple[int, int]:
        """Drops a namespace: how many blocks it had, those of them a lease still keeps. Raises UnknownNamespace,
        Unavailable as ``rotate``."""
        with self._state.lock:
            found = self._state.namespaces.by_root(root)
        counts = self._evictor.drop_namespace(found)
        self._sync(found)
        self._settle_drops()
        return counts

    def _settle_drops(self) -> int:
        placement = self._state.placement
        with self._state.lock:
            return placement.settle_drops() if placement else 0

    def _sync(self, namespace: Namespace) -> None:
        """What was freed must not come back after a power loss."""
        for tier in self._state.tiers:
            try:
                tier.sync()
            except OSError as error:
                raise Unavailable(
                    f"the blocks of namespace {namespace.root.hex()} are dropped, but the {tier.name} tier could not "
                    f"make that durable ({error.strerror or error}): some may come back after a power loss; try again",
                    tier=tier.name,
                ) from error

    def expire(self) -> float:
        """Drops the namespaces that nobody used for ``namespace_ttl``; seconds until the next look. One with hard pins
        stays."""
        ttl = self._state.config.namespace_ttl
        before = time.time() - ttl
        with self._state.lock:
            old = [
                one for one in self._state.namespaces if one.used < before and not self._state.pins.bytes_of(one)
            ] if ttl else []  # fmt: skip
        for found in old:
            blocks, _ = self._evictor.drop_namespace(found)
            log.info("namespace %s (%s) was not used for %g s: dropped with %d blocks", found.root.hex()[:8],
                     found.spec.model, ttl, blocks)  # fmt: skip
            with self._state.lock:
                self._state.counters["namespaces_expired"] += 1
        rest = max(0.1, min(60.0, ttl / 4)) if ttl else 60.0
        return min(rest, _SETTLE) if self._settle_drops() else rest
