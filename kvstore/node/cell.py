"""Readers of a node that is one of a cell: what it lacks and other nodes have is fetched before they are answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from kvstore.core.errors import KVStoreError, Unsupported
from kvstore.core.keys import KeyArray
from kvstore.node.layout import Layout
from kvstore.tiers.store import BlockStore, Session
from kvstore.tiers.values import Acquired, MissReason, Prefetched
from kvstore.v1 import data_pb2 as pb
from kvstore.v1 import types_pb2 as types

PREFETCH_SECONDS = 30.0  # that a prefetch without a deadline may take
_KEPT = 4096  # roots of handles
_log = logging.getLogger(__name__)
_ANY_TIER = types.TIER_KIND_UNSPECIFIED
_HERE_FIRST = (MissReason.LOADING, MissReason.BUSY)  # what ends a prefix for reasons that others cannot help with


# The arguments of BlockStore.acquire.
Ask: TypeAlias = "tuple[Session, int, KeyArray, int, tuple[int, ...], int, int, int, int, float | None, bool]"


class Cell(Protocol):
    """The other nodes. Chains are named whole, from block 0; ``have``: how many leading blocks are here; ``alive``:
    whether the reader is still there. Safe to use from several threads."""

    def reach(self, root: bytes, keys: KeyArray, have: int) -> int:
        """How many leading blocks this node can have, with those that it can fetch."""

    def start(
        self, handle: int, root: bytes, keys: KeyArray, parts: tuple[int, ...], have: int, deadline: float,
        alive: Callable[[], bool], far: bool,
    ) -> int:  # fmt: skip
        """Begins to fetch, as much as a reader needs next, or (``far``) all that there is room for; up to which block
        it is on its way now."""

    def fetch(
        self, handle: int, root: bytes, keys: KeyArray, parts: tuple[int, ...], have: int, deadline: float,
        alive: Callable[[], bool], enough: int,
    ) -> int:  # fmt: skip
        """Fetches, and waits until ``enough`` leading blocks are here; how many are, when that is not in time."""


class Reader(Protocol):
    """Who asks. ``peer``: another node, ``ended``: it waits no more."""

    peer: bool
    ended: bool


@dataclass(slots=True)
class Caller:
    """A reader that is no session of the data path."""

    peer: bool = False
    ended: bool = False


class CellReads:
    """``wait``: seconds that a reader waits for other nodes at most."""

    def __init__(self, store: BlockStore, cell: Cell, wait: float) -> None:
        self._store = store
        self._cell = cell
        self._wait = wait
        self._roots: dict[int, bytes] = {}

    def match(self, session: Reader, handle: int, keys: KeyArray, layout: Layout, have: int) -> int:
        """How many blocks other nodes have that follow on the first ``have``."""
        return self._reach(session, handle, keys, layout, have) - have

    def prefetch(
        self, session: Reader, request: pb.PrefetchKeysRequest, keys: KeyArray, layout: Layout,
        deadline: float | None, start: Callable[[], Prefetched],
    ) -> Prefetched:  # fmt: skip
        """What the store brings to DRAM (``start``), and what is on its way from other nodes. Raises Unsupported when
        neither can bring anything."""
        handle = request.namespace
        try:
            found = start()
        except Unsupported:
            if session.peer or request.tier not in (_ANY_TIER, types.TIER_KIND_DRAM):
                raise
            here = self._store.match(handle, keys, layout.parts).blocks
            found = Prefetched(0, here, len(keys) - here)
        have = found.present + found.started
        if self._reach(session, handle, keys, layout, have) == have:
            return found
        until = time.monotonic() + PREFETCH_SECONDS if deadline is None else deadline
        chain = (handle, self._root(handle), keys, layout.parts, have, until, _living(session))
        more = _asked(lambda: self._cell.start(*chain, True), have) - have
        return Prefetched(found.started + more, found.present, found.absent - more)

    def bring(self, session: Reader, handle: int, keys: KeyArray, layout: Layout, deadline: float | None) -> None:
        """Fetches what of a whole chain is not here, for what is to follow it."""
        have = self._store.match(handle, keys, layout.parts).blocks
        if self._reach(session, handle, keys, layout, have) == have:
            return
        until = time.monotonic() + self._wait
        chain = (handle, self._root(handle), keys, layout.parts, have)
        until = until if deadline is None else min(deadline, until)
        _asked(lambda: self._cell.fetch(*chain, until, _living(session), len(keys)), have)

    def further(
        self,
        session: Reader,
        request: pb.GetRequest,
        keys: KeyArray,
        layout: Layout,
        deadline: float | None,
        found: Acquired,
        ask: Ask,
    ) -> Acquired:
        """What a GET found, or with blocks of other nodes. What is here is answered at once while they come, unless the
        reader wants the whole: it asks for them next, and then waits. ``ask``: what it asked the store."""
        have = found.prefix_blocks
        if deadline is not None and found.miss in _HERE_FIRST:
            return found
        reach = self._reach(session, request.namespace, keys, layout, have)
        if reach == have:
            return found
        if deadline is None:  # nothing is waited for, only told
            return replace(found, prefix_blocks=reach)
        until = min(deadline, time.monotonic() + self._wait)
        if not self._come(session, request, keys, layout, until, found, reach):
            return found
        if not found.lease or request.whole:
            if found.lease:
                self._store.release(ask[0], [found.lease])
            found = replace(self._store.acquire(*ask), remote=True)
        if found.lease and not request.whole and found.prefix_blocks < reach and found.miss not in _HERE_FIRST:
            return replace(found, prefix_blocks=reach, miss=MissReason.NONE)
        return found

    def _come(
        self,
        session: Reader,
        request: pb.GetRequest,
        keys: KeyArray,
        layout: Layout,
        until: float,
        found: Acquired,
        reach: int,
    ) -> bool:
        """Whether blocks of other nodes have come, or (there is something to answer with already) are on their way."""
        have = found.prefix_blocks
        chain = (request.namespace, self._root(request.namespace), keys, layout.parts, have, until, _living(session))
        if found.lease and not request.whole:
            return _asked(lambda: self._cell.start(*chain, False), have) > have
        enough = reach if request.whole else max(have, request.first_block) + 1
        return _asked(lambda: self._cell.fetch(*chain, enough), have) > have

    def _reach(self, session: Reader, handle: int, keys: KeyArray, layout: Layout, have: int) -> int:
        """How many leading blocks this session can have, of which ``have`` are here."""
        if have == len(keys) or session.peer or not self._shared(handle, layout):
            return have
        return _asked(lambda: self._cell.reach(self._root(handle), keys, have), have)

    def _root(self, handle: int) -> bytes:
        root = self._roots.get(handle)
        if root is None:
            if len(self._roots) >= _KEPT:
                self._roots.clear()
            root = self._roots[handle] = self._store.spec(handle).root
        return root

    def _shared(self, handle: int, layout: Layout) -> bool:
        """Whether other nodes can be asked for these parts: holes of window and state parts are not known of there."""
        specs = self._store.spec(handle).parts
        return all(specs[part].kind == "prefix" for part in layout.parts)


def _living(session: Reader) -> Callable[[], bool]:
    return lambda: not session.ended


def _asked(question: Callable[[], int], have: int) -> int:
    """The answer; ``have`` when there is none: whatever is wrong with other nodes, what is here is served."""
    try:
        return question()
    except KVStoreError as error:
        _log.info("other nodes were not asked: %s", error)
    except Exception:
        _log.exception("other nodes could not be asked")
    return have
