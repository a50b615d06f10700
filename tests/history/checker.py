"""Whether a history keeps the promises of a cell. Pure: records in, violations out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.history.record import EVICT, LOOKUPS, MATCH, PUT, READS, Event, History, Op
from tests.history.world import Block, World

ALLOWANCE = 1.0  # seconds that a call may end after its deadline, besides those for which the caller did not run
LOSES = {"visible": ("reboot", "wipe"), "durable": ("wipe",), "replicated": ("reboot", "wipe")}


@dataclass(frozen=True)
class Violation:
    """``rule``: bytes, phantom, late, raised, lost, stale, evicted, disagreement, copies."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass(frozen=True)
class Promise:
    """A put that was acknowledged: so many leading blocks of a chain are owed to whoever looks for them."""

    tenant: str
    chain: int
    blocks: int
    ack: str
    node: int
    since: float  # when the put began
    given: float  # when it was acknowledged
    version: int
    name: str


def check(history: History, world: World, replicas: int) -> list[Violation]:
    """All violations, of all rules."""
    return [
        *_raised(history.ops),
        *_late(history.ops),
        *_evicted(history.events),
        *_bytes(history, world),
        *_lost(history, world, replicas),
        *_disagreements(history.ops),
        *_copies(history, world, replicas),
    ]


# --- what a call may do ---------------------------------------------------------------------------------------


def _raised(ops: Iterable[Op]) -> Iterator[Violation]:
    for op in ops:
        if op.error:
            yield Violation("raised", f"{op.name}: {op.error}")


def _late(ops: Iterable[Op]) -> Iterator[Violation]:
    for op in ops:
        if op.end is None:
            continue
        over = op.end - op.start - op.timeout - op.late
        if over > ALLOWANCE:
            yield Violation("late", f"{op.name} ended {over:.2f} s after its deadline of {op.timeout:g} s")


def _evicted(events: Iterable[Event]) -> Iterator[Violation]:
    """Nothing can be owed by a store that was too full to keep it: a run has to have room enough."""
    for event in events:
        if event.what == "evicted" and event.count:
            yield Violation("evicted", f"node {event.node} evicted {event.count} blocks; the run has too little room")


# --- every byte is one that was put -----------------------------------------------------------------------------


def _bytes(history: History, world: World) -> Iterator[Violation]:
    first_put = _first_puts(history.ops, world)
    rotations = [event for event in history.events if event.what == "rotated"]
    for op in history.ops:
        if op.kind not in READS or op.end is None:
            continue
        blocks, oldest = world.blocks(op.chain), _version_at(rotations, op.tenant, op.start)
        for index, found in op.seen:
            versions = first_put.get((op.tenant, blocks[index]), {})
            of = [version for version in versions if world.digest(op.tenant, blocks[index], version) == found]
            if not of:
                rule = "bytes" if versions else "phantom"
                yield Violation(rule, f"{op.name}, block {index} holds what nobody put there")
            elif versions[of[0]] > op.end:
                yield Violation("phantom", f"{op.name}, block {index} was read before anyone put it")
            elif of[0] < oldest:
                text = f"block {index} is of version {of[0]}, void since version {oldest} was told of"
                yield Violation("stale", f"{op.name}, {text}")


def _first_puts(ops: Iterable[Op], world: World) -> dict[tuple[str, Block], dict[int, float]]:
    """Which versions of a block were ever put, and since when."""
    found: dict[tuple[str, Block], dict[int, float]] = defaultdict(dict)
    for op in ops:
        if op.kind == PUT:
            for block in world.blocks(op.chain)[op.first : op.blocks]:
                found[op.tenant, block].setdefault(op.version, op.start)
    return found


def _version_at(rotations: Iterable[Event], tenant: str, at: float) -> int:
    """How often all nodes had voided a namespace by then."""
    return sum(event.count for event in rotations if event.tenant == tenant and event.at < at)


# --- what was acknowledged is found -------------------------------------------------------------------------------


def _lost(history: History, world: World, replicas: int) -> Iterator[Violation]:
    promises = promised(history.ops)
    drops = _Drops(history.ops, world)
    for op in history.ops:
        if not op.must or op.kind not in LOOKUPS or op.end is None:
            continue
        for promise in promises[op.tenant, op.chain]:
            if op.found < promise.blocks and promise.given <= op.start:
                if not kept(promise, op.start, history.events, replicas, op.node) or drops.hit(promise, op.end):
                    continue
                text = f"found {op.found} of {promise.blocks} blocks, {promise.ack} since {promise.name}"
                yield Violation("lost", f"{op.name} at node {op.node} {text}")
                break


def promised(ops: Iterable[Op]) -> dict[tuple[str, int], list[Promise]]:
    """By tenant and chain."""
    found: dict[tuple[str, int], list[Promise]] = defaultdict(list)
    for op in ops:
        if op.kind == PUT and op.complete and op.end is not None:
            found[op.tenant, op.chain].append(
                Promise(op.tenant, op.chain, op.blocks, op.ack, op.node, op.start, op.end, op.version, op.name)
            )
    return found


