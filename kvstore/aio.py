"""The SDK for asyncio: the same calls, awaited. ``async with kvstore.aio.Client() as client: ...``

Calls run on a few threads over the same core as :class:`kvstore.Client`, since moving bytes is work for threads, not
for the loop. A deadline counts from the call, not from when a thread is free. A cancelled call is interrupted, and
raises CancelledError only when nothing touches the caller's buffers any more.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from kvstore.client.choosing import TransportName
from kvstore.client.client import Client as SyncClient
from kvstore.client.client import OnFailure
from kvstore.client.namespace import Ack, AnyKeys, Parts, Span
from kvstore.client.namespace import Namespace as SyncNamespace
from kvstore.client.results import PrefetchResult, PutResult
from kvstore.client.writer import Writer as SyncWriter
from kvstore.core.keys import Keys, Tokens
from kvstore.core.namespace import NamespaceSpec
from kvstore.transport.cancel import Cancel

if TYPE_CHECKING:
    from kvstore.v1.control_pb2 import StatReply

T = TypeVar("T")
_OVER = 1e-9  # seconds: a call whose time passed before a thread was free still counts its miss


class Client:
    """Arguments as for :class:`kvstore.Client`; ``concurrency``: how many calls run at a time, others wait."""

    def __init__(
        self,
        target: str | None = None,
        *,
        timeout: float = 1.0,
        transport: TransportName = "auto",
        on_failure: OnFailure = "miss",
        connections: int = 4,
        concurrency: int = 8,
    ) -> None:
        self.sync = SyncClient(
            target, timeout=timeout, transport=transport, on_failure=on_failure, connections=connections
        )
        self._threads = ThreadPoolExecutor(max(1, concurrency), thread_name_prefix="kvstore-aio")

    async def namespace(self, spec: NamespaceSpec, *, strict: bool = False, timeout: float | None = None) -> Namespace:
        """As :meth:`kvstore.Client.namespace`."""
        made = await self.call(functools.partial(self.sync.namespace, spec, strict=strict), timeout)
        return Namespace(self, made)

    async def stat(self, *, timeout: float | None = None) -> StatReply:
        """As :meth:`kvstore.Client.stat`."""
        return await self.call(self.sync.stat, timeout)

    @property
    def last_miss(self) -> str | None:
        """Reason of the latest miss."""
        return self.sync.last_miss

    def counters(self) -> dict[str, int]:
        """What this client did so far."""
        return self.sync.counters()

    async def close(self) -> None:
        """Ends the session; calls in progress end with Closed."""
        self.sync.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(self, run: Callable[..., T], timeout: float | None) -> T:
        """``run(timeout=what is left)`` on a thread."""
        deadline = self.sync.deadline(timeout)
        cancel = Cancel()

        def work() -> T:
            with cancel.active():
                return run(timeout=max(_OVER, deadline - time.monotonic()))

        return await _waited(self._threads.submit(work), cancel)


async def _waited(running: Future[T], cancel: Cancel) -> T:
    """The result. When the waiting task is cancelled, ends the call first: its buffers are the caller's again."""
    future = asyncio.wrap_future(running)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        running.cancel()
        cancel.cancel()
        while not future.done():
            with suppress(asyncio.CancelledError, Exception):
                await asyncio.shield(future)
        if not future.cancelled():
            future.exception()  # seen: nobody else will ask for it
        raise


