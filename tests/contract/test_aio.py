"""The SDK for asyncio: the same promises, awaited; deadlines and cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvstore import PutResult, aio
from kvstore.core.errors import Closed, WrongBlockSize
from tests.contract.conftest import empty, kind_of, payload, spec, tokens
from tests.contract.running import NodeProcess


@asynccontextmanager
async def opened(
    node: NodeProcess, transport: str, *, options: dict[str, Any] | None = None, **fields: Any
) -> AsyncIterator[aio.Namespace]:
    kind = kind_of(transport)
    async with aio.Client(node.target(transport), transport=kind, **{"timeout": 30.0, **(options or {})}) as client:
        yield await client.namespace(spec(**fields))


def test_all_calls_keep_their_promises_when_awaited(shared_node: NodeProcess, transport: str) -> None:
    async def main() -> None:
        async with opened(shared_node, transport) as namespace:
            keys = namespace.keys(tokens(6))
            data, into = payload(namespace.sync, 6), empty(namespace.sync, 6)
            assert await namespace.put(keys[:4], data[:4]) == PutResult(stored=4)
            async with namespace.writer(keys) as writer:
                assert writer.wanted == [False] * 4 + [True] * 2
                await writer.write((0, 65_536), [block[:65_536] for block in data])
                await writer.write((65_536, 134_464), [block[65_536:] for block in data])
            assert writer.result == PutResult(stored=2, present=4)
            assert await namespace.match(keys) == 6
            assert await namespace.get(keys, into) == 6
            assert into == data
            async with namespace.borrow(keys, first=5) as views:
                assert [bytes(view) for view in views] == data[5:]
            assert await namespace.evict(keys[3:]) == 3
            assert await namespace.match(keys) == 3
            assert (await namespace.client.stat()).blocks >= 3
            with pytest.raises(WrongBlockSize):
                await namespace.put(keys, [b"short"] * 6)
            with pytest.raises(WrongBlockSize):
                async with namespace.writer(keys) as writer:
                    await writer.write(None, [b"short"] * 6)
            assert await namespace.match(keys) == 3

    asyncio.run(main())


def test_many_calls_at_once_are_served_by_a_bounded_number_of_threads(shared_node: NodeProcess, transport: str) -> None:
    async def one(namespace: aio.Namespace, seed: int) -> bool:
        keys, data = namespace.keys(tokens(3, seed)), payload(namespace.sync, 3, seed)
        into = empty(namespace.sync, 3)
        await namespace.put(keys, data)
        return await namespace.get(keys, into) == 3 and into == data

    async def main() -> None:
        async with opened(shared_node, transport, options={"concurrency": 4}, block_bytes=30_000) as namespace:
            assert all(await asyncio.gather(*(one(namespace, seed) for seed in range(60))))

    asyncio.run(main())


def test_the_loop_runs_on_while_a_call_waits_and_the_deadline_holds(
    own_node: Callable[..., NodeProcess], transport: str
) -> None:
    async def main() -> None:
        node = own_node()
        async with opened(node, transport, options={"concurrency": 1}) as namespace:
            node.freeze()
            turns = 0

            async def tick() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0.005)
                    turns += 1

            ticking = asyncio.create_task(tick())
            keys = namespace.keys(tokens(2))
            calls = [namespace.match(keys, timeout=0.3), namespace.match(keys, timeout=0.3)]  # the second one queues
            assert await asyncio.gather(*calls) == [0, 0]
            ticking.cancel()
            assert turns > 5
            assert namespace.client.last_miss in ("deadline", "backoff")
            node.thaw()

    asyncio.run(main())


def test_a_cancelled_call_ends_long_before_its_deadline_and_leaves_the_buffers(
    own_node: Callable[..., NodeProcess], transport: str
) -> None:
    async def main() -> None:
        node = own_node()
        async with opened(node, transport) as namespace:
            keys = namespace.keys(tokens(3))
            data, into = payload(namespace.sync, 3), empty(namespace.sync, 3)
            await namespace.put(keys, data)
            node.freeze()
            begun = time.monotonic()
            call = asyncio.create_task(namespace.get(keys, into, timeout=600))
            await asyncio.sleep(0.1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert time.monotonic() - begun < 300
            assert into == empty(namespace.sync, 3)
            node.thaw()
            assert await namespace.get(keys, into) == 3  # not even a back-off
            assert into == data
            assert "failures" not in namespace.client.counters()

    asyncio.run(main())


def test_a_timeout_of_asyncio_is_a_cancellation(own_node: Callable[..., NodeProcess], transport: str) -> None:
    async def main() -> None:
        node = own_node()
        async with opened(node, transport) as namespace:
            node.freeze()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(namespace.match(namespace.keys(tokens(1)), timeout=600), 0.1)
            node.thaw()
            assert await namespace.match(namespace.keys(tokens(1))) == 0

    asyncio.run(main())


def test_calls_after_close_and_during_it_raise_closed(own_node: Callable[..., NodeProcess], transport: str) -> None:
    async def main() -> None:
        node = own_node()
        async with opened(node, transport) as namespace:
            node.freeze()
            call = asyncio.create_task(namespace.match(namespace.keys(tokens(1))))
            await asyncio.sleep(0.1)
            await namespace.client.close()
            with pytest.raises(Closed):
                await call
            with pytest.raises(Closed):
                await namespace.match(namespace.keys(tokens(1)))
            node.thaw()

    asyncio.run(main())
