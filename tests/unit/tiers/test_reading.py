"""Matching and acquiring: prefixes by part, leases that hold, misses that say why."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.core.errors import InvalidArgument, MisalignedRange, SessionLost
from kvstore.core.keys import key_array
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import ChainSlice, MissReason
from tests.unit.tiers.stores import HYBRID, ONE, TWO, audit, keys_of, opened, put, read, sums_of


@pytest.fixture
def store():  # type: ignore[no-untyped-def]
    with opened() as found:
        yield found
        audit(found)


def test_a_chain_is_found_as_far_as_it_goes(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    put(store, session, view, keys_of(ONE, (1, 2, 3)))
    found = store.match(view.handle, keys_of(ONE, (1, 2, 3, 4)))
    assert (found.blocks, found.miss, found.tiers) == (3, MissReason.ABSENT, ((TierKind.DRAM, 3),))
    assert store.match(view.handle, keys_of(ONE, (1, 2))).miss == MissReason.NONE
    assert store.match(view.handle, keys_of(ONE, (2, 2))).blocks == 0
    assert store.match(view.handle, keys_of(ONE, ())).blocks == 0


def test_what_is_acquired_are_the_bytes_and_checksums_committed_under_the_address(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(TWO.canonical()), store.open_session(True)
    keys = keys_of(TWO, (1, 2, 3))
    _, written = put(store, session, view, keys)
    found = store.acquire(session, view.handle, keys, first_block=1)
    want = [written[keys[at].tobytes(), part] for at in (1, 2) for part in (0, 1)]
    assert read(store, view, found.offsets) == want
    sums = [
        sums_of(TWO, keys[at].tobytes(), part, written[keys[at].tobytes(), part]) for at in (1, 2) for part in (0, 1)
    ]
    assert found.checksums.tolist() == [one for block in sums for one in block]
    assert (found.blocks, found.prefix_blocks, len(found.generations)) == (3, 3, 4)
    assert store.release(session, [found.lease, found.lease]) == [True, False]


def test_a_range_gives_the_checksums_of_its_chunks(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(TWO.canonical()), store.open_session(False)
    keys = keys_of(TWO, (1, 2))
    _, written = put(store, session, view, keys)
    found = store.acquire(session, view.handle, keys, parts=(1,), range_offset=3000, range_length=6000)
    want = [sums_of(TWO, key.tobytes(), 1, written[key.tobytes(), 1])[1:] for key in keys]
    assert found.checksums.tolist() == want[0] + want[1]
    with pytest.raises(MisalignedRange, match="3000-byte chunks"):
        store.acquire(session, view.handle, keys, parts=(1,), range_offset=1, range_length=2)


def test_parts_are_found_each_for_itself(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(TWO.canonical()), store.open_session(False)
    keys = keys_of(TWO, (1, 2, 3))
    put(store, session, view, keys, parts=(0,))
    put(store, session, view, keys[:2], parts=(1,))
    found = store.match(view.handle, keys)
    assert (found.blocks, found.miss, [part.blocks for part in found.parts]) == (2, MissReason.PART, [3, 2])
    assert store.match(view.handle, keys, parts=(0,)).blocks == 3
    assert store.acquire(session, view.handle, keys).miss == MissReason.PART
    assert store.acquire(session, view.handle, keys, parts=(0,)).blocks == 3


def test_window_parts_may_have_holes(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(HYBRID.canonical()), store.open_session(True)
    keys = keys_of(HYBRID, (1, 2, 3))
    _, written = put(store, session, view, keys, parts=(0,))
    reserved = store.reserve(session, view.handle, ChainSlice(keys[2:], keys[1].tobytes(), 2), (1,))
    store.dram.writable(int(reserved.offsets[0]), 4096)[:] = b"w" * 4096
    sums = sums_of(HYBRID, keys[2].tobytes(), 1, b"w" * 4096)
    store.commit(session, reserved.id, np.array(sums, np.uint64))
    match = store.match(view.handle, keys)
    assert match.blocks == 3
    assert (match.parts[1].blocks, match.parts[1].present) == (0, bytes([0b100]))
    found = store.acquire(session, view.handle, keys)
    whole = [written[key.tobytes(), 0] for key in keys]
    assert read(store, view, found.offsets) == [whole[0], b"", whole[1], b"", whole[2], b"w" * 4096]
    assert found.generations[1] == found.offsets[1] == 0
    assert found.checksums.tolist()[-1] == sums[0]


def test_a_block_being_written_is_pending_and_not_found(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    put(store, session, view, keys_of(ONE, (1,)))
    store.reserve(session, view.handle, ChainSlice(keys_of(ONE, (1, 2))[1:], keys_of(ONE, (1,))[0].tobytes(), 1))
    found = store.acquire(session, view.handle, keys_of(ONE, (1, 2)))
    assert (found.blocks, found.miss) == (1, MissReason.PENDING)


def test_a_leased_block_that_is_evicted_is_gone_for_others_and_stays_for_its_holder(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    keys = keys_of(ONE, (1, 2))
    _, written = put(store, session, view, keys, seed=1)
    found = store.acquire(session, view.handle, keys)
    assert store.evict(view.handle, keys) == (2, 2, 0)
    assert store.match(view.handle, keys).blocks == 0
    _, rewritten = put(store, session, view, keys, seed=2)
    assert read(store, view, found.offsets) == list(written.values())
    again = store.acquire(session, view.handle, keys)
    assert read(store, view, again.offsets) == list(rewritten.values())
    assert store.release(session, [found.lease]) == [True]


def test_only_what_lies_within_the_limits_of_the_session_is_leased() -> None:
    with opened(max_leased_slots=64, max_leased_bytes=450_000) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(True)
        other = store.open_session(True)
        keys = keys_of(ONE, tuple(range(6)))
        put(store, other, view, keys[:4])
        put(store, other, view, keys, first=4)
        found = store.acquire(session, view.handle, keys)
        assert (found.blocks, found.prefix_blocks, found.miss) == (4, 6, MissReason.BUSY)
        none = store.acquire(session, view.handle, keys)
        assert (none.lease, none.blocks, none.miss) == (0, 0, MissReason.BUSY)
        store.release(session, [found.lease])
        assert store.acquire(session, view.handle, keys, first_block=2).blocks == 6


def test_max_blocks_bounds_the_lease_and_the_prefix_is_told_whole(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    keys = keys_of(ONE, (1, 2, 3, 4))
    put(store, session, view, keys)
    found = store.acquire(session, view.handle, keys, first_block=1, max_blocks=2)
    assert (found.blocks, found.prefix_blocks, len(found.offsets), found.miss) == (3, 4, 2, MissReason.NONE)
    beyond = store.acquire(session, view.handle, keys, first_block=4)
    assert (beyond.lease, beyond.blocks, beyond.prefix_blocks) == (0, 4, 4)


def test_long_chains_are_found_and_leased_whole() -> None:
    spec = NamespaceSpec("long", 1, 4096)
    with opened() as store:
        view, session = store.open_namespace(spec.canonical()), store.open_session(True)
        keys = key_array(np.random.default_rng(1).bytes(16 * 1000))
        reserved = store.reserve(session, view.handle, ChainSlice(keys))
        assert len(reserved.offsets) == len(set(reserved.offsets.tolist())) == 1000
        store.commit(session, reserved.id, np.arange(1000, dtype=np.uint64))
        assert store.match(view.handle, keys, request_id=3).blocks == 1000
        found = store.acquire(session, view.handle, keys, first_block=300)
        assert found.offsets.tolist() == reserved.offsets.tolist()[300:]
        assert found.checksums.tolist() == list(range(300, 1000))
        assert store.stat().leased_blocks == 700
        audit(store)
        store.release(session, [found.lease])
        assert store.stat().leased_blocks == 0


def test_a_key_at_another_place_of_the_chain_is_no_hit(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    keys = keys_of(ONE, (1, 2))
    put(store, session, view, keys)
    assert store.match(view.handle, keys[1:]).miss == MissReason.ABSENT
    twice = store.acquire(session, view.handle, np.concatenate((keys, keys)))
    assert twice.blocks == 2


def test_bad_arguments_are_refused_and_change_nothing(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(TWO.canonical()), store.open_session(False)
    keys = keys_of(TWO, (1,))
    for parts in ((2,), (0, 0), (-1,)):
        with pytest.raises(InvalidArgument, match="part"):
            store.acquire(session, view.handle, keys, parts=parts)
    with pytest.raises(InvalidArgument, match="first_block"):
        store.acquire(session, view.handle, keys, first_block=-1)
    store.close_session(session)
    with pytest.raises(SessionLost):
        store.acquire(session, view.handle, keys)


def test_reads_are_counted_by_result(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    put(store, session, view, keys_of(ONE, (1, 2)))
    store.acquire(session, view.handle, keys_of(ONE, (1, 2, 3, 4)))
    counters = store.stat().counters
    assert (counters["hit_blocks"], counters["miss_blocks_absent"], counters["acquire_calls"]) == (2, 2, 1)
