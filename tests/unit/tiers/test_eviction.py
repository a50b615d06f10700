"""What every eviction policy promises, and what each of the two adds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvstore.core.errors import ConfigError
from kvstore.core.keys import KeyArray
from kvstore.tiers.columns import IntArray
from kvstore.tiers.eviction import POLICIES, EvictionPolicy, Lru, TurnScore, make_policy
from kvstore.tiers.eviction.ghost import Ghost
from kvstore.tiers.eviction.touches import CHUNK, TouchQueue
from kvstore.tiers.index import HARD_PIN, NO_PIN, READY, SOFT_PIN, BlockIndex

BLOCK_TOKENS = 512
KINDS = sorted(POLICIES)


class Cache:
    """An index and a policy, driven as the store drives them. Chains are lists of made-up block names."""

    def __init__(self, kind: str, max_blocks: int = 64, block_tokens: int = BLOCK_TOKENS) -> None:
        self.index = BlockIndex(max_blocks)
        self.policy: EvictionPolicy = make_policy(kind, self.index, lambda _: block_tokens)
        self.now = 1000.0

    def path(self, chain: list[int]) -> IntArray:
        rows = self.index.find(0, keys(chain))
        absent = np.flatnonzero(rows < 0)
        return rows[: absent[0]] if absent.size else rows

    def ask(self, chain: list[int], request: int = 0, seconds: float = 1.0) -> int:
        self.now += seconds
        path = self.path(chain)
        self.policy.touched(path, request, self.now, len(chain))
        return len(path)

    def put(self, chain: list[int], request: int = 0, piece: int = 99, appended: int = 0) -> None:
        first = len(self.path(chain))
        while first < len(chain):
            part = keys(chain[: first + piece])[first:]
            parent = int(self.path(chain[:first])[-1]) if first else -1
            rows = self.index.insert_run(0, part, parent, first)
            self.index.state[rows] = READY
            self.policy.inserted(rows, parent, request, appended, self.now)
            first += len(rows)

    def serve(self, chain: list[int], request: int = 0, seconds: float = 1.0, piece: int = 99) -> int:
        found = self.ask(chain, request, seconds)
        self.put(chain, request, piece)
        return found

    def evict(self, evictable: Callable[[int], bool] = lambda row: True) -> int | None:
        """Evicts one block; its name."""
        row = self.policy.victim(evictable)
        return None if row is None else self.drop(row)

    def drop(self, row: int) -> int:
        name = self.index.key_high_at[row]
        self.policy.removed(row)
        self.index.remove(row)
        return name

    def row(self, name: int) -> int:
        return self.index.find_one(0, (name * 0x9E3779B97F4A7C15 % 2**64, name))


def keys(chain: list[int]) -> KeyArray:
    return np.array([(name * 0x9E3779B97F4A7C15 % 2**64, name) for name in chain], np.uint64).reshape(-1, 2)


class PolicyMachine(RuleBasedStateMachine):
    """Random trees, leases, pins and evictions; for lru also a model that knows the exact order."""

    @initialize(kind=st.sampled_from(KINDS))
    def start(self, kind: str) -> None:
        self.cache = Cache(kind)
        self.exact = kind == "lru"
        self.clock = 0
        self.stamp: dict[int, tuple[int, int]] = {}  # row -> (touch, -block)

    def note(self, rows: IntArray) -> None:
        self.clock += 1
        for row in rows.tolist():
            self.stamp[row] = (self.clock, -self.cache.index.block_at[row])

    @rule(seed=st.integers(0, 40), length=st.integers(1, 8), request=st.integers(0, 3), piece=st.integers(1, 4))
    def serve(self, seed: int, length: int, request: int, piece: int) -> None:
        chain = [1 + seed % 3, 10 + seed % 15, *(100 * (seed + 1) + at for at in range(length))]  # one parent a name
        self.cache.ask(chain, request)
        path = self.cache.path(chain)
        if len(path):
            self.note(path)
        if len(self.cache.index) + len(chain) - len(path) > self.cache.index.max_blocks:
            return
        for first in range(len(path), len(chain), piece):
            self.cache.put(chain[: first + piece], request)
            self.note(self.cache.path(chain[: first + piece])[first:])

    @rule(pick=st.integers(0, 99), value=st.sampled_from([NO_PIN, SOFT_PIN, HARD_PIN]))
    def pin(self, pick: int, value: int) -> None:
        if self.stamp:
            row = sorted(self.stamp)[pick % len(self.stamp)]
            self.cache.index.pins_at[row] = value
            self.cache.policy.unpinned(row)

    @rule(pick=st.integers(0, 99), value=st.integers(0, 1))
    def lease(self, pick: int, value: int) -> None:
        if self.stamp:
            self.cache.index.leases_at[sorted(self.stamp)[pick % len(self.stamp)]] = value

    def candidates(self, pin: int) -> list[int]:
        index = self.cache.index
        free = [row for row in self.stamp if not index.children_at[row] and not index.leases_at[row]]
        return [row for row in free if index.pins_at[row] == pin]

    @rule(times=st.integers(1, 12), keep=st.booleans())
    def evict(self, times: int, keep: bool) -> None:
        for _ in range(times):
            row = self.cache.policy.victim(lambda row: not self.cache.index.leases_at[row])
            allowed = self.candidates(NO_PIN) or self.candidates(SOFT_PIN)
            assert (row is None) == (not allowed)
            if row is None:
                return
            assert row in allowed
            if self.exact:
                assert self.stamp[row] == min(self.stamp[one] for one in allowed)
            if not keep:
                self.cache.drop(row)
                del self.stamp[row]

    @rule(pick=st.integers(0, 99))
    def drop_a_subtree(self, pick: int) -> None:
        if self.stamp:
            top = sorted(self.stamp)[pick % len(self.stamp)]
            for row in self.cache.index.descendants(top):
                self.cache.drop(row)
                del self.stamp[row]

    @invariant()
    def every_leaf_is_known_to_turnscore_once(self) -> None:
        policy = self.cache.policy
        if isinstance(policy, TurnScore):
            sets = (policy._leaves, policy._abandoned)
            listed = [row for one in sets for row in one.rows[: one.count].tolist()]
            assert sorted(listed) == sorted(row for row in self.stamp if not self.cache.index.children_at[row])


TestPolicies = PolicyMachine.TestCase
TestPolicies.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_cache_empties_leaf_by_leaf_and_then_says_none(kind: str) -> None:
    cache = Cache(kind)
    for tail in range(6):
        cache.serve([1, 2, *range(10 * tail + 10, 10 * tail + 18)], tail + 1)
    gone = [cache.evict() for _ in range(50)]
    assert None not in gone
    assert gone[-2:] == [2, 1]
    assert cache.evict() is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_not_go_comes_up_again_when_it_may(kind: str) -> None:
    cache = Cache(kind, 2000)
    for tail in range(500):
        cache.serve([tail + 1])
    assert cache.evict(lambda row: False) is None
    cache.index.leases[:500] = 1
    assert cache.evict(lambda row: not cache.index.leases_at[row]) is None
    cache.index.leases_at[7] = 0
    assert cache.evict(lambda row: not cache.index.leases_at[row]) == 8
    cache.index.leases[:500] = 0
    assert sorted(filter(None, (cache.evict() for _ in range(600)))) == [name for name in range(1, 501) if name != 8]


def test_lru_evicts_the_deepest_block_of_the_oldest_request_first() -> None:
    cache = Cache("lru")
    cache.serve([1, 11, 12])
    cache.serve([1, 21, 22])
    cache.ask([1, 11, 12])
    assert [cache.evict() for _ in range(5)] == [22, 21, 12, 11, 1]


@pytest.mark.parametrize("order", ["random", "forward", "backward"])
def test_touch_queue_keeps_the_order_in_bounded_room_however_often_rows_are_touched(order: str) -> None:
    size = 40_000
    queue = TouchQueue(size)
    rng = np.random.default_rng(0)
    last: dict[int, int] = {}
    for touch in range(800):
        start = {"forward": touch * 700, "backward": -touch * 700}.get(order, 0)
        rows = rng.choice(size, 700, replace=False) if order == "random" else (start + np.arange(700)) % size
        queue.append(rows)
        for row in rows.tolist():
            last.pop(row, None)
            last[row] = touch
        for row in rows[:20].tolist():
            queue.discard(row)
            del last[row]
        assert queue.nbytes <= 4 * (2 * size + 9 * CHUNK)
    assert len(queue) == len(last)
    taken: list[int] = []
    while len(rows := queue.take()):
        taken += rows.tolist()
    assert taken == list(last)
    assert len(queue) == 0


def test_turnscore_evicts_a_one_shot_document_before_a_conversation() -> None:
    cache = Cache("turnscore", 200)
    for turn in range(5):
        cache.serve([1, *range(10, 12 + turn)], 1 + turn, seconds=60)
        cache.serve([1, *range(30, 32 + turn)], 11 + turn)
    cache.serve([1, *range(50, 90)], 77, seconds=60)
    assert [cache.evict() for _ in range(40)] == list(range(89, 49, -1))


def test_turnscore_lets_an_abandoned_branch_go_first_until_it_is_asked_for_again() -> None:
    cache = Cache("turnscore")
    cache.serve([1, 2, 10, 11, 12], 1)
    cache.serve([1, 30], 2)
    cache.serve([1, 2, 20], 3)  # leaves the old prompt in the middle
    assert cache.evict() == 12
    cache.ask([1, 2, 10, 11], 4)
    cache.serve([1, 40], 5, seconds=900)
    assert cache.evict() != 11


def test_turnscore_never_takes_a_branch_in_use_for_an_abandoned_one() -> None:
    cache = Cache("turnscore")
    cache.serve([1, 2, 10, 11, 12], 1)
    cache.index.leases_at[cache.row(10)] = 1
    cache.ask([1, 2, 20], 3)
    assert isinstance(cache.policy, TurnScore)
    assert cache.policy._abandoned.count == 0


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("tokens", [16, 512, 2048])
def test_features_do_not_depend_on_the_size_of_put_pieces(piece: int, tokens: int) -> None:
    def features(piece: int) -> list[list[int]]:
        cache = Cache("turnscore", 2000, tokens)
        for turn in range(4):
            cache.serve(list(range(1, 60 + 20 * turn)), turn + 1, piece=piece)
        rows = cache.path(list(range(1, 200)))
        columns = cache.policy.features
        return [columns.turn[rows].tolist(), columns.references[rows].tolist(), columns.appended[rows[-1:]].tolist()]

    assert features(piece) == features(99999)


@pytest.mark.parametrize("piece", [1, 3, 16])
@pytest.mark.parametrize("tokens", [16, 512])
def test_a_conversation_that_was_evicted_comes_back_as_what_it_was(piece: int, tokens: int) -> None:
    cache = Cache("turnscore", 2000, tokens)
    unit = max(512 // tokens, 1)
    for turn in range(3):
        cache.serve(list(range(1, 1 + unit * (4 + turn))), turn + 1)
    while cache.evict() is not None:
        pass
    cache.serve(list(range(1, 1 + unit * 7)), 9, piece=piece)
    rows = cache.path(list(range(1, 1 + unit * 7)))
    columns = cache.policy.features
    assert columns.turn[rows].tolist() == [0] * 4 * unit + [1] * unit + [2] * unit + [3] * unit
    assert columns.references[rows[::unit]].tolist() == [4, 4, 4, 4, 3, 2, 1]
    assert columns.appended[rows[-1]] == 512


def test_a_request_that_repeats_itself_counts_once() -> None:
    cache = Cache("turnscore")
    cache.put([1, 2, 3], 1)
    for _ in range(5):
        cache.ask([1, 2, 3, 4], 7)
    assert cache.policy.features.references[cache.path([1, 2, 3])].tolist() == [2, 2, 2]
    cache.ask([1, 2, 3, 4], 8)
    assert cache.policy.features.references[cache.path([1, 2, 3])].tolist() == [3, 3, 3]


def test_a_put_without_request_id_goes_on_where_its_last_piece_ended() -> None:
    cache = Cache("turnscore")
    cache.put(list(range(1, 9)), 0, piece=2)
    rows = cache.path(list(range(1, 9)))
    assert cache.policy.features.turn[rows].tolist() == [0] * 8
    assert cache.policy.features.appended[rows[-1]] == 8 * BLOCK_TOKENS


def test_the_age_constant_follows_the_median_return_gap() -> None:
    cache = Cache("turnscore", 2000)
    policy = cache.policy
    assert isinstance(policy, TurnScore)
    assert policy.gaps.age_constant == 300
    for turn in range(600):
        cache.serve([1, *range(10, 12 + turn)], turn + 1, seconds=40)
    assert policy.gaps.age_constant == pytest.approx(100)
    for turn in range(600):
        cache.ask([1, *range(10, 612)], 1000 + turn, seconds=1)
    assert policy.gaps.age_constant == 30


def test_importance_is_a_mild_reason_to_stay() -> None:
    cache = Cache("turnscore")
    for tail in range(8):
        cache.put([tail + 1], tail + 1)
    cache.index.importance_at[cache.row(3)] = 60000
    assert [cache.evict() for _ in range(8)][-1] == 3


def test_score_is_higher_for_late_turns_and_lower_for_long_appends() -> None:
    cache = Cache("lru", 200)
    for turn in range(4):
        cache.serve(list(range(1, 3 + turn)), turn + 1)
    cache.serve(list(range(50, 90)), 9)
    tail, document = cache.policy.score(cache.row(5)), cache.policy.score(cache.row(89))
    assert tail == pytest.approx(4**0.75 / 2**0.5)
    assert document == pytest.approx(1 / 41**0.5)


def test_ghost_forgets_the_oldest_first_and_takes_back_what_it_gave() -> None:
    ghost = Ghost(4096)
    tags = np.random.default_rng(0).integers(1, 2**64, 6000, np.uint64)
    for number, tag in enumerate(tags.tolist(), 1):
        ghost.put(tag, number, float(number))
    values = ghost.find(tags)
    assert (values[3500:] > 0).mean() > 0.9
    assert (values[:1000] > 0).mean() < 0.2
    taken, times = ghost.take(tags[-10:])
    assert taken.tolist() == times.tolist() == list(range(5991, 6001))
    assert ghost.find(tags[-10:]).tolist() == [0] * 10


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="lru, turnscore"):
        make_policy("mru", BlockIndex(1), lambda _: 16)
    assert isinstance(make_policy("lru", BlockIndex(1), lambda _: 16), Lru)
