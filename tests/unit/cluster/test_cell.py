"""A cell whose discovery, nodes and clock are the test's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest

from kvstore.cluster.cell import Cell, PeerView
from kvstore.cluster.discovery.base import Discovery, OnChange, Seed
from kvstore.cluster.feed import Feed
from kvstore.cluster.member import Member
from kvstore.cluster.membership import State
from kvstore.cluster.prefix_index import PrefixIndex
from kvstore.cluster.sink import DRAM
from kvstore.cluster.subscriber import Heard, Listener
from kvstore.core.errors import Unavailable
from kvstore.v1 import events_pb2 as pb

ROOT = b"r" * 16
SUSPECT_AFTER, GONE_AFTER = 0.06, 0.5  # of the test's clock; ticks come each 10 ms of the real one


def member(number: int, boot: int = 0) -> Member:
    at = f"127.0.0.1:{7000 + 10 * number}"
    return Member(number.to_bytes(16, "big"), boot.to_bytes(16, "big"), at, f"{at[:-1]}1")


OWN, A, B = member(0), member(1), member(2)
KEYS = np.arange(8, dtype=np.uint64).reshape(4, 2)


class ListDiscovery(Discovery):
    """Says what the test says."""

    def __init__(self) -> None:
        self.announced: list[Member] = []
        self.stopped = False

    def start(self, announce: Member, on_change: OnChange) -> None:
        self.announced.append(announce)
        self.tell = on_change

    def update(self, announce: Member) -> None:
        self.announced.append(announce)

    def stop(self) -> None:
        self.stopped = True


class Nodes:
    """The nodes of the cell, as a dialler reaches them: ``at`` says who answers where."""

    def __init__(self) -> None:
        self.at: dict[str, Member] = {}
        self.asked: list[str] = []
        self.streams: dict[str, tuple[Feed, Listener]] = {}

    async def ask(self, address: str) -> Member:
        self.asked.append(address)
        if address not in self.at:
            raise Unavailable(f"no node answers at {address}")
        return self.at[address]

    async def follow(self, address: str, feed: Feed, listener: Listener) -> NoReturn:
        self.loop = asyncio.get_running_loop()
        self.streams[address] = (feed, listener)
        try:
            while True:
                await asyncio.sleep(3600)
        finally:
            if self.streams[address][0] is feed:
                del self.streams[address]


class Stage:
    """A cell that is started, and what it lives on."""

    def __init__(self) -> None:
        self.discovery, self.nodes, self.now = ListDiscovery(), Nodes(), 0.0
        self.index = PrefixIndex(1000)
        self.cell = Cell(OWN, self.discovery, self.index, SUSPECT_AFTER, GONE_AFTER, self.nodes, lambda: self.now)
        self.cell.start()

    def find(self, *seeds: Seed) -> None:
        self.discovery.tell(frozenset(seeds))

    def call(self, call: Callable[[], object]) -> None:
        """As the subscriber does: on the cell's thread."""

        async def run() -> None:
            call()

        asyncio.run_coroutine_threadsafe(run(), self.nodes.loop).result(10)

    def hear(self, who: Member, keys: int = 0, free: int = 0, told: Member | None = None) -> None:
        """A node's stream brings a sign of life; with ``keys``, a snapshot of so many blocks."""
        feed, listener = self.nodes.streams[who.control_address]
        if keys:
            self.call(lambda: feed.take(snapshot(who, keys)))
        text = (told or who).to_json()
        self.call(lambda: listener.heard(Heard(who.node_id, who.boot_id, 100, free, False, member=text)))

    def peer(self, who: Member) -> PeerView:
        return next(view for view in self.cell.peers() if view.member.node_id == who.node_id)

    def states(self) -> dict[bytes, State]:
        return {view.member.node_id: view.state for view in self.cell.peers()}

    def live(self, who: Member, keys: int = 4) -> None:
        """Finds a node by a bare address, and hears it."""
        self.nodes.at[who.control_address] = who
        self.find(Seed(who.control_address))
        wait_for(lambda: who.control_address in self.nodes.streams)
        self.hear(who, keys)

    def await_state(self, who: Member, state: State) -> float:
        """Time passes until a node is in a state; how much."""
        began = self.now

        def reached() -> bool:
            self.now += SUSPECT_AFTER / 6
            return self.peer(who).state is state

        wait_for(reached)
        return self.now - began


