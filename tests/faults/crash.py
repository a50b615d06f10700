"""Crashes under load: a writer dies with its power or by SIGKILL at a seeded random moment, then all is checked.

The writer says what is durable, and what it is about to free, in a log outside the disk. After the crash every block
that was said to be durable and not about to be freed must be there, and whatever is recovered must have its bytes.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from kvstore.tiers.nvme.directory import NvmeConfig
from kvstore.tiers.nvme.ticket import Outcome, Ticket
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.tier import Slots
from tests.faults.disks import LoopDisk
from tests.unit.nvme.blocks import MIB, Blocks, config

Mode = Literal["power", "kill"]
SIZES = (4096, 64 << 10, 200_001)
_BLOCKS = [Blocks(size, f"size-{size}") for size in SIZES]


@dataclass
class Score:
    """What a series of crashes came to."""

    rounds: int = 0
    acknowledged: int = 0
    recovered: int = 0
    checked: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def line(self, mode: str) -> str:
        return (
            f"{mode}: {self.rounds} crashes, {self.acknowledged} blocks acknowledged durable, "
            f"{self.recovered} recovered, {self.checked} checked byte by byte, "
            f"{len(self.lost)} lost, {len(self.wrong)} wrong"
        )


def settings(directory: Path) -> NvmeConfig:
    return config(directory, 40 * MIB)


class Crash:
    """A series of crashes on one disk; what survived one is there for the next."""

    def __init__(self, disk: LoopDisk, log: Path, mode: Mode, seed: int) -> None:
        self.disk, self.log, self.mode = disk, log, mode
        self.random = random.Random(seed)
        self.score = Score()
        self.held: set[tuple[int, int]] = set()  # (size index, number) that must be there
        self.numbers = 0

    def round(self) -> None:
        """One writer, one crash, one check."""
        self.log.unlink(missing_ok=True)
        self.numbers += 1_000_000
        pid = os.fork()
        if not pid:
            _child(lambda: write_load(self.disk.directory, self.log, self.random.random(), self.numbers))
        self._wait_for_writes(pid)
        time.sleep(self.random.uniform(0.0, 0.4))
        if self.mode == "power":
            self.disk.lose_power()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if self.mode == "power":
            self.disk.unmount()
            self.disk.mount()
        self._read_log()
        self._check()
        self.score.rounds += 1

    def _wait_for_writes(self, pid: int) -> None:
        deadline = time.monotonic() + 60
        while not self.log.exists() or not self.log.stat().st_size:
            if os.waitpid(pid, os.WNOHANG)[0] or time.monotonic() > deadline:
                raise AssertionError("the writer did not start")
            time.sleep(0.005)

    def _read_log(self) -> None:
        lines = self.log.read_text().splitlines()
        if bad := [line for line in lines if line.startswith("wrong")]:
            self.score.wrong += bad
        for line in lines:
            word, *rest = line.split()
            if word == "durable":
                self.held.add((int(rest[0]), int(rest[1])))
                self.score.acknowledged += 1
        for line in lines:
            word, *rest = line.split()
            if word == "free":
                self.held.discard((int(rest[0]), int(rest[1])))

    def _check(self) -> None:
        tier = NvmeTier(settings(self.disk.directory))
        try:
            found = load(tier)
            self.score.recovered += len(found)
            self.score.lost += [f"round {self.score.rounds}: {key}" for key in self.held - found.keys()]
            for key, (slot, generation) in found.items():
                self._check_block(tier, key, slot, generation)
        finally:
            tier.close()
        self.held = set(found)  # an entry that became durable without word of it counts from now on

    def _check_block(self, tier: NvmeTier, key: tuple[int, int], slot: int, generation: int) -> None:
        size, number = key
        blocks = _BLOCKS[size]
        slots = Slots(np.array([slot], np.uint32), np.array([generation], np.uint32))
        (want,) = blocks.wants(tier, slots, [number])
        (got,) = tier.fetch([want])
        self.score.checked += 1
        if got.reason:  # a miss would be legal, but an entry is there only for bytes that were synced
            self.score.lost.append(f"round {self.score.rounds}: {key} is a miss: {got.reason}")
        elif want.into != blocks.content(number):
            self.score.wrong.append(f"round {self.score.rounds}: {key}")


def load(tier: NvmeTier) -> dict[tuple[int, int], tuple[int, int]]:
    """Recovers; slot and generation by (size index, number)."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for batch in tier.recover():
        columns = (batch.lengths, batch.blocks, batch.slots, batch.generations)
        for length, number, slot, generation in zip(*(c.tolist() for c in columns), strict=True):
            found[SIZES.index(length), number] = (slot, generation)
    return found


