"""Pins: soft ones are the last to go, hard ones never go, within bounds and for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest

from kvstore.core.errors import InvalidArgument, NoSpace
from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.tiers.index import HARD_PIN, SOFT_PIN
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import NamespaceView
from tests.unit.tiers.stores import MIB, ONE, TWO, audit, keys_of, opened, put, small

BLOCK = ONE.parts[0].bytes
CHAIN = tuple(range(10))


def filled(store: BlockStore, path: tuple[int, ...] = CHAIN, spec: NamespaceSpec = ONE) -> NamespaceView:
    session, view = store.open_session(False), store.open_namespace(spec.canonical())
    put(store, session, view, keys_of(spec, path))
    store.close_session(session)
    return view


def storm(store: BlockStore, chains: int = 250) -> None:
    """Twice what the store can hold."""
    session, view = store.open_session(False), store.open_namespace(ONE.canonical())
    for at in range(chains):
        put(store, session, view, keys_of(ONE, (10_000 + at,)))
    store.close_session(session)


def here(store: BlockStore, path: tuple[int, ...] = CHAIN, spec: NamespaceSpec = ONE) -> int:
    return store.match(store.open_namespace(spec.canonical()).handle, keys_of(spec, path)).blocks


policies = pytest.mark.parametrize("policy", ["lru", "turnscore"])


@policies
def test_what_is_not_pinned_goes(policy: str) -> None:
    with opened(policy=policy) as store:
        filled(store)
        storm(store)
        assert here(store) < len(CHAIN)


@policies
def test_hard_pinned_blocks_never_go(policy: str) -> None:
    with opened(policy=policy) as store:
        view = filled(store)
        assert store.pin(view.handle, keys_of(ONE, CHAIN), hard=True) == len(CHAIN)
        storm(store)
        assert here(store) == len(CHAIN)
        assert store.stat().pins.hard_bytes == len(CHAIN) * BLOCK
        audit(store)


@policies
def test_soft_pinned_blocks_go_last_but_go(policy: str) -> None:
    with opened(policy=policy) as store:
        view = filled(store)
        assert store.pin(view.handle, keys_of(ONE, CHAIN)) == len(CHAIN)
        storm(store)
        assert here(store) == len(CHAIN)
        session = store.open_session(False)
        for at in range(250):
            keys = keys_of(ONE, (50_000 + at,))
            put(store, session, view, keys)
            store.pin(view.handle, keys)
        assert here(store) < len(CHAIN)
        audit(store)


@policies
def test_a_lifted_pin_lets_blocks_go(policy: str) -> None:
    with opened(policy=policy) as store:
        view = filled(store)
        store.pin(view.handle, keys_of(ONE, CHAIN), hard=True)
        storm(store)
        assert store.unpin(view.handle, keys_of(ONE, CHAIN)) == len(CHAIN)
        assert store.unpin(view.handle, keys_of(ONE, CHAIN)) == 0
        storm(store, 500)
        assert here(store) < len(CHAIN)
        assert store.stat().pins.hard_bytes == 0


def test_hard_pins_past_the_bound_of_the_node_are_refused_whole() -> None:
    with opened(max_pinned_bytes=5 * BLOCK) as store:
        view = filled(store)
        with pytest.raises(NoSpace, match="max_pinned_bytes"):
            store.pin(view.handle, keys_of(ONE, CHAIN), hard=True)
        assert store.stat().pins.hard_blocks == 0
        assert store.pin(view.handle, keys_of(ONE, CHAIN[:5]), hard=True) == 5
        assert store.pin(view.handle, keys_of(ONE, CHAIN[:5]), hard=True) == 5  # again: nothing more
        with pytest.raises(NoSpace):
            store.pin(view.handle, keys_of(ONE, CHAIN[:6]), hard=True)
        assert store.stat().counters["pins_refused"] == 2


def test_each_tenant_has_a_bound_of_its_own() -> None:
    other = NamespaceSpec("one", 4, parts=(PartSpec("0", BLOCK),), tenant="other")
    with opened(max_pinned_bytes=8 * BLOCK, max_pinned_bytes_tenant=5 * BLOCK) as store:
        view, theirs = filled(store), filled(store, spec=other)
        store.pin(view.handle, keys_of(ONE, CHAIN[:5]), hard=True)
        with pytest.raises(NoSpace, match="tenant"):
            store.pin(view.handle, keys_of(ONE, CHAIN[:6]), hard=True)
        assert store.pin(theirs.handle, keys_of(other, CHAIN[:3]), hard=True) == 3
        with pytest.raises(NoSpace, match="of this node"):
            store.pin(theirs.handle, keys_of(other, CHAIN[:4]), hard=True)


def test_a_hard_pin_needs_the_blocks_before_it() -> None:
    with opened() as store:
        view, keys = filled(store), keys_of(ONE, CHAIN)
        assert store.pin(view.handle, keys[5:], hard=True) == 0
        assert store.pin(view.handle, keys[:5], hard=True) == 5
        assert store.pin(view.handle, keys[5:8], hard=True) == 3
        assert store.unpin(view.handle, keys[:8:2]) == 0  # others hang on them
        assert store.unpin(view.handle, keys[7:8]) == 1
        assert store.unpin(view.handle, keys[:7]) == 7
        assert store.stat().pins.hard_bytes == 0


def test_a_pin_can_become_harder_and_softer() -> None:
    with opened() as store:
        view, keys = filled(store), keys_of(ONE, CHAIN)
        store.pin(view.handle, keys)
        assert store.stat().pins.soft_blocks == 10
        store.pin(view.handle, keys[:4], hard=True)
        assert (store.stat().pins.soft_blocks, store.stat().pins.hard_blocks) == (6, 4)
        store.pin(view.handle, keys[3:4])
        assert (store.stat().pins.soft_blocks, store.stat().pins.hard_blocks) == (7, 3)


@pytest.mark.parametrize("drop", ["evict", "purge", "namespace", "rotate"])
def test_explicit_requests_win(drop: str) -> None:
    with opened() as store:
        view, keys = filled(store), keys_of(ONE, CHAIN)
        store.pin(view.handle, keys, hard=True)
        act: dict[str, Callable[[], object]] = {
            "evict": lambda: store.evict(view.handle, keys[:1]), "purge": store.purge,
            "namespace": lambda: store.drop_namespace(view.root), "rotate": lambda: store.rotate_namespace(view.root),
        }  # fmt: skip
        act[drop]()
        assert here(store) == 0
        stat = store.stat().pins
        assert (stat.hard_blocks, stat.hard_bytes) == (0, 0)
        audit(store)


def test_a_pin_ends_when_its_time_is_over() -> None:
    with opened() as store:
        view, keys = filled(store), keys_of(ONE, CHAIN)
        store.pin(view.handle, keys, hard=True, ttl=100)
        store.pin(view.handle, keys[:2], hard=True, ttl=500)
        with mock.patch("kvstore.tiers.pins.time.time", return_value=time.time() + 200):
            store._state.pins.expire()
        assert store.stat().pins.hard_blocks == 2
        with mock.patch("kvstore.tiers.pins.time.time", return_value=time.time() + 600):
            store._state.pins.expire()
        assert store.stat().pins.hard_blocks == 0
        assert store.stat().counters["pins_expired"] == 10


def test_a_pin_outlives_a_shorter_one_of_a_block_before_it() -> None:
    with opened() as store:
        view, keys = filled(store), keys_of(ONE, CHAIN)
        store.pin(view.handle, keys, hard=True, ttl=1000)
        store.pin(view.handle, keys[:3], hard=True, ttl=10)
        with mock.patch("kvstore.tiers.pins.time.time", return_value=time.time() + 20):
            store._state.pins.expire()
        assert store.stat().pins.hard_blocks == len(CHAIN)


@pytest.mark.parametrize("ttl", [-1.0, float("nan"), float("inf")])
def test_a_senseless_time_is_refused(ttl: float) -> None:
    with opened() as store:
        view = filled(store)
        with pytest.raises(InvalidArgument, match="0 \\(for good\\) or more"):
            store.pin(view.handle, keys_of(ONE, CHAIN), ttl=ttl)


def test_pins_survive_a_restart() -> None:
    config = small()
    with opened(config) as store:
        one, two = filled(store), filled(store, spec=TWO)
        store.pin(one.handle, keys_of(ONE, CHAIN[:4]), hard=True)
        store.pin(one.handle, keys_of(ONE, CHAIN)[4:], ttl=1000)
        store.pin(two.handle, keys_of(TWO, CHAIN[:3]), ttl=1)
        store.pin(two.handle, keys_of(TWO, CHAIN)[3:5])
        store.unpin(two.handle, keys_of(TWO, CHAIN)[4:5])
        store.close()
        with mock.patch("kvstore.tiers.pins.time.time", return_value=time.time() + 10), opened(config) as again:
            stat = again.stat()
            assert stat.pins.hard_blocks == 4
            assert stat.pins.soft_blocks == 6 + 1
            assert stat.blocks == 20
            index = again._state.index
            space = again._state.namespaces.by_root(ONE.root)
            rows = index.find(space.id, keys_of(ONE, CHAIN))
            assert index.pins[rows].tolist() == [HARD_PIN] * 4 + [SOFT_PIN] * 6
            storm(again)
            assert here(again) == len(CHAIN)
            audit(again)


def test_a_torn_note_of_a_pin_costs_the_pin_and_not_the_block() -> None:
    config = small()
    with opened(config) as store:
        view = filled(store)
        store.pin(view.handle, keys_of(ONE, CHAIN), hard=True)
        state = store._state
        rows = state.index.find(0, keys_of(ONE, CHAIN))
        slots = state.index.parts.slot[0][state.index.first_part[rows]]
        words = state.dram._headers.first_words(slots[:1]) + 15
        state.file.words[words] ^= np.uint64(1 << 50)
        store.close()
        with opened(config) as again:
            assert again.stat().blocks == len(CHAIN)
            assert again.stat().pins.hard_blocks == 0  # those after it hang on it
            audit(again)


def test_blocks_under_hard_pins_are_moved_when_their_segment_is_wanted() -> None:
    little = NamespaceSpec("little", 4, parts=(PartSpec("0", 30_000),))
    with opened(small(24 * MIB)) as store:
        view = filled(store)
        store.pin(view.handle, keys_of(ONE, CHAIN), hard=True)
        storm(store, 300)
        session, other = store.open_session(False), store.open_namespace(little.canonical())
        for at in range(1500):
            put(store, session, other, keys_of(little, (at,)))
        assert here(store) == len(CHAIN)
        audit(store)
