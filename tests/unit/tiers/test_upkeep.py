"""Namespaces rotate, expire and give way; blocks at rest are checked."""

from __future__ import annotations

import time

import pytest

from kvstore.core.errors import Busy, UnknownNamespace
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.scrubbing import Scrubber
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import ChainSlice, NamespaceView, PutOutcome
from tests.unit.tiers.stores import ONE, TWO, audit, fill, keys_of, opened, put, read, small

CHAIN = tuple(range(8))


def filled(store: BlockStore, spec: NamespaceSpec = ONE, path: tuple[int, ...] = CHAIN) -> NamespaceView:
    session, view = store.open_session(False), store.open_namespace(spec.canonical())
    put(store, session, view, keys_of(spec, path))
    store.close_session(session)
    return view


def unused(store: BlockStore, spec: NamespaceSpec, seconds: float) -> None:
    store._state.namespaces.by_root(spec.root).used = time.time() - seconds


def blocks_of(store: BlockStore, spec: NamespaceSpec) -> int:
    return sum(one.blocks for one in store.namespaces() if one.root == spec.root)


# --- rotation -------------------------------------------------------------------------------------------------


def test_a_rotated_namespace_is_empty_under_the_same_handle_and_another_generation() -> None:
    with opened() as store:
        view, other = filled(store), filled(store, TWO)
        assert store.rotate_namespace(view.root)[:3] == (8, 0, 1)
        assert store.match(view.handle, keys_of(ONE, CHAIN)).blocks == 0
        assert store.match(other.handle, keys_of(TWO, CHAIN)).blocks == 8
        filled(store)
        assert store.match(view.handle, keys_of(ONE, CHAIN)).blocks == 8
        assert store.rotate_namespace(view.root).generation == 2
        with pytest.raises(UnknownNamespace):
            store.rotate_namespace(bytes(16))
        audit(store)


def test_a_put_begun_before_a_rotation_is_lost_and_a_lease_keeps_its_bytes() -> None:
    with opened() as store:
        view, session, keys = filled(store), store.open_session(False), keys_of(ONE, CHAIN)
        got = store.acquire(session, view.handle, keys)
        before = read(store, view, got.offsets)
        late = keys_of(ONE, (77,))
        reserved = store.reserve(session, view.handle, ChainSlice(late))
        assert store.rotate_namespace(view.root)[:3] == (9, 9, 1)
        sums, _ = fill(store, view, late, (0,), reserved, 5)
        assert store.commit(session, reserved.id, sums) == bytes([PutOutcome.PARENT_MISSING])
        assert read(store, view, got.offsets) == before
        assert store.stat().blocks == 1 * 8  # leased, found by nobody
        store.release(session, [got.lease])
        assert store.stat().blocks == 0
        audit(store)


def test_who_comes_during_a_rotation_is_told_to_try_again() -> None:
    with opened() as store:
        view, names = filled(store), store._state.namespaces
        space = names.by_root(view.root)
        with store._state.lock:
            names.start_rotation(space, (1, 7))
        with pytest.raises(Busy):
            store.open_namespace(ONE.canonical())
        with pytest.raises(Busy):
            store.rotate_namespace(view.root)
        with pytest.raises(UnknownNamespace):
            store.match(view.handle, keys_of(ONE, CHAIN))
        with store._state.lock:
            names.finish_rotation(space)
        assert store.open_namespace(ONE.canonical()).handle == view.handle


def test_the_generation_survives_a_restart() -> None:
    config = small()
    with opened(config) as store:
        view = filled(store)
        store.rotate_namespace(view.root)
        filled(store)
        store.close()
        with opened(config) as again:
            assert [(one.generation, one.blocks) for one in again.namespaces()] == [(1, 8)]


