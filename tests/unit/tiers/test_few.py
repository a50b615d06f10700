"""Short chains take the way of plain integers, long ones that of numpy: both do the same, to the last byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers import headers, index, matching, parts, state
from kvstore.tiers.index import BlockIndex
from kvstore.tiers.tier import Entries
from tests.unit.tiers.stores import HYBRID, ONE, TWO, audit, keys_of, opened, put, read

CHAINS = ((1,), (1, 2, 3), (1, 2, 4, 5, 6, 7, 8, 9, 10, 11), (9, 8))


def played(spec: NamespaceSpec) -> list[Any]:
    """What a store says and holds after puts, gets, a hold across an eviction and an abort."""
    said: list[Any] = []
    with opened() as store:
        view, session = store.open_namespace(spec.canonical()), store.open_session(True)
        for seed, path in enumerate(CHAINS):
            said.append(put(store, session, view, keys_of(spec, path), seed=seed))
        held = store.acquire(session, view.handle, keys_of(spec, CHAINS[2]), 1)
        said.append(store.evict(view.handle, keys_of(spec, CHAINS[2])[2:3]))
        for path in CHAINS:
            found = store.acquire(session, view.handle, keys_of(spec, path))
            said.append((found.blocks, found.miss, found.checksums.tolist(), read(store, view, found.offsets)))
            store.release(session, [found.lease])
        audit(store)
        said.append((held.checksums.tolist(), read(store, view, held.offsets), store.release(session, [held.lease])))
        audit(store)
        stat = store.stat()
        said.append((stat.blocks, stat.leased_blocks, stat.tiers[0].used_bytes, stat.counters))
    return said


@pytest.mark.parametrize("spec", [ONE, TWO, HYBRID], ids=["one", "two", "hybrid"])
def test_both_ways_do_the_same(spec: NamespaceSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    few = played(spec)
    for module in (headers, index, matching, parts, state):
        monkeypatch.setattr(module, "FEW", 0)
    monkeypatch.setattr(index, "_RUN", 0)
    assert played(spec) == few


def test_headers_are_the_same_bytes_either_way() -> None:
    draw, count, chunks = np.random.default_rng(5), 20, 3
    keys, parents = draw.integers(0, 1 << 64, (2, count, 2), np.uint64)
    with opened() as store:
        slots = store.dram.allocate(4096, chunks, count)
        told = Entries(
            slots=slots.slots, generations=slots.generations, namespaces=np.full(count, 65535, np.uint16),
            parts=np.arange(count, dtype=np.uint8), keys=keys,
            parents=parents, blocks=draw.integers(0, 1 << 32, count, np.uint32),
            lengths=np.full(count, 4096, np.uint64), importance=draw.integers(0, 65536, count, np.uint16),
            stamps=draw.integers(0, 1 << 32, count, np.uint32), chunks=np.full(count, chunks, np.uint32),
            checksums=draw.integers(0, 1 << 64, (count, chunks), np.uint64),
        )  # fmt: skip
        table, written = store.dram._headers, []
        for write in (table._write_few, table._write_many):
            at = table.first_words(slots.slots)[:, None] + np.arange(16 + chunks)
            table._words[at] = 7
            write(told)
            written.append(table._words[at].tolist())
        assert written[0] == written[1]
        assert [table.first_word(slot) for slot in slots.slots.tolist()] == table.first_words(slots.slots).tolist()


@pytest.mark.parametrize("few_written", [True, False])
@pytest.mark.parametrize("few_read", [True, False])
def test_headers_written_either_way_are_found_by_a_restart(
    few_written: bool, few_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as store:
        view, session = store.open_namespace(TWO.canonical()), store.open_session(True)
        if not few_written:
            monkeypatch.setattr(headers, "FEW", 0)
        keys = keys_of(TWO, (1, 2, 3))
        _, written = put(store, session, view, keys)
        state_, monkey = store._state, 32 if few_read else 0
        monkeypatch.setattr(headers, "FEW", monkey)
        table = state_.dram._headers
        found = [
            entry
            for segment, (kind, _, used) in state_.dram.classes().items()
            if used
            for entry in zip(*_columns(table.recorded(segment, kind)), strict=True)
        ]
        assert sorted(found) == sorted((keys[at].tobytes(), part, at) for at in range(3) for part in range(2))
        got = store.acquire(session, view.handle, keys)
        assert read(store, view, got.offsets) == [
            written[keys[at].tobytes(), part] for at in range(3) for part in (0, 1)
        ]


def _columns(entries: Any) -> tuple[list[bytes], list[int], list[int]]:
    return [key.tobytes() for key in entries.keys], entries.parts.tolist(), entries.blocks.tolist()


@pytest.mark.parametrize("count", [1, 2, 8, 9, 40])
def test_a_run_is_inserted_alike(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for run in (0, 64):
        monkeypatch.setattr(index, "_RUN", run)
        table = BlockIndex(256)
        table._factor = 0x9E3779B97F4A7C15
        draw = np.random.default_rng(3)
        for first in (0, 1, 2):  # rows used before are given out again
            rows = table.insert_run(7, draw.integers(1, 1 << 62, (count, 2)).astype(np.uint64), -1, 0)
            more = table.insert_run(7, draw.integers(1, 1 << 62, (count, 2)).astype(np.uint64), int(rows[-1]), count)
            if first:
                for row in [*more[::-1], *rows[::-1]][:count]:
                    table.remove(int(row))
        columns = ("key_low", "parent", "children", "block", "namespace", "state", "first_child", "newer", "older")
        made.append([getattr(table, name)[: table.rows_used].tolist() for name in columns] + [table.blocks_of(7)])
    assert made[0] == made[1]
