"""The index of a cell against a plain dict, through snapshots, removals, drops, ceilings and nodes that go."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvstore.cluster import prefix_index
from kvstore.cluster.prefix_index import MAX_NODES, Holders, PrefixIndex
from kvstore.cluster.sink import DRAM, HBM, NVME
from kvstore.core.errors import Busy, InvalidArgument
from kvstore.core.keys import KeyArray, key_array

ROOTS = (b"r" * 16, b"s" * 16)
KEYS = np.random.default_rng(5).integers(0, 2**64, (24, 2), np.uint64)
KEYS[16:20, 0] = KEYS[15, 0]  # halves that are alike
KEYS[20:24, 1] = KEYS[19, 1]

roots = st.sampled_from(ROOTS)
nodes = st.integers(0, 3)
picks = st.lists(st.integers(0, len(KEYS) - 1), min_size=1, max_size=20)  # repeated ones too
tier_masks = st.integers(0, 7)


def chain(count: int, seed: int = 0) -> KeyArray:
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), np.uint64)


def test_blocks_are_counted_by_node() -> None:
    index = PrefixIndex(100)
    one, two, three = (index.add_node(bytes([node])) for node in range(3))
    index.stored(one, ROOTS[0], 0, KEYS[:10], DRAM)
    index.stored(two, ROOTS[0], 0, KEYS[5:12], NVME)
    index.stored(two, ROOTS[1], 0, KEYS[:3], NVME | DRAM)
    assert index.blocks_by_node() == {one: 10, two: 10}
    index.removed(two, ROOTS[0], KEYS[5:7])
    index.stored(three, ROOTS[0], 0, KEYS[:1], HBM)
    assert index.blocks_by_node() == {one: 10, two: 8, three: 1}
    index.remove_node(one)
    assert index.blocks_by_node() == {two: 8, three: 1}


class IndexMachine(RuleBasedStateMachine):
    max_entries = 100
    max_sets = 10_000

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(self.max_entries, self.max_sets)
        self.numbers = [self.index.add_node(bytes([node])) for node in range(4)]
        self.held: dict[tuple[bytes, bytes], dict[int, int]] = {}
        self.doubted: set[tuple[int, bytes, bytes]] = set()  # node, root, key: to be confirmed

    def forget(self, node: int, root: bytes, key: bytes) -> None:
        holders = self.held.get((root, key), {})
        holders.pop(node, None)
        self.doubted.discard((node, root, key))
        if not holders:
            self.held.pop((root, key), None)

    @rule(node=nodes, root=roots, pick=picks, tiers=tier_masks)
    def stored(self, node: int, root: bytes, pick: list[int], tiers: int) -> None:
        before, sets = self.index.dropped, self.sets()
        self.index.stored(self.numbers[node], root, 0, KEYS[pick], tiers)
        refused = 0
        for key in {KEYS[at].tobytes() for at in pick}:
            now = dict(self.index.holders_of(root, key))
            if now.get(self.numbers[node], 0) == tiers:
                self.forget(node, root, key)
                if tiers:
                    self.held.setdefault((root, key), {})[node] = tiers
            else:
                refused += 1
        assert self.index.dropped - before == refused, "what was not taken in is counted"
        if refused:
            self.may_refuse(max(sets, self.sets()))

    def sets(self) -> int:
        """Distinct sets of holders, those that a snapshot has not confirmed apart."""
        found = set()
        for name, holders in self.held.items():
            doubted = frozenset(node for node in holders if (node, *name) in self.doubted)
            found.add((frozenset(holders.items()), doubted))
        return len(found)

    def may_refuse(self, sets: int) -> None:
        raise AssertionError("there was room for all")

    @rule(node=nodes, root=roots, pick=picks)
    def removed(self, node: int, root: bytes, pick: list[int]) -> None:
        self.index.removed(self.numbers[node], root, KEYS[pick])
        for at in pick:
            self.forget(node, root, KEYS[at].tobytes())

    @rule(node=nodes, root=roots)
    def drop_namespace(self, node: int, root: bytes) -> None:
        self.index.drop_namespace(self.numbers[node], root)
        for name in [name for name in self.held if name[0] == root]:
            self.forget(node, *name)

    @rule(node=nodes)
    def begin_snapshot(self, node: int) -> None:
        self.index.begin_snapshot(self.numbers[node])
        self.doubted |= {(node, *name) for name, holders in self.held.items() if node in holders}

    @rule(node=nodes)
    def end_snapshot(self, node: int) -> None:
        self.index.end_snapshot(self.numbers[node])
        for _, root, key in [one for one in self.doubted if one[0] == node]:
            self.forget(node, root, key)

    @rule(node=nodes)
    def remove_node(self, node: int) -> None:
        self.index.remove_node(self.numbers[node])
        for name in list(self.held):
            self.forget(node, *name)
        self.numbers[node] = self.index.add_node(bytes([node]))

    @rule(root=roots, pick=picks)
    def lookup(self, root: bytes, pick: list[int]) -> None:
        found = self.index.lookup(root, KEYS[pick])
        held = [self.held.get((root, KEYS[at].tobytes()), {}) for at in pick]
        for node, number in enumerate(self.numbers):
            anywhere = leading([node in holders for holders in held])
            memory = leading([bool(holders.get(node, 0) & (DRAM | HBM)) for holders in held])
            assert found.prefix.get(number, 0) == anywhere
            assert found.prefix_dram.get(number, 0) == memory
        assert 0 not in found.prefix.values()
        assert found.cell == leading([bool(holders) for holders in held])
        blocks = [span for span in found.spans for _ in range(span.first, span.end)]
        assert [span.nodes for span in blocks] == [
            sum(1 << self.numbers[node] for node in holders) for holders in held[: found.cell]
        ]

    @invariant()
    def holders(self) -> None:
        assert self.index.entries == len(self.held)
        for root in ROOTS:
            for key in KEYS:
                holders = self.held.get((root, key.tobytes()), {})
                expected = tuple(sorted((self.numbers[node], tiers) for node, tiers in holders.items()))
                assert self.index.holders_of(root, key.tobytes()) == expected


class FullMachine(IndexMachine):
    """Room for few blocks."""

    max_entries = 12

    def may_refuse(self, sets: int) -> None:
        assert self.index.entries == self.max_entries


class FewSetsMachine(IndexMachine):
    """Room for few combinations of holders."""

    max_sets = 3

    def may_refuse(self, sets: int) -> None:
        assert sets >= self.max_sets - 1  # one may have been made and given up meanwhile


def leading(true: list[bool]) -> int:
    return [*true, False].index(False)


TestIndex = IndexMachine.TestCase
TestFull = FullMachine.TestCase
TestFewSets = FewSetsMachine.TestCase
TestIndex.settings = TestFull.settings = TestFewSets.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None
)


def test_a_long_chain_is_found_in_pieces_and_by_tier() -> None:
    index, keys = PrefixIndex(10_000), chain(1000)
    one, other = index.add_node(b"one"), index.add_node(b"other")
    index.stored(one, ROOTS[0], 0, keys, NVME)
    index.stored(one, ROOTS[0], 0, keys[:700], DRAM | NVME)
    index.stored(other, ROOTS[0], 0, keys[:300], HBM)
    index.removed(one, ROOTS[0], keys[900:])
    index.stored(other, ROOTS[0], 900, keys[900:], DRAM)
    found = index.lookup(ROOTS[0], keys)
    assert (found.prefix, found.prefix_dram) == ({one: 900, other: 300}, {one: 700, other: 300})
    assert found.cell == 1000
    assert [(span.first, span.end) for span in found.spans] == [(0, 300), (300, 700), (700, 900), (900, 1000)]
    assert index.lookup(ROOTS[1], keys) == Holders()


def test_a_table_takes_in_all_that_it_has_room_for() -> None:
    index, keys = PrefixIndex(100_000), chain(100_001)
    index.stored(index.add_node(b"n"), ROOTS[0], 0, keys, DRAM)
    assert (index.entries, index.dropped) == (100_000, 1)
    assert index.lookup(ROOTS[0], keys).cell == 100_000


def test_churn_leaves_nothing_behind() -> None:
    index, rng = PrefixIndex(2000), np.random.default_rng(1)
    node = index.add_node(b"n")
    for _ in range(200):
        keys = rng.integers(0, 2**64, (1900, 2), np.uint64)
        index.stored(node, ROOTS[0], 0, keys, DRAM)
        assert index.entries == 1900
        index.removed(node, ROOTS[0], keys[rng.permutation(1900)])
    assert (index.entries, index.dropped) == (0, 0)


def test_numbers_of_nodes_and_of_namespaces_are_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_index, "MAX_NAMESPACES", 3)
    index = PrefixIndex(100)
    numbers = [index.add_node(b"%d" % node) for node in range(MAX_NODES)]
    assert numbers == list(range(MAX_NODES))
    with pytest.raises(Busy, match="second cell"):
        index.add_node(b"one more")
    index.stored(7, ROOTS[0], 0, KEYS[:5], DRAM)
    index.remove_node(7)
    assert index.add_node(b"one more") == 7
    assert index.lookup(ROOTS[0], KEYS) == Holders()
    for root in range(10):
        index.stored(7, b"%016d" % root, 0, KEYS[:1], DRAM)
        if root > 1:
            index.drop_namespace(7, b"%016d" % (root - 2))
    assert (index.entries, index.dropped) == (2, 0)
    for root in (b"a" * 16, b"b" * 16):  # the fourth namespace is one too many
        index.stored(7, root, 0, KEYS[:2], DRAM)
    assert (index.entries, index.dropped) == (4, 2)


def test_an_index_without_room_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="max_entries is 0"):
        PrefixIndex(0)


def test_an_entry_costs_as_much_with_two_holders_as_with_one() -> None:
    index, keys = PrefixIndex(200_000), chain(200_000)
    one, other = index.add_node(b"one"), index.add_node(b"other")
    index.stored(one, ROOTS[0], 0, keys, DRAM)
    single = index.nbytes
    index.stored(other, ROOTS[0], 0, keys, DRAM | NVME)
    assert single / index.entries < 29
    assert index.nbytes - single < 1000


def test_keys_as_they_come_from_the_wire() -> None:
    index = PrefixIndex(100)
    keys = key_array(bytes(range(160)))  # read-only
    index.stored(index.add_node(b"n"), ROOTS[0], 0, keys, DRAM)
    assert index.lookup(ROOTS[0], keys).prefix == {0: 10}


def test_a_long_lookup_is_quick() -> None:
    index, keys = PrefixIndex(120_000), chain(100_000)
    node = index.add_node(b"n")
    index.stored(node, ROOTS[0], 0, keys, DRAM)
    took = []
    for _ in range(5):
        began = time.thread_time()
        assert index.lookup(ROOTS[0], keys[:8192]).prefix == {node: 8192}
        took.append(time.thread_time() - began)
    assert min(took) < 0.02  # 2 ms where nothing else runs
