"""Whole chains of a store: named, listed by use, dropped from their end, refused."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kvstore.core.errors import UnknownNamespace
from kvstore.core.keys import KeyArray
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import ChainSlice, PutOutcome
from tests.unit.tiers.stores import HYBRID, MIB, ONE, keys_of, opened, put


def chain(length: int, branch: int = 0) -> KeyArray:
    return keys_of(ONE, tuple(range(branch * 10_000, branch * 10_000 + length)))


def key(keys: KeyArray, at: int = -1) -> bytes:
    return keys[at].tobytes()


def filled(store: BlockStore, *chains: KeyArray) -> int:
    """Puts chains one after the other; the handle of their namespace."""
    view = store.open_namespace(ONE.canonical())
    session = store.open_session(False)
    end = time.monotonic() + 60
    for keys in chains:
        while (have := store.chains.present(view.handle, keys)) < len(keys):  # memory is made ready bit by bit
            assert time.monotonic() < end
            put(store, session, view, keys, first=have)
    return view.handle


@pytest.mark.parametrize("length", [1, 255, 256, 257, 700])
def test_the_keys_of_a_chain_are_found_from_its_last_one(length: int) -> None:
    with opened(capacity=256 * MIB) as store:
        keys = chain(length)
        handle = filled(store, keys, chain(3, branch=1))
        assert np.array_equal(store.chains.ancestry(handle, key(keys)), keys)
        assert np.array_equal(store.chains.ancestry(handle, key(keys, length // 2)), keys[: length // 2 + 1])
        assert len(store.chains.ancestry(handle, key(chain(9, branch=7)))) == 0
        with pytest.raises(UnknownNamespace):
            store.chains.ancestry(handle + 99, key(keys))


def test_a_block_that_is_being_written_is_no_part_of_a_chain_yet() -> None:
    with opened() as store:
        keys = chain(4)
        handle = filled(store, keys[:3])
        store.reserve(store.open_session(False), handle, ChainSlice(keys[3:], key(keys, 2), 3))
        assert len(store.chains.ancestry(handle, key(keys))) == 0
        assert store.chains.present(handle, keys) == 3
        assert [keys.tobytes() for _, keys in store.chains.ready()] == [keys[:3].tobytes()]


def test_leaves_come_in_the_order_of_their_last_use() -> None:
    with opened() as store:
        chains = [chain(3, branch) for branch in range(4)]
        handle = filled(store, *chains)
        session = store.open_session(False)
        for at in (2, 0, 3, 1):
            lease = store.acquire(session, handle, chains[at], request_id=at + 1).lease
            store.release(session, [lease])
            store.learn()
        found = list(store.chains.leaves())
        assert [one.key for one in found] == [key(chains[at]) for at in (1, 3, 0, 2)]
        assert {(one.handle, one.root, one.blocks) for one in found} == {(handle, ONE.root, 3)}


def test_blocks_that_can_be_read_are_all_told_of_once() -> None:
    with opened() as store:
        handle = filled(store, chain(5), chain(4, 1))
        hybrid = store.open_namespace(HYBRID.canonical())
        put(store, store.open_session(False), hybrid, keys_of(HYBRID, tuple(range(3))))
        seen: dict[bytes, set[bytes]] = {}
        for root, keys in store.chains.ready():
            mine = {one.tobytes() for one in keys}
            assert not mine & seen.get(root, set())
            seen[root] = seen.get(root, set()) | mine
        expected = {one.tobytes() for one in np.concatenate((chain(5), chain(4, 1)))}
        assert seen == {ONE.root: expected, HYBRID.root: {k.tobytes() for k in keys_of(HYBRID, tuple(range(3)))}}
        store.evict(handle, chain(5))
        assert sum(len(keys) for root, keys in store.chains.ready() if root == ONE.root) == 4


def test_the_end_of_a_chain_is_dropped_up_to_where_others_go_on() -> None:
    with opened() as store:
        keys = chain(6)
        twig = keys_of(ONE, (0, 1, 2, 77))
        handle = filled(store, keys, twig)
        assert store.chains.drop(handle, keys) == 3  # blocks 5, 4, 3; block 2 is under the twig
        assert store.chains.present(handle, keys) == 3
        assert store.chains.present(handle, twig) == 4


def test_leased_and_pinned_blocks_are_not_dropped() -> None:
    with opened() as store:
        keys = chain(6)
        handle = filled(store, keys)
        session = store.open_session(False)
        lease = store.acquire(session, handle, keys[:4], first_block=3).lease
        assert store.chains.drop(handle, keys) == 2
        store.release(session, [lease])
        store.pin(handle, keys[:2], hard=True)
        assert store.chains.drop(handle, keys[:4]) == 2
        assert store.chains.present(handle, keys) == 2


def test_a_store_that_refuses_new_blocks_still_serves_what_it_has() -> None:
    with opened() as store:
        keys = chain(6)
        handle = filled(store, keys[:3])
        store.chains.refuse(True)
        made = store.reserve(store.open_session(False), handle, ChainSlice(keys))
        assert list(made.outcomes) == [PutOutcome.PRESENT] * 3 + [PutOutcome.NO_SPACE] * 3
        assert store.match(handle, keys).blocks == 3
        store.chains.refuse(False)
        again = store.reserve(store.open_session(False), handle, ChainSlice(keys))
        assert list(again.outcomes) == [PutOutcome.PRESENT] * 3 + [PutOutcome.STORED] * 3


def test_the_node_itself_stores_for_its_readers_where_new_blocks_are_refused() -> None:
    with opened() as store:
        keys = chain(3)
        handle = filled(store)
        store.chains.refuse(True)
        session = store.open_session(False)
        session.own = True
        assert list(store.reserve(session, handle, ChainSlice(keys)).outcomes) == [PutOutcome.STORED] * 3