def snapshot(who: Member, keys: int) -> pb.EventBatch:
    run = pb.BlockRun(root=ROOT, keys=KEYS[:keys].tobytes(), tiers=DRAM)
    events = [
        pb.Event(snapshot_begun=pb.SnapshotBegun()),
        pb.Event(stored=run),
        pb.Event(snapshot_done=pb.SnapshotDone(entries=keys)),
    ]
    return pb.EventBatch(node_id=who.node_id, boot_id=who.boot_id, sequence=1, events=events)


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    try:
        yield made
    finally:
        made.cell.stop()
        assert made.discovery.stopped
        assert made.nodes.streams == {}


def test_an_address_without_a_name_is_asked_and_then_followed(stage: Stage) -> None:
    stage.nodes.at[A.control_address] = A
    stage.find(Seed(A.control_address))
    wait_for(lambda: A.control_address in stage.nodes.streams)
    assert stage.states() == {A.node_id: State.SUSPECT}
    stage.hear(A, keys=3, free=40)
    found = stage.cell.lookup(ROOT, KEYS)
    assert [(stage.cell.holder(number), blocks) for number, blocks in found.prefix.items()] == [(A, 3)]
    view = stage.peer(A)
    assert (view.state, view.blocks, view.free_bytes, view.lag) == (State.LIVE, 3, 40, 0.0)
    stage.now += 0.01
    assert stage.peer(A).lag == pytest.approx(0.01)


def test_a_node_that_discovery_knows_is_followed_without_a_question(stage: Stage) -> None:
    stage.find(Seed(A.control_address, A), Seed(B.control_address, B))
    wait_for(lambda: len(stage.nodes.streams) == 2)
    stage.hear(A)
    assert stage.states() == {A.node_id: State.LIVE, B.node_id: State.SUSPECT}
    assert stage.nodes.asked == []
    assert stage.cell.holder(stage.index.add_node(B.node_id)) is None


def test_who_does_not_answer_is_told_until_he_does(stage: Stage) -> None:
    stage.find(Seed(A.control_address))
    wait_for(lambda: stage.nodes.asked.count(A.control_address) > 1)
    assert A.control_address in stage.cell.unanswered[0]
    assert stage.states() == {}
    stage.nodes.at[A.control_address] = A
    wait_for(lambda: A.control_address in stage.nodes.streams)
    assert stage.cell.unanswered == ()


def test_addresses_that_discovery_names_no_more_are_asked_no_more(stage: Stage) -> None:
    stage.find(Seed(A.control_address))
    wait_for(lambda: stage.cell.unanswered)
    stage.find(Seed(B.control_address))
    wait_for(lambda: [B.control_address in text for text in stage.cell.unanswered] == [True])
    asked = stage.nodes.asked.count(A.control_address)
    wait_for(lambda: stage.nodes.asked.count(B.control_address) > 2)
    assert stage.nodes.asked.count(A.control_address) == asked


def test_this_node_among_the_seeds_is_asked_once_and_not_followed(stage: Stage) -> None:
    stage.nodes.at["localhost:1"] = OWN
    stage.find(Seed("localhost:1"))
    wait_for(lambda: stage.nodes.asked)
    stage.live(A)
    stage.find(Seed("localhost:1"), Seed(A.control_address))
    stage.call(lambda: None)
    assert stage.nodes.asked.count("localhost:1") == 1
    assert list(stage.states()) == [A.node_id]
    assert stage.cell.problem == ""


def test_a_copy_of_this_nodes_directory_is_a_problem(stage: Stage) -> None:
    stage.nodes.at["localhost:1"] = replace(OWN, boot_id=b"x" * 16)
    stage.find(Seed("localhost:1"))
    wait_for(lambda: "copy of this node's data directory" in stage.cell.problem)
    assert stage.states() == {}


def test_a_silent_node_is_suspect_then_gone_and_holds_nothing_then(stage: Stage) -> None:
    stage.live(A)
    number = next(iter(stage.cell.lookup(ROOT, KEYS).prefix))
    assert stage.await_state(A, State.SUSPECT) >= SUSPECT_AFTER
    assert stage.cell.holder(number) is None
    assert stage.index.entries == 4  # it may be back in a moment
    del stage.nodes.at[A.control_address]
    assert stage.await_state(A, State.GONE) >= GONE_AFTER
    wait_for(lambda: stage.nodes.streams == {})
    wait_for(lambda: stage.index.entries == 0)
    assert stage.peer(A).lag is None


