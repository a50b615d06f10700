"""After a crash: what was committed is back, what was not is gone, what is damaged is never served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from kvstore.core.errors import ConfigError
from kvstore.tiers.bulk import insert_many
from kvstore.tiers.index import BlockIndex
from kvstore.tiers.layout import HEADER
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import ChainSlice, MissReason, StoreConfig
from tests.unit.tiers.stores import MIB, ONE, TWO, audit, keys_of, opened, put, read, small


@contextmanager
def restarted(config: StoreConfig) -> Iterator[BlockStore]:
    store = BlockStore(config)
    try:
        yield store
        audit(store)
    finally:
        store.close()


def header_of(store: BlockStore, offset: int) -> np.ndarray:
    """The header of the slot at a byte offset, as it stands in the file."""
    slots = np.array([offset // 4096], np.uint32)
    word = int(store.dram._headers.first_words(slots)[0])
    return store._state.file.array(HEADER, word * 8, 1)


def test_committed_blocks_are_back_with_their_bytes_and_unfinished_ones_are_not() -> None:
    config = small()
    with opened(config) as store:
        session = store.open_session(False)
        written = {}
        for spec in (ONE, TWO):
            view = store.open_namespace(spec.canonical())
            for path in ((1, 2, 3), (1, 2, 4), (5,)):
                written |= put(store, session, view, keys_of(spec, path), seed=hash(path) % 1000)[1]
        view = store.open_namespace(ONE.canonical())
        store.reserve(session, view.handle, ChainSlice(keys_of(ONE, (9, 9))))
        used = store.stat().tiers[0].slots_used
        store.close()
        with restarted(config) as again:
            assert again.stat().counters == {"adopted_parts": 15, "dropped_orphan_parts": 0}
            assert (again.stat().blocks, again.stat().writing, again.stat().unverified) == (10, 0, 15)
            assert again.stat().tiers[0].slots_used == used - 2
            session = again.open_session(False)
            for spec in (ONE, TWO):
                view = again.open_namespace(spec.canonical())
                for path in ((1, 2, 3), (1, 2, 4), (5,)):
                    keys = keys_of(spec, path)
                    found = again.acquire(session, view.handle, keys)
                    parts = range(len(spec.parts))
                    assert read(again, view, found.offsets) == [written[k.tobytes(), p] for k in keys for p in parts]
            assert again.stat().unverified == 0


def test_blocks_without_their_parent_are_dropped_and_counted() -> None:
    config = small()
    with opened(config) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        keys = keys_of(ONE, (1, 2, 3, 4))
        put(store, session, view, keys)
        put(store, session, view, keys_of(ONE, (1, 7)))
        found = store.acquire(session, view.handle, keys)
        header_of(store, int(found.offsets[1]))["crc"] ^= 1
        store.close()
        with restarted(config) as again:
            assert again.match(again.open_namespace(ONE.canonical()).handle, keys).blocks == 1
            counters = again.stat().counters  # one header is damaged, two blocks hung on it
            assert (counters["adopted_parts"], counters["dropped_orphan_parts"]) == (2, 2)
            assert again.stat().tiers[0].slots_used == 2


@pytest.mark.parametrize("field", [name for name in HEADER.names or () if name not in ("stamp", "pad", "crc")])
def test_a_header_with_any_field_changed_is_not_believed(field: str) -> None:
    config = small()
    with opened(config) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        keys = keys_of(ONE, (1,))
        put(store, session, view, keys)
        header = header_of(store, int(store.acquire(session, view.handle, keys).offsets[0]))
        raw = header.view(np.uint8).reshape(-1)
        raw[(HEADER.fields or {})[field][1]] ^= 4
        store.close()
        with restarted(config) as again:
            assert again.stat().blocks == 0
            assert again.stat().tiers[0].slots_used == 0


def test_a_header_copied_to_another_slot_is_not_believed() -> None:
    config = small()
    with opened(config) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        put(store, session, view, keys_of(ONE, (1,)))
        put(store, session, view, keys_of(ONE, (2,)))
        one, two = (int(store.acquire(session, view.handle, keys_of(ONE, (number,))).offsets[0]) for number in (1, 2))
        words = store._state.file.words
        at = [int(store.dram._headers.first_words(np.array([place // 4096], np.uint32))[0]) for place in (one, two)]
        words[at[1] : at[1] + 24] = words[at[0] : at[0] + 24]
        store.close()
        with restarted(config) as again:
            assert again.stat().blocks == 1


@pytest.mark.parametrize("where", [0, 65_535, 65_536, 99_999])
def test_damaged_bytes_are_found_before_their_first_use_and_cut_the_prefix(where: int) -> None:
    config = small()
    with opened(config) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        keys = keys_of(ONE, (1, 2, 3, 4))
        put(store, session, view, keys)
        offset = int(store.acquire(session, view.handle, keys).offsets[2])
        store.dram.writable(offset + where, 1)[0] ^= 0x10
        store.close()
        with restarted(config) as again:
            view, session = again.open_namespace(ONE.canonical()), again.open_session(False)
            found = again.acquire(session, view.handle, keys)
            assert (found.blocks, found.miss) == (2, MissReason.CHECKSUM)
            counters = again.stat().counters
            assert (counters["dropped_blocks_checksum"], counters["miss_blocks_checksum"]) == (2, 2)
            assert again.acquire(session, view.handle, keys).miss == MissReason.ABSENT


def test_an_evicted_block_does_not_come_back() -> None:
    config = small()
    with opened(config) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        keys = keys_of(ONE, (1, 2, 3))
        put(store, session, view, keys)
        store.acquire(session, view.handle, keys)
        store.evict(view.handle, keys[1:])
        store.close()
        with restarted(config) as again:
            assert again.stat().blocks == 1
            assert again.stat().tiers[0].slots_used == 1


@pytest.mark.parametrize("policy", ["lru", "turnscore"])
def test_what_was_used_longest_ago_goes_first_after_a_restart(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(4 * MIB, policy=policy, low_watermark=1.0, high_watermark=1.0)
    now = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    with opened(config) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        for number in range(20):
            now[0] += 10
            put(store, session, view, keys_of(ONE, (number,)))
        now[0] += 10
        store.acquire(session, view.handle, keys_of(ONE, (0,)))
        store.close()
        with restarted(config) as again:
            view, session = again.open_namespace(ONE.canonical()), again.open_session(False)
            for number in range(100, 120):
                put(again, session, view, keys_of(ONE, (number,)))
            there = [number for number in range(20) if again.match(view.handle, keys_of(ONE, (number,))).blocks]
            if policy == "lru":
                assert 0 in there
                assert [number for number in there if number] == list(range(20))[20 - len(there) + 1 :]
            assert len(there) < 20


def test_a_store_opened_with_too_few_rows_keeps_the_upper_blocks() -> None:
    config = small()
    with opened(config) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        keys = keys_of(ONE, tuple(range(10)))
        put(store, session, view, keys)
        store.close()
        with restarted(replace(config, max_blocks=6)) as again:
            assert again.match(again.open_namespace(ONE.canonical()).handle, keys).blocks == 6
        with pytest.raises(ConfigError, match="holds 6 parts, max_parts is 3"):
            BlockStore(replace(config, max_parts=3))


def test_filling_an_index_at_once_is_the_same_as_one_by_one() -> None:
    random = np.random.default_rng(5)
    keys = random.integers(0, 2**63, (300, 2)).astype(np.uint64)
    keys[:, 0] &= np.uint64(0xFF)  # many in one bucket
    parents = np.array([-1] * 20 + [int(random.integers(0, at)) for at in range(20, 300)])
    blocks = np.zeros(300, np.uint32)
    namespaces = random.integers(0, 3, 300).astype(np.uint16)
    for at in range(20, 300):
        blocks[at], namespaces[at] = blocks[parents[at]] + 1, namespaces[parents[at]]
    one, many = BlockIndex(400), BlockIndex(400)
    single = [
        one.insert(int(namespaces[at]), keys[at].tobytes(), single_row(parents, at), int(blocks[at]))
        for at in range(300)
    ]
    rows = insert_many(many, namespaces, keys, parents, blocks)
    assert rows.tolist() == single
    for name in ("parent", "children", "first_child", "older", "newer", "block", "namespace", "state"):
        assert getattr(one, name)[:300].tolist() == getattr(many, name)[:300].tolist(), name
    for number in range(3):
        mine = namespaces == number
        assert many.find(number, keys[mine]).tolist() == rows[mine].tolist()
        assert (one.first_root(number), one.blocks_of(number)) == (many.first_root(number), many.blocks_of(number))
    for at in range(299, -1, -1):
        many.remove(int(rows[at]))
    assert len(many) == 0


def single_row(parents: np.ndarray, at: int) -> int:
    return int(parents[at])  # rows are given out in order, so a row's number is its position
