"""The decoder's use of the service, through the SDK only: find, load layer by layer, store in the background.

Whatever goes wrong here is a miss: the engine computes instead. Nothing here decides what is kept.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kvstore.connector.decoder.model import Llama
from kvstore.connector.decoder.paged import BLOCK_TOKENS, BlockPool
from kvstore.core.errors import KVStoreError, NotServed
from kvstore.core.keys import Keys
from kvstore.core.namespace import NamespaceSpec, PartSpec

_log = logging.getLogger(__name__)
LOAD_BYTES = 2 << 20  # a load of several layers in one call, when a layer of all blocks has fewer bytes
T = TypeVar("T")


def namespace_spec(model: Llama, pool: BlockPool, chunk_tokens: int, tenant: str = "default") -> NamespaceSpec:
    """The namespace of a model's KV blocks: equal only where the same bytes would be computed."""
    part = PartSpec("0", pool.block_bytes, layers=model.config.layers)
    return NamespaceSpec(
        model=f"llama:{model.identity}",
        block_tokens=BLOCK_TOKENS,
        kv_dtype=str(pool.dtype).removeprefix("torch."),
        layout="layer,kv,head,token,dim",
        tenant=tenant,
        parts=(part,),
        extra={"chunk_tokens": str(chunk_tokens)},
    )


@dataclass(slots=True)
class Prefix:
    """The chain of a prompt and how many of its blocks the service had."""

    keys: Keys
    request_id: int
    tokens: int
    blocks: int = 0
    broken: bool = False  # a block was not handed to the writer, so none after it can be stored


@dataclass(slots=True)
class Stored:
    """What became of blocks to store."""

    stored: int = 0
    present: int = 0
    failed: int = 0
    dropped: int = 0  # the queue was full, or the node could not be reached


@dataclass(frozen=True, slots=True)
class _Work:
    prefix: Prefix
    first: int
    blocks: list[int]
    importance: npt.NDArray[np.uint16] | None


class Load:
    """Blocks on their way from the service into the pool, a few layers at a time."""

    def __init__(self, groups: Sequence[tuple[int, int]], wanted: int) -> None:
        """``groups``: (first layer, layers) in order. ``wanted``: blocks."""
        self.wanted = self.blocks = wanted
        self._futures: list[tuple[int, Future[int]]] = [(first + count, Future()) for first, count in groups]

    def wait(self, layer: int) -> None:
        """Returns when all wanted blocks of ``layer`` are in the pool. Raises :class:`LoadShort`."""
        for end, future in self._futures:
            if future.result() < self.wanted:
                raise LoadShort(self.finish())
            if layer < end:
                return

    def finish(self) -> int:
        """Waits for the end of the load: the number of blocks that are there in every layer."""
        self.blocks = min((future.result() for _, future in self._futures), default=self.wanted)
        return self.blocks

    def arrived(self, group: int, blocks: int) -> None:
        self._futures[group][1].set_result(blocks)


class LoadShort(Exception):
    """The service served fewer blocks than it had announced."""

    def __init__(self, blocks: int) -> None:
        super().__init__(f"only the first {blocks} blocks could be loaded")
        self.blocks = blocks


