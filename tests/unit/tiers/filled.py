"""A two-tier store with chains in it, and a gate before its disk."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from kvstore.core.keys import KeyArray
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.sessions import Session
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import AckLevel, ChainSlice, NamespaceView
from tests.unit.tiers.stores import ONE, STORED, fill, keys_of, read
from tests.unit.tiers.two_tiers import still

CHAIN = 8  # blocks; DRAM of a test holds about 8 such chains of ONE
PATIENCE = 20.0
Bytes = dict[tuple[bytes, int], bytes]


def chain(number: int, spec: NamespaceSpec = ONE, blocks: int = CHAIN) -> KeyArray:
    return keys_of(spec, tuple([number + 10] * blocks))


class Filled:
    """A store, a session, and chains with their bytes."""

    def __init__(self, store: BlockStore, spec: NamespaceSpec = ONE) -> None:
        self.store = store
        self.spec = spec
        self.view: NamespaceView = store.open_namespace(spec.canonical())
        self.session: Session = store.open_session(False)
        self.bytes: Bytes = {}

    def put(self, *numbers: int, ack: int = AckLevel.VISIBLE, deadline: float | None = None) -> list[int]:
        """Outcomes of all blocks."""
        found: list[int] = []
        for number in numbers:
            keys = chain(number, self.spec)
            parts = tuple(range(len(self.spec.parts)))
            reserved = self.store.reserve(
                self.session, self.view.handle, ChainSlice(keys), (), ack=ack, deadline=deadline
            )
            sums, written = fill(self.store, self.view, keys, parts, reserved, number + 1)
            outcomes = bytearray(reserved.outcomes)
            if reserved.id:
                places = [at for at, code in enumerate(outcomes) if code == STORED]
                codes = self.store.commit(self.session, reserved.id, sums, ack, deadline)
                for at, code in zip(places, codes, strict=True):
                    outcomes[at] = code
            self.bytes.update(written)
            found += outcomes
        return found

    def get(self, number: int, patience: float = PATIENCE) -> int:
        """Blocks of a chain that come back, and are what was put."""
        keys, first = chain(number, self.spec), 0
        while first < len(keys):
            deadline = time.monotonic() + patience
            found = self.store.acquire(self.session, self.view.handle, keys, first, deadline=deadline)
            self.check(keys, first, found.offsets)
            if found.lease:
                self.store.release(self.session, [found.lease])
            if found.blocks <= first:
                return first
            first = found.blocks
        return first

    def check(self, keys: KeyArray, first: int, offsets: np.ndarray) -> None:
        parts = len(self.spec.parts)
        for at, data in enumerate(read(self.store, self.view, offsets)):
            key = keys[first + at // parts].tobytes()
            assert data == self.bytes[key, at % parts], "a block came back with other bytes"

    def demote(self, *numbers: int) -> None:
        """Sends chains off to NVMe, as pressure would."""
        state, movement = self.store._state, self.store._movement
        assert movement
        for number in numbers:
            for key in chain(number, self.spec)[::-1]:
                with state.lock:
                    row = state.index.find_one(self.id, key.tobytes())
                    movement.demoter.send_off(row)
        still(self.store)

    @property
    def id(self) -> int:
        return self.store._state.namespaces.by_handle(self.view.handle).id

    def tiers(self, number: int) -> dict[TierKind, int]:
        return dict(self.store.match(self.view.handle, chain(number, self.spec)).tiers)

    @property
    def counters(self) -> dict[str, int]:
        return self.store.stat().counters


class Gate:
    """Holds writes to NVMe up until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: BlockStore) -> None:
        self.entered, self._open = threading.Event(), threading.Event()
        nvme: Any = store._state.placement.nvme  # type: ignore[union-attr]
        persist = nvme.persist

        def held(*arguments: object) -> object:
            self.entered.set()
            assert self._open.wait(PATIENCE)
            return persist(*arguments)

        monkeypatch.setattr(nvme, "persist", held)

    def open(self) -> None:
        self._open.set()
