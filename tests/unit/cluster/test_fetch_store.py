"""Fetched blocks in a real store: as extra copies, and never across a rotation."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.cluster.fetch_target import BlockTarget, Slots
from kvstore.core.errors import UnknownNamespace
from kvstore.core.keys import KeyArray
from kvstore.server.fetching import StoreTarget
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import ChainSlice, PutOutcome
from tests.unit.tiers.stores import MIB, ONE, TWO, keys_of, opened

BLOCKS = 12


def chain(number: int) -> KeyArray:
    return keys_of(ONE, tuple(range(number * 1000, number * 1000 + BLOCKS)))


def put(store: BlockStore, handle: int, keys: KeyArray) -> None:
    """As a client does."""
    session = store.open_session(False)
    reserved = store.reserve(session, handle, ChainSlice(keys))
    store.commit(session, reserved.id, np.zeros(2 * len(keys), np.uint64))
    store.close_session(session)


def fetched(target: BlockTarget, handle: int, keys: KeyArray) -> bytes:
    slots = target.reserve(handle, keys, b"", 0, (), False)
    return target.commit(slots.id, [0] * (2 * len(slots.views)))


@pytest.mark.parametrize("policy", ["turnscore", "lru"])
def test_what_nobody_has_read_since_goes_before_what_is_only_here(policy: str) -> None:
    with opened(policy=policy, capacity=16 * MIB) as store:
        handle, target = store.open_namespace(ONE.canonical()).handle, StoreTarget(store)
        copies = [chain(number) for number in range(100, 104)]
        for keys in copies if policy == "lru" else []:
            fetched(target, handle, keys)
        own = [chain(number) for number in range(6)]
        for keys in own:
            put(store, handle, keys)
        for keys in copies if policy == "turnscore" else []:  # later, and yet first to go
            fetched(target, handle, keys)
        for number in range(200, 203):
            put(store, handle, chain(number))
        kept = sum(store.match(handle, keys).blocks for keys in own)
        copied = sum(store.match(handle, keys).blocks for keys in copies)
        assert kept == 6 * BLOCKS
        assert copied < 4 * BLOCKS


def test_slots_are_the_stores_own_memory() -> None:
    with opened() as store:
        handle, target = store.open_namespace(TWO.canonical()).handle, StoreTarget(store)
        keys = keys_of(TWO, tuple(range(3)))
        slots = target.reserve(handle, keys, b"", 0, (1,), False)
        assert [len(view) for view in slots.views] == [9_000] * 3
        target.abort(slots.id)
        slots = target.reserve(handle, keys, b"", 0, (), False)
        assert [len(view) for view in slots.views] == [70_000, 9_000] * 3
        for number, view in enumerate(slots.views):
            view[:] = number + 1
        chunks = [2, 3] * 3
        assert target.commit(slots.id, [0] * sum(chunks)) == bytes([PutOutcome.STORED]) * 3
        session = store.open_session(False)
        found = store.acquire(session, handle, keys)
        read = [bytes(store.dram.readable(int(offset), 9_000)) for offset in found.offsets]
        assert read == [bytes([number + 1]) * 9_000 for number in range(6)]
        again = target.reserve(handle, keys, b"", 0, (), False)
        assert again == Slots(0, bytes([PutOutcome.PRESENT]) * 3, [])


def test_what_was_begun_before_a_rotation_is_never_shown() -> None:
    with opened() as store:
        handle, target, keys = store.open_namespace(ONE.canonical()).handle, StoreTarget(store), chain(1)
        assert target.generation(ONE.root) == (0, 0)
        slots = target.reserve(handle, keys, b"", 0, (), False)
        done = store.rotate_namespace(ONE.root)
        assert target.generation(ONE.root) == (1, done.rotation)
        outcomes = target.commit(slots.id, [0] * (2 * BLOCKS))
        assert outcomes == bytes([PutOutcome.PARENT_MISSING]) * BLOCKS
        assert store.match(handle, keys).blocks == 0


def test_a_namespace_that_was_dropped_takes_nothing() -> None:
    with opened() as store:
        handle, target = store.open_namespace(ONE.canonical()).handle, StoreTarget(store)
        store.drop_namespace(ONE.root)
        assert target.generation(ONE.root) is None
        with pytest.raises(UnknownNamespace):
            target.reserve(handle, chain(1), b"", 0, (), False)