class ServiceCache:
    """Finds, loads and stores the blocks of one engine's pool.

    ``client``: a :class:`kvstore.Client`, not owned. ``max_pending``: blocks that may wait to be stored; past it new
    ones are dropped, so storing never holds the engine up. Its methods are for the engine's thread.
    """

    def __init__(
        self, client: Any, model: Llama, pool: BlockPool, *,
        chunk_tokens: int, max_pending: int = 4096, importance: bool = False,
    ) -> None:  # fmt: skip
        self.spec = namespace_spec(model, pool, chunk_tokens)
        self.importance, self.outcome = importance, Stored()
        self._client, self._pool, self._max_pending = client, pool, max_pending
        self._namespace: Any = None
        self._loader = ThreadPoolExecutor(2, thread_name_prefix="kvstore-load")
        self._changed = threading.Condition()
        self._queue: deque[_Work] = deque()
        self._written: deque[_Work] = deque()
        self._pending, self._closing = 0, False
        self._writer = threading.Thread(target=self._write_all, name="kvstore-store", daemon=True)
        self._writer.start()

    # --- finding and loading -----------------------------------------------------------------------------------

    def find(self, tokens: Sequence[int], request_id: int) -> Prefix | None:
        """Looks a prompt up. None when the service cannot be asked at all."""
        namespace = self._open()
        if namespace is None:
            return None
        prefix = Prefix(namespace.keys(tokens), request_id, len(tokens))
        prefix.blocks = self._attempt("match", lambda: int(namespace.match(prefix.keys)), 0)
        return prefix

    def load(self, prefix: Prefix, blocks: Sequence[int]) -> Load:
        """Starts to fill pool ``blocks`` with the first blocks of the chain and returns at once."""
        groups = self._groups(len(blocks))
        load = Load(groups, len(blocks))
        self._loader.submit(self._load, load, prefix, list(blocks), groups)
        return load

    def _groups(self, blocks: int) -> list[tuple[int, int]]:
        layers = self._pool.config.layers
        size = max(1, LOAD_BYTES * layers // max(1, blocks * self._pool.block_bytes))
        return [(first, min(size, layers - first)) for first in range(0, layers, size)]

    def _load(self, load: Load, prefix: Prefix, blocks: list[int], groups: list[tuple[int, int]]) -> None:
        whole = len(blocks)
        for index, (first, count) in enumerate(groups):
            whole = min(whole, self._attempt("get", lambda: self._get(prefix, blocks, first, count), 0) if whole else 0)  # noqa: B023
            load.arrived(index, whole)

    def _get(self, prefix: Prefix, blocks: list[int], first: int, count: int) -> int:
        layer_bytes = self._pool.block_bytes // self._pool.config.layers
        into = [self._pool.buffer(block, first, count) for block in blocks]
        span = (first * layer_bytes, count * layer_bytes)
        return int(self._namespace.get(prefix.keys[: len(blocks)], into, range=span, request_id=prefix.request_id))

    def _open(self) -> Any:
        if self._namespace is None:
            self._namespace = self._attempt("namespace", lambda: self._client.namespace(self.spec), None)
        return self._namespace

    def _attempt(self, what: str, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except NotServed as error:
            _log.info("%s: %s", what, error)
        except KVStoreError as error:
            _log.warning("%s failed, computing instead: %s", what, error)
        except Exception:
            _log.exception("%s failed, computing instead", what)
        return otherwise

    # --- storing -----------------------------------------------------------------------------------------------

    def store(
        self, prefix: Prefix, first: int, blocks: Sequence[int], importance: npt.NDArray[np.uint16] | None = None
    ) -> None:
        """Hands blocks ``first``.. of a chain to the writer, those that the service had excepted. Does not block."""
        skipped = max(0, prefix.blocks - first)
        blocks, first = list(blocks)[skipped:], first + skipped
        with self._changed:
            prefix.broken = prefix.broken or self._pending + len(blocks) > self._max_pending
            if prefix.broken or not blocks:
                self.outcome.dropped += len(blocks)
                return
            held = [self._pool.share(block) for block in blocks]
            self._queue.append(_Work(prefix, first, held, None if importance is None else importance[skipped:]))
            self._pending += len(held)
            self._changed.notify_all()

    @property
    def held(self) -> int:
        """References to pool blocks that the writer has not given back yet."""
        with self._changed:
            return self._pending + sum(len(work.blocks) for work in self._written)

    def collect(self) -> None:
        """Gives the pool back what the writer is done with."""
        while self._written:
            work = self._written.popleft()
            for block in work.blocks:
                self._pool.release(block)

    def flush(self, timeout: float = 10.0) -> bool:
        """Waits until all handed-in blocks are stored or given up. False past ``timeout`` seconds."""
        with self._changed:
            flushed = self._changed.wait_for(lambda: not self._pending, timeout)
        self.collect()
        return flushed

    def close(self, timeout: float = 10.0) -> None:
        """Flushes and ends the threads. The client stays open."""
        self.flush(timeout)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(timeout)
        self._loader.shutdown()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                work = self._queue.popleft()
            self._count(work, self._attempt("put", lambda: self._put(work), None))  # noqa: B023
            with self._changed:
                self._written.append(work)
                self._pending -= len(work.blocks)
                self._changed.notify_all()

    def _put(self, work: _Work) -> Any:
        keys = work.prefix.keys[: work.first + len(work.blocks)]
        buffers = [self._pool.buffer(block) for block in work.blocks]
        appended = max(0, work.prefix.tokens - work.prefix.blocks * BLOCK_TOKENS)
        return self._namespace.put(
            keys, buffers, first=work.first, request_id=work.prefix.request_id,
            importance=work.importance, appended_tokens=appended,
        )  # fmt: skip

    def _count(self, work: _Work, result: Any) -> None:
        if result is None:
            self.outcome.dropped += len(work.blocks)
            return
        self.outcome.stored += result.stored
        self.outcome.present += result.present
        self.outcome.failed += result.failed + result.pending
