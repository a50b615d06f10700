"""Random operations on a store, with watchers that come late, lose their connections and fall behind: what they know
is what the store itself answers. Both kinds of stores, through restarts."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from kvstore.cluster.prefix_index import PrefixIndex
from kvstore.node.events import Events
from kvstore.tiers import journal as journal_module
from kvstore.tiers.runs import tiers_of
from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import TierKind
from tests.unit.cluster.feeding import NODE_ID, Watcher
from tests.unit.test_store_model import SPECS, StoreMachine
from tests.unit.test_two_tier_model import TwoTierMachine
from tests.unit.tiers.stores import ONE, keys_of
from tests.unit.tiers.two_tiers import still

DRAM = 1 << TierKind.DRAM
Known = dict[tuple[bytes, bytes], tuple[int, int]]


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> None:
    """Batches of a few blocks, so that streams break in the midst of things."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "BATCH_KEYS", 3)
        patch.setattr("kvstore.node.events.BATCH_KEYS", 3)
        patch.setattr(journal_module, "_PIECE", 2)
        patch.setattr(journal_module, "_SCAN", 4)
        yield  # type: ignore[misc]


class WatchedMachine(StoreMachine):
    """The first watcher keeps up, the second one has bad luck."""

    def __init__(self) -> None:
        self.steady, self.unlucky, self.narrow = Watcher(), Watcher(), Watcher((ONE.root,))
        self.index = PrefixIndex(1000)
        self.indexing = Watcher(index=self.index)
        super().__init__()

    def start(self) -> BlockStore:
        store = super().start()
        self.lose_all()
        store.journal.ring_bytes = 2000
        store.journal.wake = threading.Event()  # batches are made when a rule says so, of what many rules have done
        self.events = Events(store.journal, NODE_ID, store.boot_id, lambda: False)
        return store

    @rule(messages=st.integers(0, 6), flush=st.booleans())
    def take_a_little_and_lose_the_connection(self, messages: int, flush: bool) -> None:
        if flush:
            self.store.journal.flush()
        for _ in range(messages):
            if not self.behind(self.unlucky):
                break
            self.unlucky.take(self.events)
        self.unlucky.lose()

    @rule()
    def catch_up(self) -> None:
        self.check(self.unlucky)

    @rule()
    def another_one_joins(self) -> None:
        self.check(joined := Watcher())
        joined.lose()

    @rule()
    def one_watches_a_single_namespace(self) -> None:
        self.check(self.narrow, ONE.root)

    @rule(model=st.sampled_from(sorted(SPECS)), really=st.integers(0, 3))
    def rotate_namespace(self, model: str, really: int) -> None:
        spec = SPECS[model]
        self.view(spec)
        if really == 3:
            self.sync()
            self.store.rotate_namespace(spec.root)
            self.forget_branch(spec.root, ())

    @rule()
    def ask_the_index_of_the_cell(self) -> None:
        self.settle()
        self.indexing.catch_up(self.events)
        node = self.index.add_node(NODE_ID)
        for root, path in self.blocks:
            if root in self.views:
                keys = keys_of(self.spec_of(root), path)
                answer, found = self.store.match(self.views[root].handle, keys), self.index.lookup(root, keys)
                assert found.prefix.get(node, 0) == answer.blocks
                assert found.prefix_dram.get(node, 0) == dict(answer.tiers)[TierKind.DRAM]
        assert self.index.entries == len(self.there())

    def settle(self) -> None:
        if self.store._movement:
            still(self.store)

    def behind(self, watcher: Watcher) -> bool:
        feed = watcher.feed
        return feed.behind or (feed.boot_id, feed.sequence) != (self.events.boot_id, self.store.journal.sequence)

    @rule()
    def keep_up(self) -> None:
        self.check(self.steady)

    def check(self, watcher: Watcher, root: bytes = b"") -> None:
        self.settle()
        watcher.catch_up(self.events)
        known = watcher.sink.blocks
        assert known == {block: where for block, where in self.there().items() if not root or block[0] == root}
        for spec in SPECS.values():
            if spec.root in self.views and root in (b"", spec.root):
                for path in {path for one, path in self.blocks if one == spec.root}:
                    self.check_match(known, spec.root, keys_of(spec, path))
                if any(block[0] == spec.root for block in known):
                    assert watcher.canonicals[spec.root] == spec.canonical()

    def check_match(self, known: Known, root: bytes, keys: np.ndarray) -> None:
        """The store is asked as a client asks it."""
        handle = self.views[root].handle
        found = [known.get((root, key.tobytes()), (0, 0)) for key in keys]
        here = [tiers != 0 for _, tiers in found]
        in_dram = [bool(tiers & DRAM) for _, tiers in found]
        answer = self.store.match(handle, keys)
        assert answer.blocks == [*here, False].index(False)
        assert dict(answer.tiers)[TierKind.DRAM] == [*in_dram, False].index(False)

    def there(self) -> Known:
        """All that the store holds whole, looked up behind its back."""
        state = self.store._state
        with state.lock:
            rows = np.arange(state.index.rows_used)
            masks = tiers_of(state, rows).tolist()
            return {
                (state.namespace_of(row).root, state.index.key(row)): (state.index.block_at[row], masks[row])
                for row in rows.tolist()
                if masks[row]
            }

    def teardown(self) -> None:
        self.check(self.steady)
        self.lose_all()
        super().teardown()

    def lose_all(self) -> None:
        for watcher in (self.steady, self.unlucky, self.narrow, self.indexing):
            watcher.lose()


class WatchedTwoTierMachine(WatchedMachine, TwoTierMachine):
    """Blocks move between DRAM and NVMe too."""


WatchedMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
WatchedTwoTierMachine.TestCase.settings = settings(WatchedMachine.TestCase.settings, max_examples=12)
TestWatched = WatchedMachine.TestCase
TestWatchedTwoTiers = WatchedTwoTierMachine.TestCase
