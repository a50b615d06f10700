"""A block's copy in DRAM goes when that on NVMe is durable, and not before: whenever a node is killed, it is there."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from kvstore.tiers.store import BlockStore
from kvstore.tiers.tier import TierKind
from kvstore.tiers.values import AckLevel, StoreConfig
from tests.unit.tiers.filled import CHAIN, PATIENCE, Filled, Gate, chain
from tests.unit.tiers.stores import MIB, STORED, audit
from tests.unit.tiers.two_tiers import Crash, audit_tiers, discard, opened, still, two_tiers


class Commits:
    """Holds the commits of NVMe's index up, or counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: BlockStore, held: bool = True) -> None:
        self._open = threading.Event()
        if not held:
            self._open.set()
        self.count = 0
        committer: Any = store._state.placement.nvme._committer  # type: ignore[union-attr]
        sync = committer._sync

        def gated(batch: Any) -> None:
            assert self._open.wait(PATIENCE)
            self.count += bool(batch.written)
            sync(batch)

        monkeypatch.setattr(committer, "_sync", gated)

    def open(self) -> None:
        self._open.set()


def written(filled: Filled, blocks: int) -> None:
    """Waits until so many blocks can be read on NVMe."""
    deadline = time.monotonic() + PATIENCE
    while filled.counters.get("written_blocks", 0) < blocks:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def send_off(filled: Filled, number: int) -> None:
    """As pressure would; does not wait."""
    movement, state = filled.store._movement, filled.store._state
    assert movement
    for key in chain(number)[::-1]:
        with state.lock:
            movement.demoter.send_off(state.index.find_one(filled.id, key.tobytes()))


def after_crash(config: StoreConfig, crash: Crash, filled: Filled, numbers: range | list[int]) -> list[int]:
    """Blocks of chains that come back when the store is opened again."""
    filled.store.close()
    crash.happen()
    with BlockStore(config) as store:
        again = Filled(store)
        again.bytes = filled.bytes
        found = [again.get(number) for number in numbers]
        still(store)
        audit(store)
        audit_tiers(store)
    return found


@pytest.mark.parametrize("rule", ["clean", "through"])
def test_a_block_is_in_dram_until_it_is_durable_on_nvme(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    config = two_tiers(nvme_write_rule=rule)
    try:
        store = BlockStore(config)
        filled, commits = Filled(store), Commits(monkeypatch, store)
        filled.put(1)
        if rule == "through":
            written(filled, CHAIN)
        send_off(filled, 1)
        written(filled, CHAIN)
        assert filled.tiers(1) == {TierKind.DRAM: CHAIN, TierKind.NVME: CHAIN}
        crash = Crash(store)
        commits.open()
        still(store)
        assert filled.tiers(1) == {TierKind.DRAM: 0, TierKind.NVME: CHAIN}
        assert filled.counters["demoted_blocks_written"] == CHAIN
        assert after_crash(config, crash, filled, [1]) == [CHAIN]
    finally:
        discard(config)


def test_a_block_that_is_leased_before_it_is_durable_stays(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Commits(monkeypatch, filled.store)
    filled.put(1)
    send_off(filled, 1)
    written(filled, CHAIN)
    found = filled.store.acquire(filled.session, filled.view.handle, chain(1))
    commits.open()
    still(filled.store)
    filled.check(chain(1), 0, found.offsets)
    assert filled.tiers(1)[TierKind.DRAM] == CHAIN
    filled.store.release(filled.session, [found.lease])
    filled.demote(1)
    assert filled.tiers(1)[TierKind.DRAM] == 0


@pytest.mark.parametrize("rule", ["clean", "through"])
def test_a_victim_that_waits_to_be_written_for_another_reason_is_not_dropped(
    monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    with opened(nvme_write_rule=rule) as store:
        filled, gate = Filled(store), Gate(monkeypatch, store)
        ack = AckLevel.DURABLE if rule == "clean" else AckLevel.VISIBLE
        for number in range(4):  # several, so that some are under way and others wait
            filled.put(number, ack=ack, deadline=time.monotonic() + 0.1)
        for number in range(4):
            send_off(filled, number)
        gate.open()
        still(store)
        assert [filled.tiers(number)[TierKind.DRAM] for number in range(4)] == [0] * 4
        assert [filled.get(number) for number in range(4)] == [CHAIN] * 4
        assert not [name for name in filled.counters if name.startswith(("demotion_refused", "dropped_blocks"))]


def test_a_block_whose_sync_fails_is_still_in_dram(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    nvme: Any = filled.store._state.placement.nvme  # type: ignore[union-attr]
    commits = Commits(monkeypatch, filled.store)
    filled.put(1)
    send_off(filled, 1)
    written(filled, CHAIN)
    monkeypatch.setattr(nvme._files, "sync", lambda numbers: {number: OSError(5, "lost") for number in numbers})
    commits.open()
    still(filled.store)
    assert filled.store.stat().nvme.blocks == 0  # type: ignore[union-attr]
    assert filled.tiers(1)[TierKind.DRAM] == filled.get(1) == CHAIN


@pytest.mark.parametrize("how", ["evict", "drop_namespace", "purge"])
def test_a_block_dropped_before_it_is_durable_is_gone(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    commits = Commits(monkeypatch, filled.store)
    filled.put(1)
    send_off(filled, 1)
    written(filled, CHAIN)
    if how == "drop_namespace":
        threading.Timer(0.1, commits.open).start()
        filled.store.drop_namespace(filled.view.root)
    elif how == "evict":
        filled.store.evict(filled.view.handle, chain(1))
    else:
        filled.store.purge()
    commits.open()
    still(filled.store)
    assert filled.store.stat().blocks == filled.store.stat().nvme.blocks == 0  # type: ignore[union-attr]


def test_victims_stay_while_the_disk_is_in_trouble(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a commit that may never come."""
    commits = Commits(monkeypatch, filled.store)
    filled.put(1)
    send_off(filled, 1)
    written(filled, CHAIN)
    nvme: Any = filled.store._state.placement.nvme  # type: ignore[union-attr]
    monkeypatch.setattr(nvme._health, "writable", False)
    deadline = time.monotonic() + PATIENCE
    while +filled.store._state.placement.leaving:  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert filled.tiers(1) == {TierKind.DRAM: CHAIN, TierKind.NVME: CHAIN}
    monkeypatch.setattr(nvme._health, "writable", True)
    commits.open()


def test_victims_share_commits_and_a_put_that_waits_for_room_does_not_wait_for_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(two_tiers(8 * MIB, 64 * MIB)) as store:
        filled, committer = Filled(store), store._state.placement.nvme._committer  # type: ignore[union-attr]
        monkeypatch.setattr(committer, "_interval", PATIENCE)
        commits = Commits(monkeypatch, store, held=False)
        started = time.monotonic()
        assert set(filled.put(*range(24))) == {STORED}
        assert time.monotonic() - started < PATIENCE
        gone = filled.counters["demoted_blocks_written"]
        assert gone > 8 * CHAIN
        assert commits.count < gone / 2
        monkeypatch.setattr(committer, "_interval", 0.1)
        committer.kick()


def test_every_block_of_a_storm_is_there_whenever_the_node_is_killed() -> None:
    config = two_tiers(8 * MIB, 64 * MIB)
    try:
        store = BlockStore(config)
        filled = Filled(store)
        for number in range(14):
            assert set(filled.put(number)) == {STORED}
        crash = Crash(store)
        assert after_crash(config, crash, filled, range(14)) == [CHAIN] * 14
    finally:
        discard(config)
