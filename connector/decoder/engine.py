"""Continuous batching over the paged cache: prefill in fixed chunks, one decoding step for all running samples."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvstore.connector.decoder.attention import CausalMask, ChunkAttention, Contiguous, StepAttention
from kvstore.connector.decoder.model import Llama
from kvstore.connector.decoder.paged import BLOCK_TOKENS, BlockPool, BlockTable
from kvstore.connector.decoder.requests import NewToken, Request, Result, Sampler
from kvstore.connector.decoder.service import Load, LoadShort, Prefix, ServiceCache
from kvstore.core.errors import InvalidArgument, NoSpace

CHUNK_TOKENS = 128


@dataclass(slots=True, eq=False)
class _Waiting:
    number: int
    request: Request
    result: Result
    submitted: float


@dataclass(slots=True, eq=False)
class _Prefill:
    """A request whose prompt is being computed, up to ``position`` so far."""

    waiting: _Waiting
    table: BlockTable
    position: int
    prefix: Prefix | None
    load: Load | None
    begun: bool = False  # its first chunk was attempted; no other prefill runs until its last one


@dataclass(slots=True, eq=False)
class _Sample:
    """A running continuation; ``ids[-1]`` is not in the cache yet."""

    waiting: _Waiting
    index: int
    table: BlockTable
    position: int
    sampler: Sampler
    ids: list[int]


class Engine:
    """Runs requests on a model.

    ``pool_tokens``: KV capacity. ``max_batch``: samples that decode together; a step always has that many rows, so
    that a result does not depend on its company. ``client``: a kvstore Client, or None to compute everything.
    Use it from one thread. Greedy ids are the same with and without the service, on the same number of threads.
    Only prompt blocks are stored: those that single steps compute differ from a chunk's in their last bits.
    """

    def __init__(
        self, model: Llama, client: object | None = None, *,
        pool_tokens: int = 32_768, max_batch: int = 4, chunk_tokens: int = CHUNK_TOKENS, importance: bool = False,
    ) -> None:  # fmt: skip
        if chunk_tokens < BLOCK_TOKENS or chunk_tokens % BLOCK_TOKENS:
            raise InvalidArgument(
                f"chunk_tokens must be a multiple of {BLOCK_TOKENS}, not {chunk_tokens}", field="chunk_tokens"
            )
        self.model, self.chunk, self._width = model, chunk_tokens, max_batch
        self.pool = BlockPool(model.config, -(-pool_tokens // BLOCK_TOKENS), model.dtype)
        self.cache = ServiceCache(
            client, model, self.pool, chunk_tokens=chunk_tokens, importance=importance,
            max_pending=max(1, self.pool.blocks // 2),
        ) if client is not None else None  # fmt: skip
        self._mask = CausalMask(chunk_tokens, model.config.heads // model.config.kv_heads, model.dtype)
        self._earlier = Contiguous(self.pool)
        self._numbers = itertools.count(1)
        self._waiting: deque[_Waiting] = deque()
        self._prefills: deque[_Prefill] = deque()
        self._running: list[_Sample] = []
        self._promised = 0  # blocks that admitted requests may still take

    # --- the caller's side -------------------------------------------------------------------------------------

    def submit(self, request: Request) -> tuple[int, Result]:
        """Queues a request: its number, and the result that fills up.

        Raises InvalidArgument or NoSpace when it could never run.
        """
        longest = len(request.tokens) + request.max_new_tokens
        if longest > self.model.config.max_positions:
            raise InvalidArgument(
                f"{longest} tokens are more than the model's {self.model.config.max_positions} positions"
            )
        if min(request.tokens) < 0 or max(request.tokens) >= self.model.config.vocab:
            raise InvalidArgument(f"token ids must be 0 to {self.model.config.vocab - 1}", field="tokens")
        if request.samples > self._width:
            raise InvalidArgument(f"{request.samples} samples are more than max_batch, {self._width}", field="samples")
        if self._need(request) > self.pool.blocks:
            raise NoSpace(f"the request needs {self._need(request)} blocks, the pool has {self.pool.blocks}")
        waiting = _Waiting(next(self._numbers), request, Result(len(request.tokens)), time.monotonic())
        self._waiting.append(waiting)
        return waiting.number, waiting.result

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._prefills or self._running)

    @torch.inference_mode()
    def step(self) -> list[NewToken]:
        """Admits what fits, computes one prefill chunk and one token of each running sample."""
        if self.cache is not None:
            self.cache.collect()
        self._admit()
        new = self._prefill_chunk() if self._prefills else []
        return new + (self._decode() if self._running else [])

    def stream(self, request: Request) -> Iterator[NewToken]:
        """Runs one request (and what else was submitted), giving its tokens as they come."""
        number, result = self.submit(request)
        while not result.done:
            yield from (token for token in self.step() if token.request == number)

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Runs requests to their ends."""
        results = [self.submit(request)[1] for request in requests]
        while not self.idle:
            self.step()
        return results

    @torch.inference_mode()
    def warm_up(self) -> None:
        """One chunk and one step of nothing, so that the first request does not pay for the libraries' start."""
        table = BlockTable(self.pool)
        table.grow(self.chunk + 1)
        ids = torch.zeros(self.chunk, dtype=torch.int64)
        for _ in range(2):
            self._earlier.reset(self.chunk)
            attend = ChunkAttention(self.pool, table, self._earlier, 0, self.chunk, self._mask(0))
            self.model.logits(self.model.hidden(ids, torch.arange(self.chunk), attend)[:1])
        step = StepAttention(self.pool, [table], [self.chunk])
        self.model.hidden(ids[: self._width], torch.zeros(self._width, dtype=torch.int64), step)
        table.close()

    def close(self) -> None:
        """Stores what is still to be stored and ends the background threads."""
        if self.cache is not None:
            self.cache.close()

    # --- admission ---------------------------------------------------------------------------------------------

    def _need(self, request: Request) -> int:
        """Blocks a request takes at most: its samples share those of the prompt but for the tail."""
        prompt, whole = len(request.tokens) // BLOCK_TOKENS, len(request.tokens) + request.max_new_tokens
        return prompt + request.samples * (-(-whole // BLOCK_TOKENS) - prompt) + (request.samples > 1)

    def _admit(self) -> None:
        busy = len(self._running) + sum(prefill.waiting.request.samples for prefill in self._prefills)
        while self._waiting and busy + self._waiting[0].request.samples <= self._width:
            waiting = self._waiting[0]
            if not self._fits(self._need(waiting.request)):
                return
            self._waiting.popleft()
            self._promised += self._need(waiting.request)
            busy += waiting.request.samples
            self._prefills.append(self._begin(waiting))

    def _fits(self, blocks: int) -> bool:
        """Whether ``blocks`` more can be promised. When idle, waits for the writer to give back its own."""
        if self.cache is None:
            return self._promised + blocks <= self.pool.blocks
        if self._promised + blocks + self.cache.held > self.pool.blocks and not (self._running or self._prefills):
            self.cache.flush()
        return self._promised + blocks + self.cache.held <= self.pool.blocks

    def _begin(self, waiting: _Waiting) -> _Prefill:
        """Looks the prompt up and starts to load the chunks that are cached whole, all but the last token's."""
        table, tokens = BlockTable(self.pool), waiting.request.tokens
        prefix = self.cache.find(tokens, _request_id(waiting.number)) if self.cache is not None else None
        if self.cache is None or prefix is None:
            return _Prefill(waiting, table, 0, None, None)
        position = self._aligned(min(prefix.blocks * BLOCK_TOKENS, len(tokens) - 1))
        table.grow(position)
        load = self.cache.load(prefix, table.blocks) if position else None
        return _Prefill(waiting, table, position, prefix, load)

    def _aligned(self, tokens: int) -> int:
        return tokens // self.chunk * self.chunk

    # --- prefill -----------------------------------------------------------------------------------------------

    def _prefill_chunk(self) -> list[NewToken]:
        """Computes the next chunk of the oldest prefill; after the last one its samples start to run."""
        prefill = self._prefills[0]
        request, start = prefill.waiting.request, prefill.position
        if not prefill.begun:
            self._earlier.reset(self._aligned(len(request.tokens) - 1) + self.chunk)
            prefill.begun = True
        count = min(self.chunk, len(request.tokens) - start)
        prefill.table.grow(start + count)
        ready: Callable[[int], None] = prefill.load.wait if prefill.load is not None else _nothing
        weigh = self.cache is not None and self.cache.importance
        attend = ChunkAttention(self.pool, prefill.table, self._earlier, start, count, self._mask(start), ready, weigh)
        try:
            hidden = self.model.hidden(*self._chunk_input(request.tokens, start, count), attend)
        except LoadShort as short:
            self._fall_back(prefill, short.blocks)
            return []
        self._computed(prefill, attend, start, count)
        if prefill.position < len(request.tokens):
            return []
        self._prefills.popleft()
        return self._start_samples(prefill, self.model.logits(hidden[count - 1 : count])[0])

    def _chunk_input(self, tokens: tuple[int, ...], start: int, count: int) -> tuple[Tensor, Tensor]:
        ids = torch.zeros(self.chunk, dtype=torch.int64)
        ids[:count] = torch.tensor(tokens[start : start + count])
        return ids, torch.arange(start, start + self.chunk)

    def _fall_back(self, prefill: _Prefill, blocks: int) -> None:
        """Goes on from what was loaded in every layer."""
        prefill.position, prefill.load = self._aligned(blocks * BLOCK_TOKENS), None
        prefill.table.truncate(prefill.position // BLOCK_TOKENS)
        if prefill.prefix is not None:
            prefill.prefix.blocks = min(prefill.prefix.blocks, prefill.position // BLOCK_TOKENS)

    def _computed(self, prefill: _Prefill, attend: ChunkAttention, start: int, count: int) -> None:
        result = prefill.waiting.result
        prefill.load = None
        result.found = start if result.computed == 0 else result.found
        result.computed += attend.computed
        prefill.position = start + count
        if self.cache is not None and prefill.prefix is not None:
            first, end = start // BLOCK_TOKENS, (start + count) // BLOCK_TOKENS
            mass = _importance(attend.mass[first:end]) if self.cache.importance else None
            self.cache.store(prefill.prefix, first, prefill.table.blocks[first:end], mass)

    def _start_samples(self, prefill: _Prefill, logits: Tensor) -> list[NewToken]:
        waiting, new = prefill.waiting, []
        waiting.result.first_token_seconds = time.monotonic() - waiting.submitted
        tables = [prefill.table, *(prefill.table.fork() for _ in range(waiting.request.samples - 1))]
        waiting.result.ids = [[] for _ in tables]
        for index, table in enumerate(tables):
            sampler = Sampler(waiting.request.sampling, index)
            sample = _Sample(waiting, index, table, prefill.position, sampler, waiting.result.ids[index])
            self._running.append(sample)
            new.append(self._append(sample, logits))
        return new

    # --- decoding ----------------------------------------------------------------------------------------------

    def _decode(self) -> list[NewToken]:
        """One token for each sample that runs."""
        samples = list(self._running)
        ids = torch.zeros(self._width, dtype=torch.int64)
        positions = torch.zeros(self._width, dtype=torch.int64)
        ids[: len(samples)] = torch.tensor([sample.ids[-1] for sample in samples])
        positions[: len(samples)] = torch.tensor([sample.position for sample in samples])
        attend = StepAttention(self.pool, [s.table for s in samples], [s.position for s in samples])
        logits = self.model.logits(self.model.hidden(ids, positions, attend))
        for sample in samples:
            sample.position += 1
        return [self._append(sample, logits[index]) for index, sample in enumerate(samples)]

    def _append(self, sample: _Sample, logits: Tensor) -> NewToken:
        request, result = sample.waiting.request, sample.waiting.result
        sample.ids.append(sample.sampler(logits))
        if sample.ids[-1] in request.stop or len(sample.ids) == request.max_new_tokens:
            self._end(sample)
        return NewToken(sample.waiting.number, sample.index, sample.ids[-1], result)

    def _end(self, sample: _Sample) -> None:
        sample.table.close()
        self._running.remove(sample)
        waiting = sample.waiting
        if not any(other.waiting is waiting for other in self._running) and all(waiting.result.ids):
            waiting.result.seconds = time.monotonic() - waiting.submitted
            waiting.result.done = True
            self._promised -= self._need(waiting.request)


def _request_id(number: int) -> int:
    """Unique among engines, or as good as: the clock above, the number below."""
    return (time.time_ns() & 0xFFFF_FFFF_FFFF) << 16 | number & 0xFFFF


def _importance(mass: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    """Attention mass of blocks (0 to 1) as hints, 1 to 65535."""
    return (mass * 65_534).round().clamp(0, 65_534).to(torch.int32).numpy().astype(np.uint16) + np.uint16(1)


def _nothing(layer: int) -> None:
    """All earlier blocks are in the pool already."""
