"""Fetching, with a store, nodes and a directory in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from kvstore.cluster import fetch
from kvstore.core.errors import Busy, NoSpace, Unavailable, Unsupported
from kvstore.core.keys import KeyArray
from tests.unit.cluster.fetch_fakes import (
    LONG,
    ROOT,
    Cell,
    cell,
    chain,
    checksum,
    content,
    get,
    start,
    stored,
    wait_for,
)

BATCH = 8  # blocks


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "BATCH_BYTES", BATCH * 4096)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    """This node, and two others."""
    with cell(2, monkeypatch) as found:
        yield found


def test_a_chain_comes_whole_and_in_order(pair: Cell) -> None:
    keys = chain(50)
    pair.hold(0, keys)
    assert pair.fetcher.reach(ROOT, keys, 0) == 50
    assert get(pair, keys) == 50
    assert stored(pair, keys)
    assert [first for what, first in pair.store.log if what == "reserve"] == list(range(0, 50, BATCH))
    reserved = [at + 1 for at, (what, _) in enumerate(pair.store.log) if what == "reserve"]
    assert [slots for what, slots in pair.store.log if what == "commit"] == reserved
    assert pair.fetcher.counters["blocks"] == 50
    assert pair.fetcher.counters["bytes"] == 50 * 4096


def test_only_what_is_missing_is_asked_for(pair: Cell) -> None:
    keys = chain(12)
    pair.hold(0, keys)
    for name in [key.tobytes() for key in keys[[0, 1, 2, 6]]]:
        pair.store.blocks[name] = (content(name).tobytes(), checksum(name))
    assert get(pair, keys, have=3) == 12
    assert stored(pair, keys)
    assert sorted(pair.nodes[0].asked) == [(3, 3), (7, 4), (11, 1)]


def test_a_reader_is_woken_by_the_first_batch(pair: Cell) -> None:
    keys, gate = chain(2 * BATCH), threading.Event()
    pair.hold(0, keys)

    def before(first: int) -> None:
        if first:
            assert gate.wait(LONG)

    pair.nodes[0].before = before
    assert get(pair, keys, enough=1) == BATCH
    gate.set()
    assert get(pair, keys, have=BATCH) == 2 * BATCH
    assert stored(pair, keys)
    assert len(pair.nodes[0].asked) == 2


def test_several_holders_are_read_at_the_same_time(pair: Cell) -> None:
    keys, both = chain(4 * BATCH), threading.Barrier(2, timeout=LONG)
    for number in (0, 1):
        pair.hold(number, keys)
        pair.nodes[number].before = lambda first: both.wait() and None  # each waits for a request to the other
    assert get(pair, keys) == len(keys)
    assert stored(pair, keys)
    assert [len(node.asked) for node in pair.nodes] == [2, 2]


def test_the_next_holder_goes_on_where_one_failed_and_that_one_is_left_alone(pair: Cell) -> None:
    keys = chain(BATCH)
    pair.hold(0, keys)
    pair.hold(1, keys)
    pair.nodes[0].most = 3

    def fail(first: int) -> None:
        if len(pair.nodes[0].asked) > 1:
            raise Unavailable("the node went away within a reply")

    pair.nodes[0].before = fail
    assert get(pair, keys) == BATCH
    assert stored(pair, keys)
    assert pair.nodes[0].asked[0] == (0, BATCH)
    assert pair.nodes[1].asked == [(3, BATCH - 3)]
    asked = len(pair.nodes[0].asked)
    other = chain(BATCH, 1)
    pair.hold(0, other)
    assert pair.fetcher.reach(ROOT, other, 0) == 0
    assert get(pair, other) == 0
    assert len(pair.nodes[0].asked) == asked
    pair.nodes[0].before, pair.nodes[0].most = (lambda first: None), 100
    wait_for(lambda: get(pair, other) == BATCH)  # but not for ever


def test_a_batch_ends_where_its_holders_do(pair: Cell) -> None:
    keys = chain(2 * BATCH)
    pair.hold(0, keys)
    pair.nodes[0].blocks -= {key.tobytes() for key in keys[BATCH + 3 :]}  # gone, and not told of yet
    assert get(pair, keys) == BATCH + 3
    assert stored(pair, keys[: BATCH + 3])
    assert pair.fetcher.counters["failed_absent"] == 2 * (BATCH - 3)  # it was asked for the rest alone once more
    assert pair.fetcher.reach(ROOT, keys, 0) == 2 * BATCH  # that is no reason to leave the node alone


def test_damaged_bytes_are_not_stored_and_come_from_another_holder(pair: Cell) -> None:
    keys = chain(BATCH)
    pair.hold(0, keys)
    pair.nodes[0].damaged = {keys[5].tobytes()}
    assert get(pair, keys) == 5
    assert keys[5].tobytes() not in pair.store.blocks
    assert stored(pair, keys[:5])
    pair.hold(1, keys)
    time.sleep(2 * fetch._FRESH)
    assert get(pair, keys, have=5) == BATCH
    assert stored(pair, keys)


def test_readers_of_one_chain_share_what_comes(pair: Cell) -> None:
    keys, gate = chain(2 * BATCH), threading.Event()
    pair.hold(0, keys)
    pair.nodes[0].before = lambda first: gate.wait(LONG) and None
    got: list[int] = []
    readers = [threading.Thread(target=lambda: got.append(get(pair, keys))) for _ in range(3)]
    for reader in readers:
        reader.start()
    wait_for(lambda: pair.fetcher.counters.get("joined_blocks", 0) >= 4 * BATCH)
    branch = key_of_branch(keys)
    pair.hold(0, branch)
    gate.set()
    assert get(pair, branch) == len(branch)  # shares the first blocks, and goes on alone
    for reader in readers:
        reader.join(LONG)
    assert got == [2 * BATCH] * 3
    assert stored(pair, keys)
    assert stored(pair, branch)
    assert sum(blocks for _, blocks in pair.nodes[0].asked) == 2 * BATCH + len(branch) - 5


def key_of_branch(keys: KeyArray) -> KeyArray:
    """A chain that leaves another one after five blocks."""
    branch = chain(BATCH + 1, 3).copy()
    branch[:5] = keys[:5]
    return branch


def test_a_holder_that_does_not_answer_costs_no_more_than_the_deadline(pair: Cell) -> None:
    keys, gate = chain(BATCH), threading.Event()
    pair.hold(0, keys)
    pair.nodes[0].before = lambda first: gate.wait(LONG) and None
    began = time.monotonic()
    assert get(pair, keys, seconds=0.1) == 0
    assert 0.1 <= time.monotonic() - began < 2.0
    gate.set()


def test_what_nobody_wants_any_more_is_not_fetched(pair: Cell) -> None:
    keys, gate = chain(8 * BATCH), threading.Event()
    pair.hold(0, keys)
    pair.nodes[0].before = lambda first: gate.wait(LONG) and None
    living = [True]
    assert start(pair, keys, alive=lambda: living[0]) == 8 * BATCH
    wait_for(lambda: len(pair.nodes[0].asked) == fetch.WORKERS)
    living[0] = False
    gate.set()
    wait_for(lambda: not pair.fetcher.under_way)
    assert len(pair.nodes[0].asked) == fetch.WORKERS
    counters = pair.fetcher.counters
    assert counters["failed_late"] + counters["failed_chain"] == (8 - fetch.WORKERS) * BATCH


def test_past_its_bound_nothing_more_is_begun(pair: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "QUEUE", 5)
    keys, gate = chain(40 * BATCH), threading.Event()
    pair.hold(0, keys)
    pair.nodes[0].before = lambda first: gate.wait(LONG) and None
    assert start(pair, keys[:BATCH]) == BATCH
    wait_for(lambda: len(pair.nodes[0].asked) == 1)
    coming = start(pair, keys)
    assert coming < len(keys)
    assert pair.fetcher.under_way <= (5 + fetch.WORKERS) * BATCH
    other = chain(30 * BATCH, 1)
    pair.hold(0, other)
    start(pair, other)
    assert pair.fetcher.counters["busy_blocks"] > 0
    gate.set()
    assert get(pair, keys) == len(keys)  # a reader comes back for more


def test_a_reader_has_a_few_batches_begun_at_a_time(pair: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "AHEAD", 3)
    keys, gate = chain(20 * BATCH), threading.Event()
    pair.hold(0, keys)
    pair.nodes[0].before = lambda first: gate.wait(LONG) and None
    assert start(pair, keys, far=False) == 3 * BATCH
    gate.set()
    assert get(pair, keys) == len(keys)
    assert stored(pair, keys)


def test_when_a_batch_fails_those_after_it_are_given_up(pair: Cell) -> None:
    keys = chain(3 * BATCH)
    pair.hold(0, keys)
    later = threading.Event()

    def before(first: int) -> None:
        if not first:
            later.wait(LONG)
            raise Busy("too many leases")

    pair.nodes[0].before = before
    coming = start(pair, keys)
    assert coming == 3 * BATCH
    wait_for(lambda: len(pair.nodes[0].asked) == 3)
    later.set()
    wait_for(lambda: not pair.fetcher.under_way)
    assert pair.store.blocks == {}
    assert pair.store.writing == {}
    assert pair.fetcher.counters["failed_chain"] == 2 * BATCH
    assert pair.fetcher.counters["failed_busy"] == BATCH


@pytest.mark.parametrize(("own", "other"), [((1, 5), (0, 0)), ((0, 0), (1, 5)), ((1, 5), (1, 6)), ((2, 5), (1, 5))])
def test_what_is_of_another_generation_is_not_asked_for(
    pair: Cell, own: tuple[int, int], other: tuple[int, int]
) -> None:
    keys = chain(BATCH)
    pair.hold(0, keys)
    pair.store.at, pair.nodes[0].at = own, other
    assert pair.fetcher.reach(ROOT, keys, 0) == 0
    assert get(pair, keys) == 0
    assert pair.nodes[0].asked == []
    assert pair.store.writing == {}
    pair.store.at = other
    assert pair.fetcher.reach(ROOT, keys, 0) == BATCH
    assert get(pair, keys) == BATCH


def test_a_holder_that_was_rotated_meanwhile_gives_nothing(pair: Cell) -> None:
    keys = chain(BATCH)
    pair.hold(0, keys)

    def rotate(first: int) -> None:
        pair.nodes[0].at = (1, 5)

    pair.nodes[0].before = rotate
    assert get(pair, keys) == 0
    assert pair.store.writing == {}


def test_a_batch_that_is_reserved_anew_after_a_rotation_here_is_given_up(pair: Cell) -> None:
    keys = chain(BATCH)
    pair.hold(0, keys)
    pair.nodes[0].blocks = {key.tobytes() for key in keys[:3]}  # the others are gone

    def rotate(first: int) -> None:
        pair.store.at = (1, 5)

    pair.nodes[0].before = rotate
    assert get(pair, keys) == 0
    assert pair.store.writing == {}
    assert pair.fetcher.counters["failed_rotated"] == 3


def test_a_holder_of_an_older_version_gives_nothing_of_a_rotated_namespace(pair: Cell) -> None:
    """It would not say of which generation its blocks are."""
    keys = chain(BATCH)
    pair.hold(0, keys)
    pair.store.at = pair.nodes[0].at = (1, 5)
    pair.nodes[0].version = 1
    assert get(pair, keys) == 0
    assert pair.nodes[0].asked == []


def test_a_node_that_refuses_a_namespace_is_not_asked_for_it_again(pair: Cell) -> None:
    keys = chain(BATCH)
    pair.hold(0, keys)

    def refuse(first: int) -> None:
        raise Unsupported("the namespace was rotated on this node")

    pair.nodes[0].before = refuse
    assert get(pair, keys) == 0
    assert get(pair, keys) == 0
    assert len(pair.nodes[0].asked) == 1
    assert pair.fetcher.reach(ROOT, keys, 0) == 0


def test_a_session_that_is_over_is_replaced_once(pair: Cell) -> None:
    keys = chain(2 * BATCH)
    pair.hold(0, keys)
    assert get(pair, keys[:BATCH]) == BATCH
    pair.nodes[0].sessions[-1].over = True  # the node was started again
    assert get(pair, keys, have=BATCH) == 2 * BATCH
    assert len(pair.nodes[0].sessions) == 2
    assert stored(pair, keys)


def test_another_node_at_the_address_gives_nothing(pair: Cell) -> None:
    keys = chain(BATCH)
    pair.hold(0, keys)
    pair.nodes[0].answers_as = bytes(15) + b"x"
    assert get(pair, keys) == 0
    assert pair.nodes[0].asked == []
    assert pair.fetcher.counters["failed_unavailable"] == BATCH


def test_a_node_that_may_not_be_read_from_is_not_asked(pair: Cell) -> None:
    keys = chain(BATCH)
    pair.hold(0, keys)
    pair.gone = {0}
    assert pair.fetcher.reach(ROOT, keys, 0) == 0
    assert get(pair, keys) == 0
    assert pair.dialled == {}


def test_no_room_here_is_a_miss(pair: Cell) -> None:
    keys = chain(BATCH)
    pair.hold(0, keys)
    pair.store.fails = NoSpace("no room, and none could be made")
    assert get(pair, keys) == 0
    assert pair.fetcher.counters["failed_no_space"] == BATCH
    assert pair.nodes[0].asked == []


def test_a_batch_waits_for_the_room_that_the_one_before_it_takes(pair: Cell) -> None:
    keys = chain(6 * BATCH)
    pair.hold(0, keys)
    pair.store.room = BATCH + 2
    assert start(pair, keys) == 6 * BATCH
    wait_for(lambda: not pair.fetcher.under_way)
    assert stored(pair, keys)
    assert len(pair.nodes[0].asked) == 6


def test_where_room_ends_a_chain_ends(pair: Cell) -> None:
    keys = chain(3 * BATCH)
    pair.hold(0, keys)
    pair.store.room = BATCH - 3
    assert get(pair, keys, enough=1) == BATCH - 3
    wait_for(lambda: not pair.fetcher.under_way)
    assert stored(pair, keys[: BATCH - 3])
    assert keys[BATCH - 3].tobytes() not in pair.store.blocks


def test_stopping_lets_readers_go(pair: Cell) -> None:
    keys, gate = chain(20 * BATCH), threading.Event()
    pair.hold(0, keys)
    pair.nodes[0].before = lambda first: gate.wait(LONG) and None
    got: list[int] = []
    reader = threading.Thread(target=lambda: got.append(get(pair, keys)))
    reader.start()
    wait_for(lambda: len(pair.nodes[0].asked) == fetch.WORKERS)
    ender = threading.Thread(target=pair.fetcher.stop)
    ender.start()
    gate.set()
    reader.join(LONG)
    ender.join(LONG)
    assert got
    assert got[0] < len(keys)
    assert pair.fetcher.under_way == 0
    assert pair.store.writing == {}


def test_a_failure_nobody_thought_of_ends_its_batch_alone(pair: Cell, caplog: pytest.LogCaptureFixture) -> None:
    keys = chain(BATCH)
    pair.hold(0, keys)

    def surprise(first: int) -> None:
        raise ZeroDivisionError

    pair.nodes[0].before = surprise
    assert get(pair, keys) == 0
    assert "could not be fetched" in caplog.text
    pair.nodes[0].before = lambda first: None
    assert get(pair, keys) == BATCH
    assert stored(pair, keys)
