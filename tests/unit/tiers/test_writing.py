"""Reserve, commit, abort: nobody sees half a block, nobody's bytes are overwritten, every key gets its outcome."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from kvstore.core.errors import BadKey, InvalidArgument, SessionLost, Unsupported
from kvstore.core.keys import KeyArray, key_array
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import AckLevel, ChainSlice, MissReason, NamespaceView, PutOutcome
from tests.unit.tiers.stores import MIB, ONE, TWO, audit, fill, keys_of, opened, put, read

STORED, PRESENT, PENDING = PutOutcome.STORED, PutOutcome.PRESENT, PutOutcome.PENDING
NO_SPACE, PARENT_MISSING, BUSY = PutOutcome.NO_SPACE, PutOutcome.PARENT_MISSING, PutOutcome.BUSY


@pytest.fixture
def store():  # type: ignore[no-untyped-def]
    with opened() as found:
        yield found
        audit(found)


def test_nothing_is_visible_before_the_commit_and_everything_after_it(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(True)
    keys = keys_of(ONE, (1, 2))
    reserved = store.reserve(session, view.handle, ChainSlice(keys))
    sums, written = fill(store, view, keys, (0,), reserved, 1)
    assert store.match(view.handle, keys).miss == MissReason.PENDING
    assert (store.stat().writing, store.stat().blocks) == (2, 0)
    assert store.commit(session, reserved.id, sums) == bytes([STORED, STORED])
    found = store.acquire(session, view.handle, keys)
    assert read(store, view, found.offsets) == list(written.values())
    assert (store.stat().writing, store.stat().blocks) == (0, 2)


def test_present_keys_and_those_of_another_writer_are_not_rewritten(store) -> None:  # type: ignore[no-untyped-def]
    view, session, other = store.open_namespace(ONE.canonical()), store.open_session(False), store.open_session(False)
    keys = keys_of(ONE, (1, 2, 3))
    put(store, session, view, keys[:1])
    store.reserve(other, view.handle, ChainSlice(keys[1:2], keys[0].tobytes(), 1))
    reserved = store.reserve(session, view.handle, ChainSlice(keys))
    assert reserved.outcomes == bytes([PRESENT, PENDING, STORED])
    assert len(reserved.offsets) == 1
    assert store.reserve(session, view.handle, ChainSlice(keys)).id == 0


def test_a_put_without_its_parent_stores_nothing(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    keys = keys_of(ONE, (1, 2, 3))
    assert put(store, session, view, keys, first=1)[0] == bytes([PARENT_MISSING] * 2)
    put(store, session, view, keys)
    store.evict(view.handle, keys[2:])
    assert put(store, session, view, keys, first=2)[0] == bytes([STORED])


def test_a_commit_whose_parent_went_meanwhile_drops_its_blocks(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(True)
    keys = keys_of(ONE, (1, 2, 3))
    put(store, session, view, keys[:1])
    reserved = store.reserve(session, view.handle, ChainSlice(keys[1:], keys[0].tobytes(), 1))
    sums, _ = fill(store, view, keys[1:], (0,), reserved, 1)
    store.evict(view.handle, keys[:1])
    assert store.commit(session, reserved.id, sums) == bytes([PARENT_MISSING] * 2)
    assert store.stat().tiers[0].used_bytes == 0


def test_an_aborted_block_takes_along_what_another_writer_hung_on_it(store) -> None:  # type: ignore[no-untyped-def]
    view, first, second = store.open_namespace(ONE.canonical()), store.open_session(False), store.open_session(False)
    keys = keys_of(ONE, (1, 2, 3))
    mine = store.reserve(first, view.handle, ChainSlice(keys[:1]))
    put(store, second, view, keys, first=1)
    assert store.match(view.handle, keys).blocks == 0
    store.abort(first, mine.id)
    assert store.stat().blocks == 0
    assert store.stat().tiers[0].used_bytes == 0


def test_writers_of_different_parts_of_one_block_do_not_meet(store) -> None:  # type: ignore[no-untyped-def]
    view, ranks = store.open_namespace(TWO.canonical()), [store.open_session(True), store.open_session(True)]
    keys = keys_of(TWO, (1, 2))
    reserved = [store.reserve(ranks[part], view.handle, ChainSlice(keys), (part,)) for part in (0, 1)]
    assert all(one.outcomes == bytes([STORED] * 2) for one in reserved)
    for part in (0, 1):
        sums, _ = fill(store, view, keys, (part,), reserved[part], part)
        assert store.match(view.handle, keys).blocks == 0
        store.commit(ranks[part], reserved[part].id, sums)
    assert store.match(view.handle, keys).blocks == 2


def test_a_put_of_all_parts_keeps_those_that_are_there_already(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(TWO.canonical()), store.open_session(True)
    keys = keys_of(TWO, (1,))
    _, early = put(store, session, view, keys, parts=(1,), seed=1)
    _, late = put(store, session, view, keys, seed=2)
    found = store.acquire(session, view.handle, keys)
    key = keys[0].tobytes()
    assert read(store, view, found.offsets) == [late[key, 0], early[key, 1]]
    assert store.stat().tiers[0].slots_used == 2


def test_one_of_two_writers_gives_up_and_the_others_part_stays(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(TWO.canonical()), store.open_session(False)
    keys = keys_of(TWO, (1,))
    mine = store.reserve(session, view.handle, ChainSlice(keys), (0,))
    put(store, session, view, keys, parts=(1,))
    store.abort(session, mine.id)
    assert [part.blocks for part in store.match(view.handle, keys).parts] == [0, 1]


def test_a_full_store_makes_room_from_the_oldest_and_says_no_space_when_all_is_held() -> None:
    with opened(capacity=4 * MIB, low_watermark=1.0, high_watermark=1.0, max_leased_bytes=64 * MIB) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        chains = [keys_of(ONE, (9, number)) for number in range(60)]
        for chain in chains:
            assert NO_SPACE not in put(store, session, view, chain)[0]
        assert store.match(view.handle, chains[-1]).blocks == 2
        assert store.match(view.handle, chains[0]).blocks == 1
        assert store.stat().counters["dropped_blocks_evicted"] > 0
        held = [store.acquire(session, view.handle, chain) for chain in chains]
        outcomes = put(store, session, view, keys_of(ONE, tuple(range(100, 140))))[0]
        assert NO_SPACE in outcomes
        assert sorted(set(outcomes), key=outcomes.index)[-1] == NO_SPACE
        for chain, lease in zip(chains, held, strict=True):
            assert store.match(view.handle, chain).blocks >= lease.blocks
        audit(store)


def test_a_put_never_makes_room_by_dropping_its_own_parent() -> None:
    with opened(capacity=4 * MIB, low_watermark=1.0, high_watermark=1.0) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        path = tuple(range(200))
        keys = keys_of(ONE, path)
        outcomes = [put(store, session, view, keys[: at + 1], first=at)[0][0] for at in range(60)]
        full = outcomes.index(NO_SPACE)  # the whole store is one chain, and only its end could go
        assert full > 20
        assert set(outcomes[:full]) == {STORED}
        audit(store)


def test_a_session_holds_no_more_than_its_bounds() -> None:
    with opened(max_leased_bytes=250_000) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(True)
        keys = keys_of(ONE, (1, 2, 3, 4))
        reserved = store.reserve(session, view.handle, ChainSlice(keys))
        assert reserved.outcomes == bytes([STORED, STORED, BUSY, BUSY])
        store.abort(session, reserved.id)
        assert store.reserve(session, view.handle, ChainSlice(keys[:1])).outcomes == bytes([STORED])


def test_a_full_index_makes_room_too() -> None:
    spec = NamespaceSpec("tiny", 4, 4096)
    with opened(max_blocks=64) as store:
        view, session = store.open_namespace(spec.canonical()), store.open_session(False)
        for number in range(40):
            assert put(store, session, view, keys_of(spec, (number, 1, 2)))[0] == bytes([STORED] * 3)
        assert store.stat().blocks <= 64
        audit(store)


def test_puts_of_more_keys_than_one_piece_are_one_reservation() -> None:
    spec = NamespaceSpec("long", 1, 4096)
    with opened() as store:
        view, session = store.open_namespace(spec.canonical()), store.open_session(True)
        keys = key_array(np.random.default_rng(1).bytes(16 * 700))
        reserved = store.reserve(session, view.handle, ChainSlice(keys))
        assert store.stat().reservations == 1
        audit(store)
        store.abort(session, reserved.id)
        assert store.stat().tiers[0].used_bytes == 0


def taken(store: BlockStore) -> tuple[object, ...]:
    """What puts have taken; segments get ready by themselves meanwhile."""
    stat = store.stat()
    return stat.blocks, stat.writing, stat.reservations, stat.tiers[0].used_bytes, stat.tiers[0].slots_used


def test_bad_arguments_are_refused_and_change_nothing(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    keys = keys_of(ONE, (1, 2))
    put(store, session, view, keys)
    before = taken(store)
    more = keys_of(ONE, (1, 2, 3))[2:]
    for error, match, chain in (
        (BadKey, "parent of block 2 is 3 bytes", ChainSlice(more, b"abc", 2)),
        (InvalidArgument, "stands twice", ChainSlice(np.concatenate((more, more)), keys[1].tobytes(), 2)),
        (InvalidArgument, "its parent is block 1", ChainSlice(more, keys[1].tobytes(), 5)),
        (InvalidArgument, "stored as block 0, not 7", ChainSlice(keys[:1], more[0].tobytes(), 7)),
    ):
        with pytest.raises(error, match=match):
            store.reserve(session, view.handle, chain)
    with pytest.raises(InvalidArgument, match="importance"):
        store.reserve(session, view.handle, ChainSlice(keys), importance=np.zeros(3, np.uint16))
    assert taken(store) == before


def test_checksums_of_the_wrong_number_are_refused_and_the_reservation_stays(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    keys = keys_of(ONE, (1,))
    reserved = store.reserve(session, view.handle, ChainSlice(keys))
    with pytest.raises(InvalidArgument, match="2 are needed"):
        store.commit(session, reserved.id, np.zeros(3, np.uint64))
    sums, _ = fill(store, view, keys, (0,), reserved, 1)
    assert store.commit(session, reserved.id, sums) == bytes([STORED])
    for call in (lambda: store.commit(session, reserved.id, sums), lambda: store.abort(session, reserved.id)):
        with pytest.raises(InvalidArgument, match="no reservation"):
            call()


def test_only_visible_puts_are_acknowledged(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    for ack in (AckLevel.DURABLE, AckLevel.REPLICATED, 7):
        with pytest.raises(Unsupported, match="not supported"):
            store.reserve(session, view.handle, ChainSlice(keys_of(ONE, (1,))), ack=ack)


def test_an_ended_session_reserves_and_commits_nothing(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    reserved = store.reserve(session, view.handle, ChainSlice(keys_of(ONE, (1,))))
    store.close_session(session)
    with pytest.raises(SessionLost):
        store.commit(session, reserved.id, np.zeros(2, np.uint64))
    with pytest.raises(SessionLost):
        store.reserve(session, view.handle, ChainSlice(keys_of(ONE, (1,))))
    assert store.stat().tiers[0].used_bytes == 0


def test_importance_hints_are_kept_with_the_block_and_over_a_restart(store) -> None:  # type: ignore[no-untyped-def]
    view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
    keys = keys_of(ONE, (1, 2))
    reserved = store.reserve(session, view.handle, ChainSlice(keys), importance=np.array([7, 9], np.uint16))
    sums, _ = fill(store, view, keys, (0,), reserved, 1)
    store.commit(session, reserved.id, sums)
    index = store._state.index
    assert index.importance[index.find(0, keys)].tolist() == [7, 9]
    ((segment, (kind, _, _)),) = store.dram.classes().items()
    entries = store.dram._headers.recorded(segment, kind)
    assert sorted(entries.importance.tolist()) == [7, 9]


def repeated(key: bytes, part: int) -> bytes:
    """Bytes that follow from the address, so that every reader can check them."""
    size = TWO.parts[part].bytes
    return ((key + bytes([part])) * (size // 17 + 1))[:size]


class Worker(threading.Thread):
    """Puts, reads and evicts short chains at random; collects what it finds wrong."""

    def __init__(self, store: BlockStore, view: NamespaceView, seed: int) -> None:
        super().__init__()
        self.store, self.view, self.random = store, view, np.random.default_rng(seed)
        self.session = store.open_session(bool(seed % 2))
        self.wrong: list[str] = []
        self.reads = 0

    def run(self) -> None:
        for _ in range(60):
            keys = keys_of(TWO, tuple(self.random.integers(0, 2, self.random.integers(1, 6)).tolist()))
            action = self.random.integers(0, 9)
            if action < 4:
                self.put(keys, give_up=action == 0)
            elif action < 8:
                self.get(keys)
            else:
                self.store.evict(self.view.handle, keys)
        self.store.close_session(self.session)

    def put(self, keys: KeyArray, give_up: bool) -> None:
        reserved = self.store.reserve(self.session, self.view.handle, ChainSlice(keys))
        wanted = [keys[at].tobytes() for at, outcome in enumerate(reserved.outcomes) if outcome == STORED]
        for offset, (key, part) in zip(reserved.offsets.tolist(), itertools.product(wanted, (0, 1)), strict=True):
            self.store.dram.writable(offset, TWO.parts[part].bytes)[:] = repeated(key, part)
        if reserved.id and give_up:
            self.store.abort(self.session, reserved.id)
        elif reserved.id:
            self.store.commit(self.session, reserved.id, np.zeros(len(wanted) * 5, np.uint64))

    def get(self, keys: KeyArray) -> None:
        found = self.store.acquire(self.session, self.view.handle, keys)
        data = iter(read(self.store, self.view, found.offsets))
        for key, part in itertools.product(keys[: found.blocks], (0, 1)):
            self.reads += 1
            if next(data) != repeated(key.tobytes(), part):
                self.wrong.append(f"part {part} of {key.tobytes().hex()}")
        if found.lease:
            self.store.release(self.session, [found.lease])


def test_many_threads_put_read_and_evict_the_same_chains_and_every_byte_is_right() -> None:
    with opened(capacity=6 * MIB) as store:
        workers = [Worker(store, store.open_namespace(TWO.canonical()), seed) for seed in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.wrong for worker in workers] == [[]] * 4
        assert sum(worker.reads for worker in workers) > 50
        assert store.stat().leases == 0
        audit(store)
