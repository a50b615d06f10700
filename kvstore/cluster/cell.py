"""A node's view of its cell: which other nodes there are, and which of them hold which blocks.

Discovery names addresses. One that comes without a member is asked who is there. Each node that is not gone is
followed: its events feed the index, and whatever comes says that it lives. A gone one is asked again for as long as
discovery names it. All of this happens on one thread; ``lookup``, ``holder`` and ``peers`` may be called from any.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvstore.cluster.dialler import Dialler, GrpcDialler
from kvstore.cluster.discovery.base import Discovery, Seed
from kvstore.cluster.etcd.backoff import Backoff
from kvstore.cluster.feed import Feed
from kvstore.cluster.gather import Gather
from kvstore.cluster.loop import LoopThread
from kvstore.cluster.member import Member
from kvstore.cluster.membership import Change, Membership, State
from kvstore.cluster.prefix_index import MAX_NAMESPACES, Holders, PrefixIndex
from kvstore.cluster.received import Received
from kvstore.cluster.subscriber import Heard
from kvstore.cluster.taken import Taken
from kvstore.core.errors import InvalidArgument, KVStoreError
from kvstore.core.keys import KeyArray
from kvstore.core.namespace import parse_canonical
from kvstore.transport.batch import Generation

_log = logging.getLogger(__name__)
_ALIVE = (State.LIVE, State.DRAINING)
_TICKS = 6  # in ``suspect_after``
_FIRST_WAIT = 0.2  # seconds after an address did not answer; then longer


@dataclass(frozen=True, slots=True)
class PeerView:
    """Another node now. ``blocks``: that it is known to hold. ``lag``: seconds since what is known of its blocks was
    complete, None for a node that is not followed. ``trouble``: why it cannot be followed."""

    member: Member
    state: State
    blocks: int
    free_bytes: int
    lag: float | None
    trouble: str
    number: int | None = None  # in the index; None for a node that is not followed
    eviction_age: float = 0.0  # seconds that its next victim was not used, by its own word; 0: nothing has to go


@dataclass(slots=True)
class _Link:
    """The event stream of one node."""

    address: str
    number: int  # of the node in the index
    feed: Feed
    gather: Gather
    complete: float  # when what is known was complete
    free_bytes: int = 0
    eviction_age: float = 0.0
    trouble: str = ""
    task: asyncio.Task[object] | None = None


class Cell:
    """``start`` once, ``stop`` once. ``member``: this node; its own event stream tells others what is in it."""

    def __init__(
        self,
        member: Member,
        discovery: Discovery,
        index: PrefixIndex,
        suspect_after: float = 3.0,
        gone_after: float = 300.0,
        dialler: Dialler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.member = member
        self.index = index
        self.received = Received()
        self.taken = Taken()
        self.on_generation: Callable[[bytes, Generation], None] = lambda root, generation: None  # heard of a peer
        self._sizes: dict[bytes, int] = {}  # of a block, by namespace
        self._discovery = discovery
        self._membership = Membership(member.node_id, suspect_after, gone_after)
        self._every = suspect_after / _TICKS
        self._dialler = dialler or GrpcDialler(suspect_after, lambda: self.member.to_json())
        self._clock = clock
        self._lock = threading.Lock()  # guards membership and links, which the cell's own thread alone changes
        self._links: dict[bytes, _Link] = {}
        self._numbers: dict[int, bytes] = {}
        self._seeds: frozenset[Seed] = frozenset()
        self._asked: dict[str, asyncio.Task[object]] = {}
        self._silent: dict[str, str] = {}  # addresses asked in vain: why
        self._own: set[str] = set()  # addresses at which this node itself answers
        self._twin = ""
        self._started = False
        self.introductions: tuple[bytes, ...] = ()  # who the others are that are heard, as JSON
        self._loop = LoopThread("kvstore-cell")

    def start(self) -> None:
        """This node must be reachable by now."""
        self._started = True
        self._loop.background(self._tick())
        self._discovery.start(self.member, lambda seeds: self._loop.call(self._found, seeds))

    def stop(self) -> None:
        """Takes back the announcement. The goodbye is the event stream's."""
        if self._started:
            self._discovery.stop()
        self._loop.stop()

    def update(self, draining: bool) -> None:
        """Says to all that this node wants new blocks, or not."""
        self.member = replace(self.member, draining=draining)
        self._discovery.update(self.member)

    # --- questions -----------------------------------------------------------------------------------------

    def lookup(self, root: bytes, keys: KeyArray) -> Holders:
        """Who holds how much of the chain ``keys``, by the numbers that ``holder`` knows. A hint."""
        return self.index.lookup(root, keys)

    def holder(self, number: int) -> Member | None:
        """The node of that number, if it can be read from now."""
        with self._lock:
            node_id = self._numbers.get(number, b"")
            found = self._membership.peer(node_id)
        return found.member if found is not None and found.state in _ALIVE else None

    def generation(self, number: int, root: bytes) -> Generation:
        """Of a namespace at another node, as it was heard last."""
        link = self._links.get(self._numbers.get(number, b""))
        return link.feed.generations.get(root, (0, 0)) if link is not None else (0, 0)

    def peers(self) -> tuple[PeerView, ...]:
        """All other nodes, those that are gone too."""
        blocks, now = self.index.blocks_by_node(), self._clock()
        with self._lock:
            return tuple(
                _view(peer.member, peer.state, self._links.get(peer.member.node_id), blocks, now)
                for peer in self._membership.peers()
            )

    @property
    def visible(self) -> bool:
        """Whether others find this node now, as far as it has anything to do with that."""
        return self._started and self._discovery.visible

    @property
    def problem(self) -> str:
        """What keeps discovery from working, for people; else empty."""
        refused = f"{self._membership.refused} nodes too many for one cell" if self._membership.refused else ""
        return "; ".join(filter(None, (self._discovery.problem, self._twin, refused)))

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Addresses that discovery names and at which no node of the cell answers: a sentence each, for people."""
        return tuple(self._silent.copy().values())

    def arrived(self, member: bytes) -> None:
        """A node that follows this one says who it is: it is followed too."""
        with contextlib.suppress(RuntimeError):  # this node stops
            self._loop.call(self._told_of, member)

    # --- discovery, on the cell's thread -------------------------------------------------------------------

    def _found(self, seeds: frozenset[Seed]) -> None:
        self._seeds = seeds
        for seed in seeds:
            if seed.member is not None:
                self._named(seed.member, seed.address)
        self._ask_around()

    def _named(self, member: Member, address: str) -> None:
        self._discovered(member)
        if self._membership.state(member.node_id) not in (None, State.GONE):
            self._follow(member.node_id, address)

    def _told_of(self, text: bytes) -> None:
        """Of a node, by itself or by one that hears it: a fixed list need not name all."""
        try:
            member = Member.from_json(text)
        except InvalidArgument as error:
            _log.warning("a node of the cell is told of, but not who it is: %s", error)
            return
        known = self._membership.peer(member.node_id)
        news = known is None or known.member.boot_id != member.boot_id or known.state is State.GONE
        if news and member.node_id != self.member.node_id and member.control_address:
            self._named(member, member.control_address)
            self._ask_around()  # who is there needs to be asked no more

    def _ask_around(self) -> None:
        """Asks at all addresses of which it is not known who is there, and no others."""
        known = self._own | {link.address for link in self._links.values() if not link.trouble}
        wanted = {seed.address for seed in self._seeds} - known
        for address in self._asked.keys() - wanted:
            self._asked.pop(address).cancel()
            self._silent.pop(address, None)
        for address in wanted - self._asked.keys():
            self._asked[address] = self._loop.spawn(self._ask(address))

    async def _ask(self, address: str) -> None:
        backoff = Backoff(_FIRST_WAIT)
        while True:
            try:
                member = await self._dialler.ask(address)
                break
            except KVStoreError as error:
                if address not in self._silent:
                    _log.warning("%s; it is asked again", error)
                self._silent[address] = str(error)
            await asyncio.sleep(backoff.wait())
        self._silent.pop(address, None)
        del self._asked[address]
        self._answered(address, member)

    def _answered(self, address: str, member: Member) -> None:
        if member.node_id == self.member.node_id:
            self._own.add(address)
            if member.boot_id != self.member.boot_id:
                self._twin = f"a copy of this node's data directory runs at {address}; give it its own"
                _log.error("%s", self._twin)
            return
        self._discovered(member)
        if self._membership.state(member.node_id) is not None:
            self._follow(member.node_id, address)

    def _discovered(self, member: Member) -> None:
        self._step(lambda now: self._membership.discovered(member, now))

    # --- following, on the cell's thread -------------------------------------------------------------------

    def _follow(self, node_id: bytes, address: str) -> None:
        """A node that has moved is followed to where it is now."""
        link = self._links.get(node_id)
        if link is not None:
            if link.address == address or self._membership.state(node_id) in _ALIVE:
                return
            self._unfollow(node_id)
        number = self.index.add_node(node_id)
        gather = Gather(self.index)
        feed = Feed(
            node_id, number, gather, self._namespace_known, on_new=lambda root, blocks: self._new(number, root, blocks),
            on_generation=lambda root, canonical, generation: self.on_generation(root, generation),
        )  # fmt: skip
        link = _Link(address, number, feed, gather, self._clock())
        with self._lock:
            self._links[node_id], self._numbers[number] = link, node_id
        link.feed.received = self.received
        link.task = self._loop.spawn(self._dialler.follow(address, link.feed, self))

    def _unfollow(self, node_id: bytes) -> None:
        with self._lock:
            link = self._links.pop(node_id, None)
            if link is None:
                return
            del self._numbers[link.number]
        if link.task is not None:
            link.task.cancel()  # at once: nothing is fed any more when the number is given to another node
        self.index.remove_node(link.number)
        self.taken.drop(link.number)

    def _namespace_known(self, root: bytes, canonical: bytes) -> None:
        if root not in self._sizes and len(self._sizes) < MAX_NAMESPACES:
            with contextlib.suppress(InvalidArgument):  # a later version may say what this one cannot read
                self._sizes[root] = sum(part.bytes for part in parse_canonical(canonical).parts)

    def _new(self, number: int, root: bytes, blocks: int) -> None:
        self.taken.add(number, blocks * self._sizes.get(root, 0))

    def heard(self, heard: Heard) -> None:
        link = self._links.get(heard.node_id)
        if link is None:
            return
        link.gather.flush()
        link.trouble = ""
        if heard.free_bytes is not None:
            link.free_bytes, link.eviction_age = heard.free_bytes, heard.eviction_age
        if not link.feed.behind:
            link.complete = self._clock()
        if heard.member:
            self._introduced(heard)
        for member in heard.peers:
            self._told_of(member)
        self._step(lambda now: self._membership.heard(heard.node_id, heard.boot_id, now))

    def _introduced(self, heard: Heard) -> None:
        """A node says itself who it is: after a restart its addresses may be others."""
        try:
            member = Member.from_json(heard.member)
        except InvalidArgument as error:
            _log.warning("node %s does not say who it is: %s", heard.node_id.hex(), error)
            return
        if (member.node_id, member.boot_id) == (heard.node_id, heard.boot_id):
            self._discovered(member)

    def lost(self, node_id: bytes, boot_id: bytes, reason: str) -> None:
        link = self._links.get(node_id)
        if link is not None:
            self.received.lost += not link.trouble
            link.trouble = reason
            self._step(lambda now: self._membership.stream_lost(node_id, boot_id, now))
            self._ask_around()  # another node may have its address now

    def left(self, node_id: bytes, boot_id: bytes) -> None:
        self._step(lambda now: self._membership.left(node_id, boot_id, now))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            self._step(self._membership.tick)

    def _step(self, step: Callable[[float], list[Change]]) -> None:
        with self._lock:
            changes = step(self._clock())
        if changes:
            alive = (peer.member for peer in self._membership.peers() if peer.state in _ALIVE)
            self.introductions = tuple(member.to_json() for member in alive)
        for change in changes:
            _tell(change)
            if change.after in (None, State.GONE):
                self._unfollow(change.node_id)
                self._ask_around()


def _view(member: Member, state: State, link: _Link | None, blocks: dict[int, int], now: float) -> PeerView:
    if link is None:
        return PeerView(member, state, 0, 0, None, "")
    lag = max(0.0, now - link.complete)
    held = blocks.get(link.number, 0)
    return PeerView(member, state, held, link.free_bytes, lag, link.trouble, link.number, link.eviction_age)


def _tell(change: Change) -> None:
    after = change.after.value if change.after is not None else "forgotten"
    again = " (started anew)" if change.restarted else ""
    _log.info("node %s of the cell is %s%s", change.node_id.hex(), after, again)
