"""``kvstore bench local``: put, get and match on this host, beside what the machine does without us.

Client processes move blocks through the node and, in the same invocation and between the same buffers, by memcpy and
by raw sockets. Runs of both are interleaved. Integrity is on, as always.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kvstore import Client
from kvstore.cli.bench import index, worker
from kvstore.cli.bench.cases import MATCH_BLOCKS, Case, Setup, all_cases, full_cases, wanted
from kvstore.cli.bench.node import OwnNode
from kvstore.cli.bench.report import Report, Row, interleave, row
from kvstore.core.errors import InvalidArgument, KVStoreError
from kvstore.tiers.eviction import DEFAULT_POLICY

Progress = Callable[[str, int, int], object]  # what, done, of how many
LATENCY = Case("shm", "get", "2MiB", 1)
LATENCY_TARGET_US = 150
MATCH_TARGET_US = 10_000
INDEX = {"index.5m.bytes_per_entry": "bytes_per_entry", "index.5m.longest_pause": "longest_pause_cpu"}
PAUSE_TARGET_US = 20_000


@dataclass(frozen=True)
class Options:
    """``target``: a node that runs already (unix://...), else one is started. ``only``: patterns of case names."""

    target: str = ""
    runs: int = 5
    clients: int = 8
    working_set: int = 256 << 20
    only: tuple[str, ...] = ()
    passes: int = 3

    def __post_init__(self) -> None:
        if self.runs < 1 or self.clients < 1 or self.passes < 1:
            raise InvalidArgument("runs, clients and passes must be at least 1")
        if self.working_set % (64 << 20):
            raise InvalidArgument("the working set must be a multiple of 64 MiB, so that whole batches fill it")

    @property
    def capacity(self) -> int:
        """Room for what gets read (a set for each size and batch), for puts of each size, and the tables."""
        return 8 * self.working_set + (256 << 20)

    @property
    def full_capacity(self) -> int:
        """Room for the chain that each client reads and for what all of them put meanwhile."""
        return self.working_set + 3 * self.clients * (32 << 20) + (128 << 20)


class Crew:
    """The client processes. Results come back in order of their numbers."""

    def __init__(self, setup: Setup, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        barrier = self._barrier = context.Barrier(count)  # kept: its semaphores die with it
        self.setup, self.pipes, self.processes = setup, [], []
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=worker.main, args=(theirs, barrier, setup, number), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def call(self, clients: int, method: str, *arguments: Any) -> list[Any]:
        """Runs a method in the first ``clients`` processes; all of them begin together. Raises KVStoreError."""
        together = clients > 1 and clients == len(self.pipes)
        for pipe in self.pipes[:clients]:
            pipe.send((method, arguments, together))
        answers = [_answer(pipe) for pipe in self.pipes[:clients]]
        failed = [text for fine, text in answers if not fine]
        if failed:
            raise KVStoreError(f"a client process of the benchmark failed: {failed[0]}")
        return [value for _, value in answers]

    def rate(self, clients: int, method: str, *arguments: Any) -> float:
        """GB/s of all clients together, from the first begin to the last end."""
        timings = self.call(clients, method, *arguments)
        spent = max(one.end for one in timings) - min(one.begin for one in timings)
        return float(sum(one.amount for one in timings) / spent / 1e9)

    def microseconds(self, method: str, *arguments: Any) -> float:
        (timing,) = self.call(1, method, *arguments)
        return float(timing.end - timing.begin) * 1e6

    def close(self) -> None:
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _answer(pipe: Connection) -> tuple[bool, Any]:
    try:
        fine, value = pipe.recv()
    except (EOFError, OSError):
        return False, "a client process of the benchmark died"
    return fine, value


def run(options: Options, progress: Progress = lambda what, done, total: None) -> Report:
    """Measures all cases wanted. Raises KVStoreError when the node does not start, or misses what it was given."""
    report = Report("local")
    names = [case.name for case in _empty_enough(options)] + [case.name for case in _full(options)]
    extra = [name for name in ("shm.get.2MiB.latency", f"match.{MATCH_BLOCKS}", *INDEX) if wanted(name, options.only)]
    total = len(names) + len(extra)

    def add(found: Row) -> None:
        report.rows.append(found)
        progress(found.case, len(report.rows), total)

    with open_crew(options, _node(options, options.capacity)) as crew:
        for case in _empty_enough(options):
            add(throughput(crew, case, options))
        if wanted("shm.get.2MiB.latency", options.only):
            add(latency(crew, options))
        if wanted(f"match.{MATCH_BLOCKS}", options.only):
            add(match(crew, options))
    for label in ("2MiB", "64KiB"):
        cases = [case for case in _full(options) if case.label == label]
        if cases:
            with open_crew(options, OwnNode(options.full_capacity)) as crew:
                for case in cases:
                    add(full(crew, case, options))
    if any(name in extra for name in INDEX):
        for found in large_index():
            if found.case in extra:
                add(found)
    return report


def _empty_enough(options: Options) -> list[Case]:
    return [case for case in all_cases(options.clients) if wanted(case.name, options.only)]


def _full(options: Options) -> list[Case]:
    """Filling somebody's running node would evict what it holds, so these need a node of our own."""
    if options.target:
        return []
    found = [case for label in ("2MiB", "64KiB") for case in full_cases(label, options.clients)]
    return [case for case in found if wanted(case.name, options.only)]


# --- cases ------------------------------------------------------------------------------------------------------


def throughput(crew: Crew, case: Case, options: Options) -> Row:
    if case.op == "get":
        crew.call(1, "fill", case)
    (ways,) = crew.call(1, "ways", case)

    def ours() -> float:
        value = crew.rate(case.clients, case.op, case, options.passes)
        crew.call(case.clients, "forget")
        return value

    measured: dict[str, Callable[[], float]] = {"ours": ours}
    passes = options.passes if case.op == "get" else 1
    for way in ways:
        measured[way] = partial(crew.rate, case.clients, "alone", case, way, passes)
    return _measured(case, measured, options)


def full(crew: Crew, case: Case, options: Options) -> Row:
    crew.call(1, "flood", case, options.full_capacity)
    (ways,) = crew.call(1, "ways", case)

    def ours() -> float:
        if case.op == "put":
            return crew.rate(case.clients, "put", case, 1)
        timings = crew.call(case.clients, "get_among_puts", case, options.passes)
        return float(sum(one.amount / (one.end - one.begin) for one in timings) / 1e9)

    measured: dict[str, Callable[[], float]] = {"ours": ours}
    for way in ways:
        measured[way] = partial(crew.rate, case.clients, "alone", case, way, 1)
    return _measured(case, measured, options)


def _measured(case: Case, measured: dict[str, Callable[[], float]], options: Options) -> Row:
    for measure in measured.values():
        measure()  # maps memory, opens connections, faults pages in
    found = interleave(measured, options.runs)
    ours = found.pop("ours")
    return row(case.name, "GB/s", ours, ceilings=found, params=case.params(options.working_set))


def latency(crew: Crew, options: Options) -> Row:
    """One get of one 2 MiB block; the ceiling is its memcpy alone."""
    crew.call(1, "fill", LATENCY)
    (ways,) = crew.call(1, "ways", LATENCY)
    measured: dict[str, Callable[[], float]] = {"ours": partial(crew.microseconds, "latency", LATENCY, 300)}
    for way in ways:
        measured[way] = partial(crew.microseconds, "alone_latency", LATENCY, way, 300)
    for measure in measured.values():
        measure()
    found = interleave(measured, options.runs)
    result = row("shm.get.2MiB.latency", "us", found.pop("ours"), ceilings=found, params={"block_bytes": LATENCY.size})
    assert result.ceiling is not None
    over = {"over_memcpy_us": round(result.value - result.ceiling, 1), "target_over_memcpy_us": LATENCY_TARGET_US}
    return _with(result, over)


def match(crew: Crew, options: Options) -> Row:
    """Hashing 131,072 uint32 tokens and matching their 8,192 blocks; the ceiling is the hashing alone."""
    measured: dict[str, Callable[[], float]] = {
        "ours": partial(crew.microseconds, "match", 20),
        "blake2b": partial(crew.microseconds, "hash_alone", 20),
    }
    for measure in measured.values():
        measure()
    found = interleave(measured, options.runs)
    params = {"keys": MATCH_BLOCKS, "tokens": MATCH_BLOCKS * 16, "target_us": MATCH_TARGET_US}
    return row(f"match.{MATCH_BLOCKS}", "us", found.pop("ours"), ceilings=found, params=params)


def large_index() -> list[Row]:
    """Memory an entry and the longest operation under the lock, of an index of 5 million entries under the default
    policy that is full and evicts. The operation is measured in CPU time: other processes of this machine do not show
    in it; ``longest_wall_us`` has them in."""
    with multiprocessing.get_context("spawn").Pool(1) as fresh:  # its resident memory is what is measured
        rows = {found.case: found for found in fresh.apply(index.run, (index.ENTRIES, (DEFAULT_POLICY,)))}
    wall = {"longest_wall_us": round(rows[f"{DEFAULT_POLICY}.longest_pause"].value, 1), "target_us": PAUSE_TARGET_US}
    found = {name: replace(rows[f"{DEFAULT_POLICY}.{measure}"], case=name) for name, measure in INDEX.items()}
    return [_with(one, wall) if one.unit == "us" else one for one in found.values()]


def _with(found: Row, params: dict[str, Any]) -> Row:
    return replace(found, params={**found.params, **params})


# --- processes --------------------------------------------------------------------------------------------------


@contextmanager
def open_crew(options: Options, node: AbstractContextManager[tuple[str, str]]) -> Iterator[Crew]:
    """Client processes, and what they work with: a node, a raw peer, a file to copy from."""
    with ExitStack() as stack:
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        folder = tempfile.mkdtemp(prefix="kvstore-bench-", dir=memory)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        shm_target, tcp_target = stack.enter_context(node)
        setup = Setup(
            shm_target,
            tcp_target,
            f"{folder}/region",
            stack.enter_context(_peer(options.working_set)),
            options.working_set,
            f"kvstore-bench-{os.getpid()}",
        )
        crew = Crew(setup, options.clients)
        stack.callback(crew.close)
        yield crew


@contextmanager
def _peer(length: int) -> Iterator[tuple[str, int]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=worker.peer, args=(theirs, length), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.kill()
        process.join()


def _node(options: Options, capacity: int) -> AbstractContextManager[tuple[str, str]]:
    return _running(options.target) if options.target else OwnNode(capacity)


@contextmanager
def _running(target: str) -> Iterator[tuple[str, str]]:
    """The two addresses of a node that runs already."""
    with Client(target, on_failure="raise") as client:
        stat = client.stat()
    if not stat.socket or not stat.data_address:
        raise InvalidArgument(f"{target} must serve a unix socket on this host and TCP, to be measured on both")
    yield f"unix://{stat.socket}", f"kv://{stat.data_address}"