# --- unused ones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lru", "turnscore"])
def test_blocks_of_unused_namespaces_go_first_and_completely(policy: str) -> None:
    with opened(policy=policy, namespace_idle=100.0) as store:
        filled(store, ONE, (1,))
        filled(store, TWO, tuple(range(20)))  # newer, but nobody uses it
        unused(store, TWO, 1000)
        session, view = store.open_session(False), store.open_namespace(ONE.canonical())
        at = 0
        while blocks_of(store, TWO):
            at += 1
            assert at < 400
            put(store, session, view, keys_of(ONE, (1000 + at,)))
            assert store.match(view.handle, keys_of(ONE, (1,))).blocks == 1 or not blocks_of(store, TWO)
        audit(store)


def test_unused_namespaces_keep_what_is_pinned() -> None:
    with opened(namespace_idle=100.0, namespace_ttl=500.0) as store:
        view = filled(store, TWO)
        store.pin(view.handle, keys_of(TWO, CHAIN[:3]), hard=True)
        unused(store, TWO, 1000)
        session, mine = store.open_session(False), store.open_namespace(ONE.canonical())
        for at in range(300):
            put(store, session, mine, keys_of(ONE, (1000 + at,)))
        store._upkeep.lifecycle.expire()
        assert blocks_of(store, TWO) == 3
        audit(store)


def test_a_namespace_expires_when_nobody_used_it_for_long() -> None:
    with opened(namespace_ttl=500.0) as store:
        filled(store, ONE)
        filled(store, TWO)
        unused(store, TWO, 400)
        store._upkeep.lifecycle.expire()
        assert blocks_of(store, TWO) == 8
        unused(store, TWO, 600)
        store._upkeep.lifecycle.expire()
        assert [one.spec.model for one in store.namespaces()] == ["one"]
        assert store.stat().counters["namespaces_expired"] == 1


def test_sizes_are_told_by_tier() -> None:
    with opened() as store:
        filled(store, ONE)
        stat = store.stat().namespaces[0]
        assert stat.tier_bytes == ((TierKind.DRAM, 8 * ONE.parts[0].bytes),)


# --- decay --------------------------------------------------------------------------------------------------------


def damage(store: BlockStore, spec: NamespaceSpec, path: tuple[int, ...], part: int = 0) -> None:
    state = store._state
    space = state.namespaces.by_root(spec.root)
    row = int(state.index.find(space.id, keys_of(spec, path))[-1])
    slot = state.index.parts.slot_at[0][state.index.part_row(row, part)]
    state.dram.place(slot, 1)[0] ^= 4


def test_the_scrubber_finds_flipped_bits_in_any_part_and_drops_what_hangs_on_them() -> None:
    with opened() as store:
        one, two = filled(store, ONE), filled(store, TWO)
        damage(store, ONE, CHAIN[:5])
        damage(store, TWO, CHAIN, part=1)
        assert store._upkeep.scrubber is not None
        assert store._upkeep.scrubber.scrub_all() == 2
        assert store.match(one.handle, keys_of(ONE, CHAIN)).blocks == 4
        assert store.match(two.handle, keys_of(TWO, CHAIN)).blocks == 7
        assert store._upkeep.scrubber.scrub_all() == 0
        assert store.stat().counters["scrub_failed_blocks"] == 2
        audit(store)


def test_a_pass_verifies_what_a_restart_brought_back() -> None:
    config = small()
    with opened(config) as store:
        filled(store, TWO)
        store.close()
        with opened(config) as again:
            assert again.stat().unverified == 16
            assert again._upkeep.scrubber is not None
            again._upkeep.scrubber.scrub_all()
            assert again.stat().unverified == 0


def test_the_rate_is_kept() -> None:
    with opened() as store:
        filled(store, ONE)
        scrubber = Scrubber(store._state, rate=10 * ONE.parts[0].bytes, interval=0.0)
        waits = [scrubber.step() for _ in CHAIN]
        assert sum(wait > 0 for wait in waits) == 0  # a second of unused rate is caught up
        for _ in range(20):
            scrubber._cursor = 0
            waits.append(scrubber.step())
        assert waits[-1] > 0.5  # blocks come far faster than the rate