# --- the writer ----------------------------------------------------------------------------------------------------


def _child(work: Callable[[], None]) -> None:
    logging.disable()  # the disk dies: that is the point
    try:
        work()
    except BaseException as error:
        os.write(2, f"writer: {error!r}\n".encode())
    finally:
        os._exit(1)


def write_load(directory: Path, log: Path, seed: float, first: int) -> None:
    """Puts batches of random sizes, frees some when it is full, reads back; until it dies."""
    rng, next_number = random.Random(seed), first
    tier = NvmeTier(settings(directory))
    held = load(tier)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(word: str, size: int, number: int) -> None:
        os.write(out, f"{word} {size} {number}\n".encode())

    pending: list[Ticket] = []
    say("start", 0, 0)
    while True:
        size = rng.choice((0, 0, 1, 1, 1, 2))
        blocks, count = _BLOCKS[size], rng.randint(1, 12)
        slots = tier.allocate(blocks.bytes, blocks.cut.count, count)
        if len(slots.slots) < count or tier.stat().used_bytes > 30 * MIB:
            _free_some(tier, held, rng, say)
        numbers = list(range(next_number, next_number + len(slots.slots)))
        next_number += len(numbers)
        if not numbers:
            time.sleep(0.002)
            continue
        contents = [blocks.content(number) for number in numbers]
        ticket = tier.persist(
            blocks.entries(tier.open_namespace(blocks.spec.canonical()), slots, numbers, contents), contents
        )
        ticket.on_settled(lambda done, size=size, numbers=numbers: _acknowledge(done, size, numbers, say))
        pending = [one for one in [*pending, ticket] if not one.wait_durable(0)]
        if len(pending) > 20:
            pending[0].wait_durable(10)
        for number, slot, generation in zip(numbers, slots.slots.tolist(), slots.generations.tolist(), strict=True):
            held[size, number] = (slot, generation)
        _read_one(tier, held, rng, say)


def _acknowledge(ticket: Ticket, size: int, numbers: list[int], say: Callable[[str, int, int], None]) -> None:
    for number, outcome in zip(numbers, ticket.outcomes.tolist(), strict=True):
        if outcome == Outcome.DURABLE:
            say("durable", size, number)


def _free_some(
    tier: NvmeTier,
    held: dict[tuple[int, int], tuple[int, int]],
    rng: random.Random,
    say: Callable[[str, int, int], None],
) -> None:
    for size, number in rng.sample(sorted(held), min(len(held), 30)):
        say("free", size, number)
        tier.free(np.array([held.pop((size, number))[0]], np.uint32))


def _read_one(
    tier: NvmeTier,
    held: dict[tuple[int, int], tuple[int, int]],
    rng: random.Random,
    say: Callable[[str, int, int], None],
) -> None:
    size, number = rng.choice(list(held))
    slot, generation = held[size, number]
    slots = Slots(np.array([slot], np.uint32), np.array([generation], np.uint32))
    (want,) = _BLOCKS[size].wants(tier, slots, [number])
    (got,) = tier.fetch([want])
    if not got.reason and want.into != _BLOCKS[size].content(number):
        say("wrong", size, number)