def kept(promise: Promise, at: float, events: Iterable[Event], replicas: int, asked: int = -1) -> bool:
    """Whether a promise still binds: whoever loses things did not lose all that the acknowledgement spoke of, and
    the node asked can reach one that has it."""
    copies = replicas if promise.ack == "replicated" else 1
    holder = _Holder(promise)
    lost, away = set[int](), _Away(asked)
    for event in events:
        if event.at > at:
            break
        away.take(event)
        if event.at < promise.since:
            continue
        if event.what in LOSES[promise.ack] and holder.may_be(event.node):
            lost.add(event.node)
            if len(lost) >= copies:
                return False
        elif event.what == "whole":
            lost.clear()
        elif event.what == "drained":
            holder.moved(event)
        elif event.what == "rotated" and event.tenant == promise.tenant:
            return False
    return copies > sum(node in lost or holder.may_be(node) for node in lost | away.nodes)


class _Away:
    """Which nodes do not run, or cannot be reached from the one asked."""

    def __init__(self, asked: int) -> None:
        self._asked = asked
        self.nodes: set[int] = set()

    def take(self, event: Event) -> None:
        if event.what in ("kill", "pause", "reboot", "wipe", "isolate"):
            self.nodes.add(event.node)
        elif event.what in ("start", "resume"):
            self.nodes.discard(event.node)
        elif event.what == "cut" and self._asked in (event.node, event.other):
            self.nodes |= {event.node, event.other} - {self._asked}
        elif event.what == "heal":
            self.nodes.clear()


class _Holder:
    """Which nodes may have what was promised: each of them may be the one that has it. For copies that is any."""

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._node = -1 if promise.ack == "replicated" else promise.node
        self._left: set[int] = set()

    def moved(self, event: Event) -> None:
        """All that a node had then is on others."""
        if self._promise.given <= event.at and self._promise.ack != "replicated" and self._node in (-1, event.node):
            self._node = -1
            self._left.add(event.node)

    def may_be(self, node: int) -> bool:
        return node not in self._left and self._node in (-1, node)


class _Drops:
    """Blocks that were evicted by name, from when to when."""

    def __init__(self, ops: Iterable[Op], world: World) -> None:
        self._world = world
        self._found: dict[tuple[str, Block], list[tuple[float, float]]] = defaultdict(list)
        for op in ops:
            if op.kind == EVICT:
                for block in world.blocks(op.chain)[op.first : op.blocks]:
                    self._found[op.tenant, block].append((op.start, math.inf if op.end is None else op.end))

    def hit(self, promise: Promise, by: float) -> bool:
        """Whether such a call may have taken one of the promised blocks after it was put: with its subtree, so also
        one further down."""
        return any(
            start <= by and end >= promise.since
            for block in self._world.blocks(promise.chain)[: promise.blocks]
            for start, end in self._found.get((promise.tenant, block), ())
        )


# --- when all is quiet ---------------------------------------------------------------------------------------------


def _disagreements(ops: Iterable[Op]) -> Iterator[Violation]:
    """Audits by match that belong together carry the same timeout and version mark: ``ack`` names the audit."""
    found: dict[tuple[str, str, int], dict[int, Op]] = defaultdict(dict)
    for op in ops:
        if op.must and op.kind == MATCH and op.ack and op.end is not None:
            found[op.ack, op.tenant, op.chain][op.node] = op
    for (audit, tenant, chain), by_node in found.items():
        answers = {node: op.found for node, op in by_node.items()}
        if len(set(answers.values())) > 1:
            text = ", ".join(f"node {node}: {count}" for node, count in sorted(answers.items()))
            yield Violation(
                "disagreement", f"{audit}: blocks of {tenant} chain {chain} differ by whom is asked: {text}"
            )


def _copies(history: History, world: World, replicas: int) -> Iterator[Violation]:
    """Every promise of copies is kept by so many nodes again once all is whole."""
    counts: dict[float, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in history.holdings:
        counts[one.at][one.tenant, one.chain].append(one.blocks)
    for at, found in counts.items():
        for promise in owed_copies(history, world, replicas, at):
            held = found.get((promise.tenant, promise.chain))
            if held is not None and sum(blocks >= promise.blocks for blocks in held) < min(replicas, len(held)):
                text = f"nodes have {held} blocks of {promise.blocks}, replicated since {promise.name}"
                yield Violation("copies", f"{promise.tenant} chain {promise.chain}: {text}")


def owed_copies(history: History, world: World, replicas: int, at: float) -> list[Promise]:
    """What so many nodes are to keep by then: of each chain the longest that was promised."""
    drops = _Drops(history.ops, world)
    found = []
    for promises in promised(history.ops).values():
        longest = 0
        for promise in sorted(promises, key=lambda one: one.since, reverse=True):
            if promise.blocks <= longest or promise.ack != "replicated" or promise.given > at:
                continue
            if kept(promise, at, history.events, replicas) and not drops.hit(promise, at):
                longest = promise.blocks
                found.append(promise)
    return found
