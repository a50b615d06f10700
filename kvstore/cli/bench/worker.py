"""One client process of ``kvstore bench local``: moves bytes through the node, or without it, and times that."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np

from kvstore import Client, Namespace, NamespaceSpec
from kvstore.cli.bench import ceilings
from kvstore.cli.bench.cases import BLOCK_TOKENS, MATCH_BLOCK_BYTES, MATCH_BLOCKS, Case, Setup, TransportName
from kvstore.core.keys import Keys

CALL_TIMEOUT = 60.0  # a benchmark wants to see a slow call, not a miss
MOST_CALLS = 2048  # of one measurement, over all clients: small blocks need not fill the working set


@dataclass(frozen=True)
class Timing:
    """Begin and end on the clock that all processes share, seconds; bytes moved (or calls made)."""

    begin: float
    end: float
    amount: int


class Worker:
    """Number ``number`` of ``count`` clients that work at the same time."""

    def __init__(self, setup: Setup, number: int) -> None:
        self.setup, self.number = setup, number
        self._clients: dict[TransportName, Client] = {}
        self._spaces: dict[tuple[str, str, int, bool], Namespace] = {}
        self._buffers: dict[tuple[int, int], list[ceilings.Bytes]] = {}
        self._passes: dict[Case, dict[str, ceilings.Pass]] = {}
        self._lanes: list[socket.socket] = []
        self._written: list[tuple[Namespace, Keys]] = []
        self._next = 1 + (number << 40)
        self._region: ceilings.Bytes | None = None

    # --- through the node ---------------------------------------------------------------------------------

    def fill(self, case: Case) -> Timing:
        """Puts the blocks that gets of this case read."""
        buffers = self.buffers(case)
        begin = time.perf_counter()
        for keys in self.resident(case):
            done = self.space(case).put(keys, buffers, timeout=CALL_TIMEOUT)
            if done.stored + done.present != case.batch:
                raise RuntimeError(
                    f"{case.name}: only {done.stored} of {case.batch} blocks were stored: {done.reasons}"
                )
        return Timing(begin, time.perf_counter(), self.setup.working_set)

    def flood(self, case: Case, amount: int) -> Timing:
        """Puts ``amount`` bytes of new blocks and leaves them there."""
        calls = -(-amount // (case.size * case.batch))
        timing = self._puts(case, calls)
        self._written.clear()
        return timing

    def get(self, case: Case, passes: int) -> Timing:
        """This client's share of the gets; each goes over the chains from a place of its own."""
        space, buffers, chains = self.space(case), self.buffers(case), self.resident(case)
        calls, first = self.share(case, passes), self.number * len(chains) // case.clients
        turn = [chains[(first + nth) % len(chains)] for nth in range(calls)]
        begin = time.perf_counter()
        for keys in turn:
            if space.get(keys, buffers, timeout=CALL_TIMEOUT) != case.batch:
                raise RuntimeError(f"{case.name}: a block that was stored was not given: {self.why(case)}")
        return Timing(begin, time.perf_counter(), calls * case.batch * case.size)

    def put(self, case: Case, passes: int) -> Timing:
        del passes  # one pass fills the room that there is for puts
        return self._puts(case, self.share(case, 1))

    def share(self, case: Case, passes: int) -> int:
        """Calls of one client, when all of them together move the working set ``passes`` times."""
        calls = passes * self.setup.working_set // (case.size * case.batch)
        return max(1, min(calls, MOST_CALLS) // case.clients)

    def _puts(self, case: Case, calls: int) -> Timing:
        space, buffers = self.space(case), self.buffers(case)
        chains = [space.keys(self.fresh_tokens(case.batch)) for _ in range(calls)]
        stored = 0
        begin = time.perf_counter()
        for keys in chains:
            stored += space.put(keys, buffers, timeout=CALL_TIMEOUT).stored
        end = time.perf_counter()
        self._written.extend((space, keys) for keys in chains)
        if stored != calls * case.batch:
            raise RuntimeError(f"{case.name}: only {stored} of {calls * case.batch} blocks stored: {self.why(case)}")
        return Timing(begin, end, stored * case.size)

    def get_among_puts(self, case: Case, passes: int) -> Timing:
        """Gets of one chain while others are put, which makes the node evict; only the gets are timed.

        Eviction may have taken the chain's end meanwhile: what a get gives counts, and the rest is put again.
        """
        space, buffers = self.space(case), self.buffers(case)
        keys = space.keys(self.fresh_tokens(case.batch))
        spent, calls, got = 0.0, 8 * passes, 0
        for _ in range(calls):
            space.put(keys, buffers, timeout=CALL_TIMEOUT)
            self.flood(case, case.size * case.batch)
            begin = time.perf_counter()
            got += space.get(keys, buffers, timeout=CALL_TIMEOUT)
            spent += time.perf_counter() - begin
        if 2 * got < calls * case.batch:
            raise RuntimeError(f"{case.name}: only {got} of {calls * case.batch} blocks were found: {self.why(case)}")
        return Timing(0.0, spent, got * case.size)

    def forget(self) -> Timing:
        """Evicts what puts have written."""
        for space, keys in self._written:
            space.evict(keys)
        self._written.clear()
        return Timing(0.0, 0.0, 0)

    def drop(self, case: Case) -> Timing:
        """Evicts what gets of this case read."""
        for keys in self.resident(case):
            self.space(case).evict(keys)
        return Timing(0.0, 0.0, 0)

    def latency(self, case: Case, calls: int) -> Timing:
        """Median duration of one get."""
        space, buffers, chains = self.space(case), self.buffers(case), self.resident(case)
        spent = []
        for nth in range(calls):
            keys = chains[nth % len(chains)]
            begin = time.perf_counter()
            space.get(keys, buffers, timeout=CALL_TIMEOUT)
            spent.append(time.perf_counter() - begin)
        return Timing(0.0, float(np.median(spent)), 1)

    def match(self, calls: int) -> Timing:
        """Median duration of hashing 131,072 tokens and matching their 8,192 blocks, all of them resident."""
        spec = NamespaceSpec(f"{self.setup.model}-match", BLOCK_TOKENS, MATCH_BLOCK_BYTES)
        space = self.client("shm").namespace(spec)
        tokens = np.arange(MATCH_BLOCKS * BLOCK_TOKENS, dtype=np.uint32)
        keys, block = space.keys(tokens), bytes(MATCH_BLOCK_BYTES)
        if space.match(keys, timeout=CALL_TIMEOUT) != MATCH_BLOCKS:
            for first in range(0, MATCH_BLOCKS, 1024):
                part = keys[: first + 1024]
                space.put(part, [block] * 1024, first=first, timeout=CALL_TIMEOUT)
        spent = []
        for _ in range(calls):
            begin = time.perf_counter()
            found = space.match(space.keys(tokens), timeout=CALL_TIMEOUT)
            spent.append(time.perf_counter() - begin)
            if found != MATCH_BLOCKS:
                raise RuntimeError(f"match found {found} of {MATCH_BLOCKS} blocks")
        return Timing(0.0, float(np.median(spent)), 1)

    # --- without it ---------------------------------------------------------------------------------------

    def ways(self, case: Case) -> list[str]:
        return list(self.passes(case))

    def alone(self, case: Case, way: str, passes: int) -> Timing:
        """The same bytes between the same buffers by one way of the machine."""
        move, amount = self.passes(case)[way], 0
        begin = time.perf_counter()
        for _ in range(passes):
            amount += move()
        return Timing(begin, time.perf_counter(), amount)

    def alone_latency(self, case: Case, way: str, calls: int) -> Timing:
        """Mean duration of one batch by one way of the machine, over a pass."""
        timing = self.alone(case, way, max(1, calls * case.size * case.batch // self.setup.working_set))
        return Timing(0.0, (timing.end - timing.begin) * case.size * case.batch / timing.amount, 1)

    def hash_alone(self, calls: int) -> Timing:
        """Median duration of the chained hashes of 131,072 tokens, by hashlib and nothing else."""
        data, blake2b = memoryview(np.arange(MATCH_BLOCKS * BLOCK_TOKENS, dtype="<u4")).cast("B"), hashlib.blake2b
        spent = []
        for _ in range(calls):
            begin, parent = time.perf_counter(), bytes(16)
            for at in range(0, len(data), 4 * BLOCK_TOKENS):
                state = blake2b(parent, digest_size=16)
                state.update(data[at : at + 4 * BLOCK_TOKENS])
                parent = state.digest()
            spent.append(time.perf_counter() - begin)
        return Timing(0.0, float(np.median(spent)), 1)

    def passes(self, case: Case) -> dict[str, ceilings.Pass]:
        if case not in self._passes:
            batch = case.size * case.batch
            share = max(1, self.setup.working_set // case.clients // batch) * batch
            if case.transport in ("tcp", "ucx"):
                found = ceilings.socket_passes(self.lanes(), share, self.buffers(case), case.op == "put")
            else:
                start = share * (self.number % case.clients) % self.setup.working_set
                region = self.region()[start : start + share]
                found = ceilings.memcpy_passes(region, self.buffers(case), case.op == "put")
            self._passes[case] = found
        return self._passes[case]

    def region(self) -> ceilings.Bytes:
        if self._region is None:
            self._region = ceilings.shared_region(self.setup.region, self.setup.working_set)
        return self._region

    def lanes(self) -> list[socket.socket]:
        while len(self._lanes) < 2:
            lane = socket.create_connection(self.setup.peer)
            lane.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lanes.append(lane)
        return self._lanes

    # --- what both use ------------------------------------------------------------------------------------

    def buffers(self, case: Case) -> list[ceilings.Bytes]:
        shape = (case.size, case.batch)
        if shape not in self._buffers:
            self._buffers[shape] = [ceilings.prefaulted(case.size) for _ in range(case.batch)]
        return self._buffers[shape]

    def client(self, transport: TransportName) -> Client:
        if transport not in self._clients:
            target = self.setup.target(transport)
            self._clients[transport] = Client(target, timeout=CALL_TIMEOUT, transport=transport, on_failure="raise")
        return self._clients[transport]

    def space(self, case: Case) -> Namespace:
        found = (case.transport, case.label, case.batch, case.full)
        if found not in self._spaces:
            spec = NamespaceSpec(f"{self.setup.model}-{case.label}-x{case.batch}", BLOCK_TOKENS, case.size)
            self._spaces[found] = self.client(case.transport).namespace(spec)
        return self._spaces[found]

    def resident(self, case: Case) -> list[Keys]:
        """Chains of ``batch`` blocks, as many as the working set holds."""
        space, tokens = self.space(case), np.arange(case.batch * BLOCK_TOKENS, dtype=np.uint32)
        chains = []
        for nth in range(self.setup.working_set // (case.size * case.batch)):
            tokens[0] = nth
            chains.append(space.keys(tokens))
        return chains

    def fresh_tokens(self, batch: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Tokens that no other chain of this run begins with."""
        self._next += 1
        tokens = np.zeros(batch * BLOCK_TOKENS, np.uint32)
        tokens[:3] = (1 << 31, self._next >> 32, self._next & 0xFFFFFFFF)
        return tokens

    def why(self, case: Case) -> str:
        return str(self.client(case.transport).last_miss)

    def close(self) -> None:
        for client in self._clients.values():
            with suppress(Exception):
                client.close()


def main(pipe: Connection, barrier: Barrier, setup: Setup, number: int) -> None:
    """Serves (method, arguments, together) until None comes; answers with a result or an exception's text."""
    worker = Worker(setup, number)
    for method, arguments, together in _requests(pipe):
        try:
            if together:
                barrier.wait(120)
            pipe.send((True, getattr(worker, method)(*arguments)))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}"))
    worker.close()


def _requests(pipe: Connection) -> Iterator[tuple[str, tuple[Any, ...], bool]]:
    with suppress(EOFError):
        while (request := pipe.recv()) is not None:
            yield request


def peer(pipe: Connection, length: int) -> None:
    """The process at the other end of the raw sockets. Sends its address; ends when the pipe closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=ceilings.SocketPeer(listener, length).serve, daemon=True).start()
    pipe.send(listener.getsockname())
    with suppress(EOFError):
        pipe.recv()
