"""The block index against a dict, and its promises one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvstore.core.errors import NoSpace
from kvstore.core.keys import KeyArray, key_array
from kvstore.tiers.index import EVICTING, FREE, WRITING, BlockIndex, IndexFull
from kvstore.tiers.tier import NO_SLOT

CAPACITY = 40


def chain(count: int, seed: int = 0) -> KeyArray:
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), np.uint64)


class IndexMachine(RuleBasedStateMachine):
    """Few distinct keys whose low halves collide, two namespaces, rows that come back."""

    def __init__(self) -> None:
        super().__init__()
        self.index = BlockIndex(CAPACITY, max_parts=60)
        self.rows: dict[tuple[int, int, int], int] = {}  # (namespace, low, high) -> row
        self.parents: dict[int, int] = {}
        self.parts: dict[int, list[int]] = {}
        self.detached: set[int] = set()

    def row_at(self, pick: int) -> int:
        return sorted(self.rows.values())[pick % len(self.rows)]

    def leaf_at(self, pick: int) -> int:
        leaves = sorted(set(self.rows.values()) - set(self.parents.values()))
        return leaves[pick % len(leaves)]

    def forget(self, row: int) -> None:
        self.rows = {name: at for name, at in self.rows.items() if at != row}
        self.parents.pop(row, None)

    def note(self, name: tuple[int, int, int], row: int, parent: int) -> None:
        assert row not in self.parents, "a row in use was given out again"
        assert row not in self.detached, "a detached row was given out again"
        self.rows[name], self.parents[row], self.parts[row] = row, parent, []

    @rule(namespace=st.integers(0, 1), low=st.integers(0, 3), high=st.integers(0, 12), pick=st.integers(0, 99))
    def insert(self, namespace: int, low: int, high: int, pick: int) -> None:
        if (namespace, low, high) in self.rows:
            return
        same = sorted(row for name, row in self.rows.items() if name[0] == namespace)
        parent = -1 if not same or pick % 4 == 0 else same[pick % len(same)]
        block = 0 if parent < 0 else self.index.block_at[parent] + 1
        if len(self.index) == CAPACITY:
            with pytest.raises(IndexFull):
                self.index.insert(namespace, (low, high), parent, block)
            return
        row = self.index.insert(namespace, (low, high), parent, block)
        assert self.index.state_at[row] == WRITING
        assert self.index.block_at[row] == block
        self.note((namespace, low, high), row, parent)

    @rule(namespace=st.integers(0, 1), count=st.integers(0, 12), first=st.integers(100, 140), pick=st.integers(0, 99))
    def insert_run(self, namespace: int, count: int, first: int, pick: int) -> None:
        names = [(namespace, 7, first + at) for at in range(count)]
        if any(name in self.rows for name in names):
            return
        same = sorted(row for name, row in self.rows.items() if name[0] == namespace)
        parent = -1 if not same else same[pick % len(same)]
        keys = np.array([name[1:] for name in names], np.uint64).reshape(-1, 2)
        if len(self.index) + count > CAPACITY:
            with pytest.raises(IndexFull):
                self.index.insert_run(namespace, keys, parent, 5)
            return
        rows = self.index.insert_run(namespace, keys, parent, 5).tolist()
        for at, (name, row) in enumerate(zip(names, rows, strict=True)):
            self.note(name, row, rows[at - 1] if at else parent)
            assert self.index.block_at[row] == 5 + at

    @rule(pick=st.integers(0, 99))
    def remove_leaf(self, pick: int) -> None:
        if self.rows:
            row = self.leaf_at(pick)
            self.index.remove(row)
            self.forget(row)
            assert self.index.state_at[row] == FREE

    @rule(pick=st.integers(0, 99))
    def remove_refuses_inner_rows(self, pick: int) -> None:
        inner = sorted(set(self.parents.values()) - {-1})
        if inner:
            with pytest.raises(ValueError, match="children"):
                self.index.remove(inner[pick % len(inner)])

    @rule(pick=st.integers(0, 99))
    def detach_leaf(self, pick: int) -> None:
        if self.rows:
            row = self.leaf_at(pick)
            self.index.detach(row)
            self.index.detach(row)
            self.forget(row)
            self.detached.add(row)

    @rule()
    def remove_detached(self) -> None:
        while self.detached:
            self.index.remove(self.detached.pop())

    @rule(pick=st.integers(0, 99), limit=st.integers(1, 7))
    def drop_subtree_in_pieces(self, pick: int, limit: int) -> None:
        if not self.rows:
            return
        top = self.row_at(pick)
        below = {top}
        while more := {row for row, parent in self.parents.items() if parent in below} - below:
            below |= more
        dropped: list[int] = []
        while top not in dropped:
            piece = self.index.descendants(top, limit)
            assert 0 < len(piece) <= limit
            for row in piece:
                self.index.remove(row)
                self.forget(row)
            dropped += piece
        assert sorted(dropped) == sorted(below)

    @rule(pick=st.integers(0, 99), part=st.integers(0, 3))
    def add_or_drop_part(self, pick: int, part: int) -> None:
        if not self.rows:
            return
        row = self.row_at(pick)
        if part in self.parts[row]:
            assert self.index.parts.drop(row, part)
            self.parts[row].remove(part)
        elif len(self.index.parts) < 60:
            at = self.index.add_part(row, part)
            assert [slot[at] for slot in self.index.parts.slot] == [NO_SLOT] * 3
            self.index.parts.slot_at[0][at] = row * 10 + part
            self.parts[row].append(part)
        else:
            with pytest.raises(NoSpace):
                self.index.add_part(row, part)

    @invariant()
    def agrees_with_the_model(self) -> None:
        names = [(ns, low, high) for ns in (0, 1) for low in (0, 1, 2, 3, 7) for high in (*range(13), *range(100, 152))]
        for namespace in (0, 1):
            asked = [name for name in names if name[0] == namespace]
            keys = np.array([name[1:] for name in asked], np.uint64)
            want = [self.rows.get(name, -1) for name in asked]
            assert self.index.find(namespace, keys).tolist() == want
            assert self.index.find(namespace, keys[:9]).tolist() == want[:9]
            mine = sorted(row for name, row in self.rows.items() if name[0] == namespace)
            assert self.index.blocks_of(namespace) == len(mine)
            scanned = [row for piece in self.index.rows_of_namespace(namespace) for row in piece.tolist()]
            assert sorted(set(scanned) - self.detached) == mine
        assert len(self.index) == len(self.rows) + len(self.detached)

    @invariant()
    def tree_agrees_with_the_model(self) -> None:
        for row, parent in self.parents.items():
            assert self.index.parent_at[row] == parent
            children = [child for child, above in self.parents.items() if above == row]
            assert self.index.children_at[row] == len(children)
            listed = []
            child = self.index.first_child_at[row]
            while child >= 0:
                listed.append(child)
                child = self.index.older_at[child]
            assert sorted(listed) == sorted(children)

    @invariant()
    def parts_agree_with_the_model(self) -> None:
        rows = np.array(sorted(self.parents), np.int64)
        for part in range(4):
            for row, at in zip(rows.tolist(), self.index.part_rows(rows, part).tolist(), strict=True):
                assert at == self.index.part_row(row, part)
                assert (at >= 0) == (part in self.parts[row])
                assert at < 0 or self.index.parts.slot_at[0][at] == row * 10 + part
        for row in rows.tolist():
            assert len(self.index.parts.of(row)) == len(self.parts[row])


TestIndexAgainstDict = IndexMachine.TestCase
TestIndexAgainstDict.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_all_four_columns_of_a_key_decide_and_nothing_less() -> None:
    index = BlockIndex(8)
    row = index.insert(1, (5, 6), -1, 0)
    assert index.find(1, np.array([[5, 6], [5, 7], [4, 6]], np.uint64)).tolist() == [row, -1, -1]
    assert index.find(2, np.array([[5, 6]], np.uint64)).tolist() == [-1]


def test_bytes_and_halves_name_the_same_key() -> None:
    index = BlockIndex(1)
    raw = bytes(range(16))
    row = index.insert(0, raw, -1, 0)
    assert index.find(0, key_array(raw)).tolist() == [row]
    assert index.key(row) == raw


def test_one_row_index_finds_many_keys_vectorised() -> None:
    index = BlockIndex(1)
    keys = chain(100)
    index.insert_run(0, keys[3:4], -1, 0)
    assert np.flatnonzero(index.find(0, keys) >= 0).tolist() == [3]


def test_a_row_that_comes_back_carries_nothing_over() -> None:
    index = BlockIndex(2)
    row = index.insert(0, (1, 1), -1, 0)
    index.add_part(row, 3)
    index.leases_at[row] = index.importance_at[row] = index.pins_at[row] = 1
    index.ready_at[row], index.state_at[row] = 8, EVICTING
    index.remove(row)
    for again in (index.insert(0, (2, 2), -1, 0), int(index.insert_run(0, chain(1), -1, 0)[0])):
        assert index.ready_at[again] == index.leases_at[again] == index.importance_at[again] == 0
        assert index.pins_at[again] == 0
        assert index.part_row(again, 3) == -1


def test_find_vectorised_equals_find_one_by_one_on_a_full_index() -> None:
    index = BlockIndex(20_000)
    keys = chain(40_000)
    for start in range(0, 20_000, 250):
        index.insert_run(3, keys[start : start + 250], -1, 0)
    rows = index.find(3, keys)
    assert (rows[:20_000] >= 0).all()
    assert (rows[20_000:] == -1).all()
    assert len(set(rows[:20_000].tolist())) == 20_000
    assert [index.find_one(3, (int(low), int(high))) for low, high in keys[::997]] == rows[::997].tolist()


def test_untouched_rows_cost_no_memory() -> None:
    index = BlockIndex(50_000_000)
    index.insert(0, (1, 2), -1, 0)
    assert index.nbytes < 10_000
    assert index.find(0, chain(1000)).max() == -1