class Namespace:
    """As :class:`kvstore.Namespace`, awaited."""

    def __init__(self, client: Client, sync: SyncNamespace) -> None:
        self.client = client
        self.sync = sync
        self.spec = sync.spec
        self.root = sync.root

    def keys(self, token_ids: Tokens) -> Keys:
        """Keys of the full blocks of a token sequence, in order."""
        return self.sync.keys(token_ids)

    def keys_from_hashes(self, hashes: Iterable[bytes]) -> Keys:
        """Keys for blocks that an engine hashed itself."""
        return self.sync.keys_from_hashes(hashes)

    async def match(
        self, keys: AnyKeys, *, parts: Parts = None, request_id: int = 0, timeout: float | None = None
    ) -> int:
        """Length of the longest cached prefix."""
        run = functools.partial(self.sync.match, keys, parts=parts, request_id=request_id)
        return await self.client.call(run, timeout)

    async def get(
        self,
        keys: AnyKeys,
        into: object,
        *,
        first: int = 0,
        parts: Parts = None,
        range: Span = None,
        request_id: int = 0,
        holes: set[tuple[int, int]] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Fills ``into`` with the longest cached prefix and returns its length."""
        run = functools.partial(
            self.sync.get, keys, into, first=first, parts=parts, range=range, request_id=request_id, holes=holes
        )
        return await self.client.call(run, timeout)

    async def prefetch(
        self,
        keys: AnyKeys,
        tier: str = "dram",
        deadline: float | None = None,
        *,
        parts: Parts = None,
        timeout: float | None = None,
    ) -> PrefetchResult:
        """Starts bringing blocks to a tier ahead of their use."""
        run = functools.partial(self.sync.prefetch, keys, tier, deadline, parts=parts)
        return await self.client.call(run, timeout)

    async def put(
        self,
        keys: AnyKeys,
        blocks: object,
        *,
        first: int = 0,
        parts: Parts = None,
        ack: Ack = "visible",
        request_id: int = 0,
        importance: Sequence[int] | None = None,
        appended_tokens: int = 0,
        timeout: float | None = None,
    ) -> PutResult:
        """Stores blocks; those that are there already are skipped."""
        run = functools.partial(
            self.sync.put,
            keys,
            blocks,
            first=first,
            parts=parts,
            ack=ack,
            request_id=request_id,
            importance=importance,
            appended_tokens=appended_tokens,
        )
        return await self.client.call(run, timeout)

    async def evict(self, keys: AnyKeys, *, timeout: float | None = None) -> int:
        """Drops blocks and what follows them."""
        return await self.client.call(functools.partial(self.sync.evict, keys), timeout)

    async def pin(
        self, keys: AnyKeys, *, hard: bool = False, ttl: float | None = None, timeout: float | None = None
    ) -> int:
        """Keeps blocks: the last to be evicted or, ``hard``, never."""
        return await self.client.call(functools.partial(self.sync.pin, keys, hard=hard, ttl=ttl), timeout)

    async def unpin(self, keys: AnyKeys, *, timeout: float | None = None) -> int:
        """Lifts pins; how many."""
        return await self.client.call(functools.partial(self.sync.unpin, keys), timeout)

    async def rotate(self, *, timeout: float | None = None) -> int:
        """Voids all that the namespace holds; the new generation."""
        return await self.client.call(self.sync.rotate, timeout)

    @asynccontextmanager
    async def borrow(self, keys: AnyKeys, **options: Any) -> AsyncIterator[list[memoryview]]:
        """``async with ns.borrow(keys) as views:``, options as for :meth:`kvstore.Namespace.borrow`."""
        timeout = options.pop("timeout", None)

        def enter(timeout: float) -> tuple[Any, list[memoryview]]:
            borrow = self.sync.borrow(keys, timeout=timeout, **options)
            return borrow, borrow.__enter__()

        borrow, views = await self.client.call(enter, timeout)
        try:
            yield views
        finally:
            borrow.__exit__(None, None, None)

    @asynccontextmanager
    async def writer(self, keys: AnyKeys, **options: Any) -> AsyncIterator[Writer]:
        """``async with ns.writer(keys) as w: await w.write(range, buffers)``."""
        timeout = options.pop("timeout", None)

        def enter(timeout: float) -> SyncWriter:
            return self.sync.writer(keys, timeout=timeout, **options).__enter__()

        writer = await self.client.call(enter, timeout)
        try:
            yield Writer(self.client, writer)
        except BaseException as error:
            await self.client.call(functools.partial(writer.finish, error), timeout)
            raise
        await self.client.call(functools.partial(writer.finish, None), timeout)


class Writer:
    """As :class:`kvstore.Writer`, awaited."""

    def __init__(self, client: Client, sync: SyncWriter) -> None:
        self._client = client
        self.sync = sync

    @property
    def wanted(self) -> list[bool]:
        """Whether each block takes bytes."""
        return self.sync.wanted

    @property
    def result(self) -> PutResult:
        """What became of the blocks, once the ``async with`` block has ended."""
        return self.sync.result

    async def write(self, range: Span, buffers: object, *, timeout: float | None = None) -> None:
        """Writes one range of each part of every block."""
        await self._client.call(functools.partial(self.sync.write, range, buffers), timeout)
