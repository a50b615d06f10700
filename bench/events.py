"""What it costs a store to tell others of its blocks: ``python -m bench.events [--json]``.

Blocks are put into a full store, so that each put evicts as many. CPU time, not wall time: other work does not show.
The ceiling of a put is a store whose journal does nothing at all.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from kvstore.cli.bench.report import Report, interleave, row
from kvstore.cluster.feed import Feed
from kvstore.core.keys import KeyArray
from kvstore.core.namespace import NamespaceSpec
from kvstore.node.events import Events
from kvstore.tiers.memfile import purge
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import ChainSlice, StoreConfig
from kvstore.v1 import events_pb2 as pb

SPEC = NamespaceSpec("bench", 16, block_bytes=4096)
NODE_ID = bytes(16)
CAPACITY = 64 << 20
BLOCKS = 4096  # put in one run
RUNS = 9


class Nothing:
    """Takes the place of a journal, and of a sink."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


class Store:
    """A full store; ``put`` answers the CPU time of a block in µs."""

    def __init__(self, journal: bool = True) -> None:
        self.config = StoreConfig(Path(f"/dev/shm/kvstore-bench-{uuid.uuid4().hex}.mem"), CAPACITY)
        self.store = BlockStore(self.config)
        if not journal:
            self.store._state.journal = Nothing()  # type: ignore[assignment]
        self.session = self.store.open_session(False)
        self.view = self.store.open_namespace(SPEC.canonical())
        self.random = np.random.default_rng(0)
        self.put(256, 2 * CAPACITY // SPEC.block_bytes)

    def keys(self, count: int) -> KeyArray:
        return self.random.integers(1, 2**63, (count, 2), np.uint64)

    def put(self, chain: int, blocks: int = BLOCKS, clock: Callable[[], float] = time.thread_time) -> float:
        begun = clock()
        for _ in range(blocks // chain):
            found = self.store.reserve(self.session, self.view.handle, ChainSlice(self.keys(chain)))
            self.store.commit(self.session, found.id, np.zeros(found.slots, np.uint64))
        return (clock() - begun) / blocks * 1e6

    def close(self) -> None:
        self.store.close()
        purge(self.config.memory_file)


class Watched(Store):
    """One watcher takes everything, on a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.events = Events(self.store.journal, NODE_ID, self.store.boot_id, lambda: False)
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        feed = Feed(NODE_ID, 0, Nothing(), lambda root, canonical: None)
        for message in self.events.watch(feed.request()):
            feed.take(pb.EventBatch.FromString(message.SerializeToString()))

    def close(self) -> None:
        self.events.close()
        self.thread.join()
        super().close()


def puts(runs: int, report: Report) -> None:
    """What a put costs its caller, and (``process``) with the threads of the store and the watcher."""
    stores: dict[str, Store] = {"none": Store(journal=False), "unwatched": Store(), "watched": Watched()}
    try:
        for chain, clock in itertools.product((1, 64), (time.thread_time, time.process_time)):
            found = interleave({name: partial(one.put, chain, clock=clock) for name, one in stores.items()}, runs)
            kind = "process" if clock is time.process_time else "caller"
            for name in ("unwatched", "watched"):
                params = {"chain": chain, "block_bytes": SPEC.block_bytes}
                case = f"put.{chain}.{kind}.{name}"
                report.rows.append(row(case, "us", found[name], ceilings={"no journal": found["none"]}, params=params))
    finally:
        for store in stores.values():
            store.close()


class Stages:
    """The way of an event: from the store's note to the sink, step by step, all in one thread."""

    def __init__(self, run: int) -> None:
        """``run``: blocks that follow each other in what is told."""
        self.run = run
        self.made = Store()
        self.made.store.journal.wake = threading.Event()  # batches are made when it is measured
        self.watching = self.made.store.journal.watching()
        self.watching.__enter__()

    def measure(self) -> dict[str, float]:
        """CPU time a key in µs, and bytes a key."""
        store, journal = self.made, self.made.store.journal
        at, keys = journal.sequence, 0
        store.put(self.run)
        begun = time.thread_time()
        journal.flush()
        flushed = time.thread_time()
        batches = []
        while batch := journal.next(at, 0):
            batches.append(batch)
            keys, at = keys + sum(map(len, batch.events)), batch.sequence
        events = Events(journal, NODE_ID, store.store.boot_id, lambda: False)
        taken = time.thread_time()
        wire = [events.encoded(batch).message.SerializeToString() for batch in batches]
        encoded = time.thread_time()
        feed = Feed(NODE_ID, 0, Nothing(), lambda root, canonical: None)
        feed.boot_id, feed.sequence, feed.behind = store.store.boot_id, batches[0].sequence - 1, False
        for data in wire:
            feed.take(pb.EventBatch.FromString(data))
        fed = time.thread_time()
        pieces = list(journal.snapshot()[1])
        told = sum(map(len, pieces))
        shot = time.thread_time()
        return {
            "flush": (flushed - begun) / keys * 1e6,
            "encode": (encoded - taken) / keys * 1e6,
            "take": (fed - encoded) / keys * 1e6,
            "snapshot": (shot - fed) / told * 1e6,
            "wire": sum(map(len, wire)) / keys,
        }

    def close(self) -> None:
        self.watching.__exit__(None, None, None)
        self.made.close()


def stages(runs: int, report: Report) -> None:
    for run in (1, 64):
        measured = Stages(run)
        try:
            found = [measured.measure() for _ in range(runs)]
        finally:
            measured.close()
        for name in found[0]:
            unit = "bytes" if name == "wire" else "us"
            report.rows.append(row(f"key.{run}.{name}", unit, [one[name] for one in found], params={"run": run}))


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.events", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    report = Report("events")
    puts(given.runs, report)
    stages(given.runs, report)
    print(report.to_json() if given.json else report.to_text())


if __name__ == "__main__":
    main()
