"""Opening namespaces: in a full table what nobody uses gives way; what could never be stored is refused."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from kvstore.core.checksum import chunking
from kvstore.core.errors import NoSpace
from kvstore.core.namespace import parse_canonical
from kvstore.tiers.namespaces import Namespace
from kvstore.tiers.state import State
from kvstore.tiers.values import NamespaceView

if TYPE_CHECKING:
    from kvstore.tiers.evicting import Evictor

log = logging.getLogger(__name__)
_TRIES = 4  # namespaces dropped for one that opens
_QUIET_SECONDS = 60.0


class Crowding:
    """Takes the lock itself."""

    def __init__(self, state: State, evictor: Evictor) -> None:
        self._state = state
        self._evictor = evictor
        self._told = -_QUIET_SECONDS

    def open(self, canonical: bytes, strict: bool) -> NamespaceView:
        """Finds or makes a namespace. When the table is full, the one that has been empty for longest makes room, else
        the least recently used of those that are idle. A handle of theirs is unknown from then on. Raises NoSpace, and
        InvalidArgument for parts that no segment could hold."""
        for cut in map(chunking, parse_canonical(canonical).parts):
            self._state.dram.slot_class(cut.length, cut.count)
        for _ in range(_TRIES):
            with self._state.lock:
                try:
                    return self._state.namespaces.open(canonical, strict)
                except NoSpace:
                    victim = self._victim()
            if victim is None:
                break
            self._drop(victim)
        return self._last(canonical, strict)

    def _victim(self) -> Namespace | None:
        unused = sorted(self._state.namespaces, key=lambda one: one.used)
        quiet = [one for one in unused if not (one.rotating or self._state.pins.bytes_of(one) or self._leased(one))]
        empty = next((one for one in quiet if not one.rows), None)
        idle = self._state.config.namespace_idle
        before = time.time() - idle
        return empty or next((one for one in quiet if idle and one.used < before), None)

    def _leased(self, namespace: Namespace) -> bool:
        index = self._state.index
        if not namespace.rows:
            return False
        held = np.flatnonzero(index.leases[: index.rows_used])
        return bool((index.namespace[held] == namespace.id).any())

    def _drop(self, victim: Namespace) -> None:
        blocks, _ = self._evictor.drop_namespace(victim)
        log.info(
            "the namespace table is full: %s (%s), unused for %.0f s, made room with %d blocks",
            victim.root.hex()[:8],
            victim.spec.model,
            max(0.0, time.time() - victim.used),
            blocks,
        )
        with self._state.lock:
            self._state.counters["namespaces_displaced"] += 1

    def _last(self, canonical: bytes, strict: bool) -> NamespaceView:
        with self._state.lock:
            try:
                return self._state.namespaces.open(canonical, strict)
            except NoSpace as full:
                self._state.counters["namespaces_refused"] += 1
                self._tell(full)
                raise

    def _tell(self, full: NoSpace) -> None:
        now = time.monotonic()
        if now - self._told >= _QUIET_SECONDS:
            self._told = now
            log.warning("a namespace was refused, and its engine runs without a cache: %s", full)
