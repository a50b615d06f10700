"""Readers, holders that fail, evict and come back, and evictions here, at random: what is stored is always right."""

from __future__ import annotations

import random
import threading
import time

import pytest

from kvstore.cluster import fetch, holder_links
from kvstore.core.errors import Busy, DeadlineExceeded, KVStoreError, Unavailable, Unsupported
from tests.unit.cluster.fetch_fakes import HANDLE, ROOT, Cell, cell, chain, checksum, content

READERS, ROUNDS, BLOCKS = 4, 60, 40
FAILURES: list[KVStoreError] = [
    Unavailable("it went away"),
    DeadlineExceeded("it was late"),
    Busy("too many leases"),
    Unsupported("rotated there"),
]


def trouble(dice: random.Random, lock: threading.Lock) -> None:
    """What may happen before an answer."""
    with lock:
        what, failure = dice.random(), dice.choice(FAILURES)
    if what < 0.15:
        raise failure
    if what < 0.4:
        time.sleep(what / 100)


def read(found: Cell, seed: int, wrong: list[str]) -> None:
    dice = random.Random(seed)
    for _ in range(ROUNDS):
        keys = chain(BLOCKS, dice.randrange(6))[: dice.randint(1, BLOCKS)]
        have = next((at for at, key in enumerate(keys) if key.tobytes() not in found.store.blocks), len(keys))
        living, began, seconds = dice.random() < 0.9, time.monotonic(), dice.choice((0.005, 0.05, 1.0))
        enough = dice.randint(have, len(keys))
        try:
            got = found.fetcher.fetch(
                HANDLE, ROOT, keys, (), have, began + seconds, lambda living=living: living, enough
            )  # type: ignore[misc]
        except Exception as error:
            wrong.append(f"{error!r}")
            return
        if time.monotonic() - began > seconds + 1.0:
            wrong.append("past its deadline")
        if not have <= got <= len(keys):
            wrong.append(f"{got} blocks of {len(keys)}, {have} were here")


def disturb(found: Cell, seed: int, stopping: threading.Event) -> None:
    dice = random.Random(seed)
    while not stopping.wait(0.002):
        node = dice.choice(found.nodes)
        keys = [key.tobytes() for key in chain(BLOCKS, dice.randrange(6))]
        what = dice.random()
        if what < 0.2:
            found.store.evict(keys[dice.randrange(BLOCKS) :])
        elif what < 0.4:
            node.blocks -= set(keys[dice.randrange(BLOCKS) :])
        elif what < 0.7:
            node.blocks |= set(keys)
        elif what < 0.8:
            node.damaged = set(dice.sample(keys, 2))
        elif what < 0.85 and node.sessions:
            node.sessions[-1].over = True
        else:
            node.most = dice.choice((1, 3, 1000))


@pytest.mark.parametrize("seed", range(4))
def test_nothing_wrong_is_ever_stored_and_nothing_is_left_behind(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "BATCH_BYTES", 7 * 4096)
    monkeypatch.setattr(fetch, "_FRESH", 0.0)
    monkeypatch.setattr(holder_links, "FIRST_BACKOFF", 0.001)
    monkeypatch.setattr(holder_links, "SLOW_BACKOFF", 0.002)
    monkeypatch.setattr(holder_links, "LONGEST_BACKOFF", 0.004)
    lock, wrong, stopping = threading.Lock(), list[str](), threading.Event()
    with cell(3, monkeypatch) as found:
        dice = random.Random(seed)
        for number in range(6):
            for node in dice.sample(range(3), 2):
                found.hold(node, chain(BLOCKS, number))
        for node in found.nodes:
            node.before = lambda first: trouble(dice, lock)
        found.store.room = 20
        readers = [threading.Thread(target=read, args=(found, 10 * seed + at, wrong)) for at in range(READERS)]
        other = threading.Thread(target=disturb, args=(found, seed, stopping))
        for thread in (*readers, other):
            thread.start()
        for thread in readers:
            thread.join(60.0)
        stopping.set()
        other.join(60.0)
        end = time.monotonic() + 30.0
        while found.fetcher.under_way and time.monotonic() < end:
            time.sleep(0.005)
        assert wrong == []
        assert not found.fetcher.under_way
        assert found.store.writing == {}
        assert found.fetcher.counters["blocks"] > 2 * BLOCKS
        assert "failed_error" not in found.fetcher.counters
        for key, stored in found.store.blocks.items():
            assert stored == (content(key).tobytes(), checksum(key))