def test_a_lost_stream_makes_suspect_at_once_and_a_sign_of_life_live_again(stage: Stage) -> None:
    stage.live(A)
    _, listener = stage.nodes.streams[A.control_address]
    stage.call(lambda: listener.lost(A.node_id, A.boot_id, "it broke"))
    view = stage.peer(A)
    assert (view.state, view.trouble) == (State.SUSPECT, "it broke")
    stage.hear(A)
    view = stage.peer(A)
    assert (view.state, view.trouble) == (State.LIVE, "")


def test_a_gone_node_is_asked_again_and_may_come_back(stage: Stage) -> None:
    stage.live(A)
    del stage.nodes.at[A.control_address]
    stage.await_state(A, State.GONE)
    wait_for(lambda: stage.cell.unanswered)
    stage.nodes.at[A.control_address] = A
    wait_for(lambda: A.control_address in stage.nodes.streams)
    stage.hear(A, keys=2)
    assert stage.states() == {A.node_id: State.LIVE}
    assert stage.index.entries == 2


def test_a_goodbye_ends_it_and_the_next_start_is_found(stage: Stage) -> None:
    stage.live(A)
    _, listener = stage.nodes.streams[A.control_address]
    again = replace(A, boot_id=b"n" * 16, data_address="127.0.0.1:9999")
    stage.nodes.at[A.control_address] = again
    stage.call(lambda: listener.left(A.node_id, A.boot_id))
    assert stage.index.entries == 0
    wait_for(lambda: stage.states()[A.node_id] is State.SUSPECT and stage.nodes.streams)
    stage.hear(again, keys=1)
    assert stage.peer(A).member == again
    assert stage.peer(A).state is State.LIVE


def test_a_node_that_started_anew_says_its_new_addresses_on_its_stream(stage: Stage) -> None:
    stage.live(A)
    again = replace(A, boot_id=b"n" * 16, data_address="127.0.0.1:9999")
    stage.hear(again, keys=1)
    assert stage.peer(A).member == again
    stage.hear(again, told=replace(again, draining=True))
    assert stage.peer(A).state is State.DRAINING
    assert stage.cell.holder(0) == replace(again, draining=True)  # it can be read from


def test_a_node_that_moved_is_followed_where_it_is(stage: Stage) -> None:
    stage.live(A)
    _, listener = stage.nodes.streams[A.control_address]
    stage.call(lambda: listener.lost(A.node_id, A.boot_id, "it broke"))
    moved = replace(A, boot_id=b"n" * 16, control_address="127.0.0.1:9001")
    stage.nodes.at["127.0.0.1:9001"] = moved
    stage.find(Seed("127.0.0.1:9001"))
    wait_for(lambda: list(stage.nodes.streams) == ["127.0.0.1:9001"])
    stage.hear(moved, keys=2)
    assert stage.peer(A).member == moved
    assert stage.peer(A).blocks == 2


def test_another_node_at_the_address_of_a_lost_one_is_found(stage: Stage) -> None:
    stage.live(A)
    _, listener = stage.nodes.streams[A.control_address]
    other = replace(B, control_address=A.control_address)
    stage.nodes.at[A.control_address] = other
    stage.call(lambda: listener.lost(A.node_id, A.boot_id, "another node answers"))
    wait_for(lambda: stage.nodes.streams[A.control_address][0].node_id == B.node_id)
    stage.hear(other, keys=2)
    assert stage.states() == {A.node_id: State.SUSPECT, B.node_id: State.LIVE}
    assert stage.peer(other).blocks == 2


def test_draining_is_announced(stage: Stage) -> None:
    stage.cell.update(draining=True)
    assert [one.draining for one in stage.discovery.announced] == [False, True]
    assert stage.cell.member.draining


def test_nobody_in_discovery_takes_nobody_away(stage: Stage) -> None:
    stage.live(A)
    stage.find()
    stage.hear(A)
    assert stage.states() == {A.node_id: State.LIVE}
