"""Gets from several nodes: what the home node has comes from it, the rest from the nodes that it names, at once.

The home node answers a GET with the blocks that it has and says who has more, so no question comes before it; only
where much is wanted it is asked first (ROUTE), so that all nodes begin at once. Blocks that no node gave in its time
are fetched by the home node. All of them are of one generation of the namespace, the one that the home node named.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kvstore.client.link import Link
from kvstore.client.locality import is_local
from kvstore.client.patience import patience
from kvstore.client.shares import Share, Source, shares
from kvstore.core.errors import DeadlineExceeded, KVStoreError
from kvstore.core.keys import KEY_BYTES
from kvstore.transport.base import Transport
from kvstore.transport.batch import DEADLINE, Elsewhere, GetCall, GetResult, Targets
from kvstore.transport.cancel import cancelled, current
from kvstore.transport.outcome import miss_name
from kvstore.transport.tcp import TcpTransport
from kvstore.v1 import data_pb2 as pb

if TYPE_CHECKING:
    from kvstore.client.namespace import Namespace

ASK_FIRST_BYTES = 16 << 20
PIECE_BYTES = 16 << 20  # of one request to a node: what came of it is kept when the node fails later
_HOME = b""


def get(namespace: Namespace, home: Transport, call: GetCall, into: Targets, deadline: float) -> GetResult:
    """As Transport.get, from all nodes that have blocks of the chain."""
    router = namespace.client.router
    if not router.serves(home):
        return home.get(call, into, deadline)
    blocks = len(call.keys) // KEY_BYTES
    if (blocks - call.first) * call.plan.block_bytes >= ASK_FIRST_BYTES:
        found = _asked(home, call, deadline)
    else:
        found = home._get(replace(call, here=True), into, deadline)
    if found.blocks == blocks or found.bad >= 0 or found.miss == DEADLINE:
        return found
    reach = max([found.found, *(one.blocks for one in found.nodes)])
    if (put := _just_put(namespace, home, call, reach)) is not None:
        found = replace(found, nodes=(put, *(one for one in found.nodes if one.node_id != put.node_id)))
    if not found.nodes:
        return _rest(home, call, into, found, deadline)
    return _Reading(namespace, home, call, into, deadline, found).result()


def match(namespace: Namespace, home: Transport, call: GetCall, deadline: float) -> GetResult:
    """The longest prefix in the cell, as the home node knows it, or what this client has put elsewhere just now."""
    reply = home.match(call, deadline)
    found = GetResult(reply.blocks, False, miss_name(reply.miss))
    put = _just_put(namespace, home, call, reply.blocks)
    link = namespace.client.router.link(put.address) if put is not None else None
    if link is None:
        return found
    there = namespace.served(
        deadline, lambda transport, handle: transport.match(replace(call, handle=handle), deadline), link=link
    )
    if isinstance(there, str) or there.blocks <= found.blocks:
        return found
    return GetResult(there.blocks, False, miss_name(there.miss))


def _just_put(namespace: Namespace, home: Transport, call: GetCall, known: int) -> Elsewhere | None:
    """Where more than the ``known`` blocks are that the home node knows of."""
    if known * KEY_BYTES >= len(call.keys) or not namespace.client.router.serves(home):
        return None
    put = namespace.client.router.recent.longest(namespace.root, call.keys)
    return Elsewhere(put.node_id, put.address, put.blocks) if put is not None and put.blocks > known else None


def _asked(home: Transport, call: GetCall, deadline: float) -> GetResult:
    """Who has what, before anything is sent."""
    request = pb.RouteRequest(namespace=call.handle, keys=call.keys, parts=call.plan.parts)
    reply = home.route(request, deadline)
    nodes = tuple(Elsewhere(one.node_id, one.data_address, one.blocks) for one in reply.nodes[1:])
    generation = reply.generation, reply.rotation
    own = reply.nodes[0].blocks if reply.nodes else 0
    return GetResult(call.first, True, "", found=own, nodes=nodes, generation=generation)


def _rest(home: Transport, call: GetCall, into: Targets, found: GetResult, deadline: float) -> GetResult:
    """What the home node has itself beyond one request, or brings up from a slower tier."""
    if not found.more:
        return found
    at = max(found.blocks, call.first)
    further = replace(call, first=at, generation=found.generation)
    try:
        result = home.get(further, into[(at - call.first) * len(call.plan.pieces) :], deadline)
    except DeadlineExceeded:
        return GetResult(at, False, DEADLINE, holes=found.holes)
    return replace(result, blocks=max(at, result.blocks), holes=found.holes + result.holes)


@dataclass(slots=True)
class _Filled:
    """How far a share has come, and why no further. ``bad``: a block of the home node that failed its check."""

    reached: int
    miss: str = ""
    bad: int = -1


class _Reading:
    """The blocks of one get that are not here yet."""

    def __init__(
        self, namespace: Namespace, home: Transport, call: GetCall, into: Targets, deadline: float, found: GetResult
    ) -> None:
        self._namespace = namespace
        self._home = home
        self._into = into
        self._deadline = deadline
        self._found = found
        self._call = replace(call, here=True, generation=found.generation, release=0)
        self._links = self._reachable(found.nodes)
        self._width = len(call.plan.pieces)
        self._step = max(1, PIECE_BYTES // call.plan.block_bytes)

    def _reachable(self, nodes: tuple[Elsewhere, ...]) -> dict[bytes, Link]:
        router = self._namespace.client.router
        found = {one.node_id: router.link(one.address) for one in nodes if one.node_id != self._home.node.node_id}
        return {node_id: link for node_id, link in found.items() if link is not None and not link.skipped}

    def result(self) -> GetResult:
        at, end = max(self._found.blocks, self._call.first), len(self._call.keys) // KEY_BYTES
        parts = shares(at, end, self._call.plan.block_bytes, self._sources())
        covered = parts[-1].end if parts else at
        reach = max(one.blocks for one in self._found.nodes)
        if covered < reach:  # this client does not reach who has the rest; the home node may
            parts.append(Share(covered, reach, ()))
        filled = [_Filled(part.first) for part in parts]
        tasks = [partial(self._fill, part, done) for part, done in zip(parts, filled, strict=True)]
        self._namespace.client.router.crew.run([*tasks[:1], *map(_cancelled_with, tasks[1:])])
        self._namespace.client.link.check_open()
        return self._joined(at, parts, filled)

    def _joined(self, at: int, parts: list[Share], filled: list[_Filled]) -> GetResult:
        """The prefix that has come; nothing is asked of a block behind one that nobody gave."""
        miss, bad = "absent", -1
        for part, done in zip(parts, filled, strict=True):
            at, miss, bad = done.reached, done.miss or miss, done.bad
            if at < part.end:
                break
        complete = at == len(self._call.keys) // KEY_BYTES
        return GetResult(at, False, "" if complete else miss, bad, holes=self._found.holes)

    def _sources(self) -> list[Source]:
        nodes = [one for one in self._found.nodes if one.node_id in self._links]
        near = {one.node_id for one in nodes if is_local(self._links[one.node_id].target.addresses[0].host)}
        found = [Source(one.node_id, one.blocks, one.node_id in near) for one in nodes]
        return [Source(_HOME, self._found.found), *found]

    # --- one share -----------------------------------------------------------------------------------------

    def _fill(self, share: Share, done: _Filled) -> None:
        """From one node after the other; what they do not give the home node fetches."""
        for name in share.names:
            try:
                while done.reached < share.end and self._piece(name, share, done):
                    pass
            except KVStoreError as error:
                done.miss = DEADLINE if isinstance(error, DeadlineExceeded) else "unavailable"
            if done.reached >= share.end or self._over():
                return
        self._fetched(share, done)

    def _piece(self, name: bytes, share: Share, done: _Filled) -> bool:
        """The next blocks from one node. Whether it has gone on."""
        count = min(self._step, share.end - done.reached)
        until = patience(self._deadline, count * self._call.plan.block_bytes)
        if name == _HOME:
            result = self._ask(self._home, self._call.handle, done.reached, count, until)
        else:
            result = self._links[name].run(
                until,
                lambda transport: self._namespace.with_handle(
                    transport, until, lambda one, handle: self._ask(one, handle, done.reached, count, until), False
                ),
            )
        if result.bad >= 0:
            self._damaged(name, result.bad, until)
        moved = result.blocks > done.reached
        done.reached, done.miss = max(done.reached, result.blocks), result.miss
        return moved and result.bad < 0

    def _ask(self, transport: Transport, handle: int, first: int, count: int, until: float) -> GetResult:
        at = (first - self._call.first) * self._width
        keys = self._call.keys
        if not isinstance(transport, TcpTransport):  # which has a bound on the blocks of one request beside the keys
            keys = keys[: (first + count) * KEY_BYTES]
        call = replace(self._call, handle=handle, first=first, keys=keys)
        return transport._get(call, self._into[at : at + count * self._width], until)

    def _damaged(self, name: bytes, block: int, until: float) -> None:
        """A block that failed its check must not be offered again."""
        key = self._call.keys[block * KEY_BYTES : (block + 1) * KEY_BYTES]
        link = self._namespace.client.link if name == _HOME else self._links[name]
        link.reporter.warn("checksum", f"block {key.hex()} failed its check and is dropped; another node is asked")
        link.run(
            until,
            lambda transport: self._namespace.with_handle(
                transport, until, lambda one, handle: one.evict(handle, key, until), name == _HOME
            ),
        )

    def _fetched(self, share: Share, done: _Filled) -> None:
        """By the home node, from whomever it reaches."""
        at, end = done.reached, share.end
        call = replace(self._call, here=False, keys=self._call.keys[: end * KEY_BYTES], first=at)
        into = self._into[(at - self._call.first) * self._width : (end - self._call.first) * self._width]
        try:
            result = self._home.get(call, into, self._deadline)
        except KVStoreError as error:
            done.miss = DEADLINE if isinstance(error, DeadlineExceeded) else done.miss or "unavailable"
            return
        done.reached, done.miss, done.bad = max(at, result.blocks), result.miss, result.bad

    def _over(self) -> bool:
        return cancelled() or time.monotonic() >= self._deadline


def _cancelled_with(task: Callable[[], None]) -> Callable[[], None]:
    """For another thread: it ends when the call of this one is cancelled."""
    cancel = current()
    if cancel is None:
        return task
    part = cancel.part()

    def run() -> None:
        with part.active():
            task()

    return run
