"""Making room: leaves first, whole branches on demand, between watermarks, and never under a lease."""

from __future__ import annotations

import time

import numpy as np

from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.tiers.values import ChainSlice, PutOutcome
from tests.unit.tiers.stores import MIB, ONE, TWO, audit, keys_of, opened, put


def test_evicting_an_inner_block_drops_its_branch_and_nothing_else() -> None:
    with opened() as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        for path in ((1, 2, 3), (1, 2, 4, 5), (1, 6), (7,)):
            put(store, session, view, keys_of(ONE, path))
        assert store.evict(view.handle, keys_of(ONE, (1, 2))[1:]) == (4, 0, 0)
        assert store.match(view.handle, keys_of(ONE, (1, 6))).blocks == 2
        assert store.match(view.handle, keys_of(ONE, (1, 2))).blocks == 1
        assert store.match(view.handle, keys_of(ONE, (7,))).blocks == 1
        assert store.evict(view.handle, keys_of(ONE, (1, 2, 3))) == (2, 0, 2)
        audit(store)


def test_evicting_a_chain_counts_what_a_lease_still_keeps() -> None:
    with opened() as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        keys = keys_of(ONE, (1, 2, 3))
        put(store, session, view, keys)
        store.acquire(session, view.handle, keys, first_block=2)
        assert store.evict(view.handle, keys) == (3, 1, 0)
        assert store.stat().tiers[0].slots_used == 1
        store.close_session(session)
        assert store.stat().tiers[0].slots_used == 0
        audit(store)


def test_a_branch_of_thousands_of_blocks_goes_in_pieces() -> None:
    spec = NamespaceSpec("long", 1, 4096)
    with opened() as store:
        view, session = store.open_namespace(spec.canonical()), store.open_session(False)
        keys = np.random.default_rng(3).integers(0, 2**63, (2000, 2)).astype(np.uint64)
        reserved = store.reserve(session, view.handle, ChainSlice(keys))
        store.commit(session, reserved.id, np.zeros(2000, np.uint64))
        assert store.evict(view.handle, keys[:1]) == (2000, 0, 0)
        assert store.stat().blocks == 0
        audit(store)


def test_the_eviction_thread_keeps_the_store_between_its_watermarks() -> None:
    with opened(high_watermark=0.8, low_watermark=0.5) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        while store.dram.growing:
            time.sleep(0.01)
        slots = store.stat().tiers[0].segments * (MIB // 102_400)
        fill = int(slots * 0.79)
        for number in range(fill):
            put(store, session, view, keys_of(ONE, (number,)))
        time.sleep(0.2)
        assert store.stat().blocks == fill
        for number in range(fill, slots):
            put(store, session, view, keys_of(ONE, (number,)))
        deadline = time.monotonic() + 20
        while store.stat().blocks > 0.8 * slots and time.monotonic() < deadline:
            time.sleep(0.02)
        assert 0.3 * slots <= store.stat().blocks <= 0.8 * slots
        assert store.stat().counters["dropped_blocks_evicted"] > 0
        assert store.match(view.handle, keys_of(ONE, (slots - 1,))).blocks == 1
        audit(store)


def test_block_sizes_can_change_when_the_store_is_full() -> None:
    large = NamespaceSpec("large", 4, parts=(PartSpec("0", 500_000),))
    small = NamespaceSpec("small", 4, parts=(PartSpec("0", 4096),))
    with opened(capacity=5 * MIB) as store:
        session = store.open_session(False)
        for spec in (large, small, large):
            view = store.open_namespace(spec.canonical())
            for number in range(100):
                assert put(store, session, view, keys_of(spec, (number, 1)))[0][0] == PutOutcome.STORED
            assert store.match(view.handle, keys_of(spec, (99,))).blocks == 1
            audit(store)


def test_a_leased_block_keeps_its_segment_from_serving_another_size() -> None:
    large = NamespaceSpec("large", 4, parts=(PartSpec("0", 1_000_000),))
    small = NamespaceSpec("small", 4, parts=(PartSpec("0", 4096),))
    with opened(capacity=5 * MIB, max_leased_bytes=64 * MIB) as store:
        session = store.open_session(False)
        view, other = store.open_namespace(large.canonical()), store.open_namespace(small.canonical())
        number = 0
        while put(store, session, view, keys_of(large, (number,)))[0][0] == PutOutcome.STORED:
            assert store.acquire(session, view.handle, keys_of(large, (number,))).lease
            number += 1
        assert put(store, session, other, keys_of(small, (1,)))[0][0] == PutOutcome.NO_SPACE
        leases = sorted(session.leases)
        store.release(session, leases[:1])
        assert put(store, session, other, keys_of(small, (1,)))[0][0] == PutOutcome.STORED
        audit(store)


def test_purge_drops_every_block_and_keeps_the_namespaces() -> None:
    with opened() as store:
        session = store.open_session(False)
        for spec in (ONE, TWO):
            put(store, session, store.open_namespace(spec.canonical()), keys_of(spec, (1, 2)))
        assert store.purge() == (4, 0)
        assert (store.stat().blocks, len(store.namespaces())) == (0, 2)
        audit(store)
