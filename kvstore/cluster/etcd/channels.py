"""Connections to etcd's endpoints, and single attempts of calls over them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Generic, TypeVar

import grpc

from kvstore.cluster.etcd.errors import EtcdRefused, EtcdUnavailable
from kvstore.cluster.etcd.methods import Method, Reply, Request
from kvstore.cluster.etcd.settings import EtcdSettings

T = TypeVar("T")
_OPTIONS: list[tuple[str, int | str]] = [
    # etcd allows a ping each 5 s, and gRPC sends two at most without data: watches have a heartbeat of their own.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 3000),  # the time a connection attempt is given
    ("grpc.max_reconnect_backoff_ms", 3000),
    ("grpc.enable_retries", 0),  # we know better which calls may be repeated, and where
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 << 20),
]


class Channels:
    """A connection to each endpoint, made when needed. All but the construction belongs to one event loop."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._addresses = settings.addresses
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._stamps = settings.stamps()
        self.current = 0

    def name(self, index: int) -> str:
        return self._addresses[index]

    async def failed(self, index: int) -> None:
        """The next endpoint's turn, unless another call has found out first; with new certificates if there are any."""
        if self.current == index:
            self.current = (index + 1) % len(self._addresses)
        if self._settings.stamps() != self._stamps:
            self._stamps = self._settings.stamps()
            await self.close()

    async def unary(
        self, index: int, method: Method[Request, Reply], request: Request, metadata: Metadata, timeout: float
    ) -> Reply:
        """One attempt. Raises grpc.aio.AioRpcError or EtcdUnavailable."""
        call = self._channel(index).unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        return await settled(call(request, timeout=timeout, metadata=metadata), timeout + 1.0)

    def stream(self, index: int, method: Method[Request, Reply], metadata: Metadata) -> Stream[Request, Reply]:
        call = self._channel(index).stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        return Stream(index, call(metadata=metadata))

    async def close(self) -> None:
        """What is under way ends with EtcdUnavailable."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def _channel(self, index: int) -> grpc.aio.Channel:
        if index not in self._channels:
            self._channels[index] = self._open(self._addresses[index])
        return self._channels[index]

    def _open(self, address: str) -> grpc.aio.Channel:
        settings, options = self._settings, list(_OPTIONS)
        if not settings.tls:
            return grpc.aio.insecure_channel(address, options)
        if settings.server_name:
            options.append(("grpc.ssl_target_name_override", settings.server_name))
        try:
            files = [
                path.read_bytes() if path is not None else None
                for path in (settings.ca_file, settings.key_file, settings.cert_file)
            ]
        except OSError as error:
            raise EtcdRefused(f"cannot read a TLS file for etcd: {error}") from None
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*files), options)


Metadata = tuple[tuple[str, str], ...]


class Stream(Generic[Request, Reply]):
    """A call in both directions. Ends with its ``async with`` block."""

    def __init__(self, index: int, call: Any) -> None:
        self.index = index
        self._call = call
        self._reading: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Stream[Request, Reply]:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def write(self, request: Request, timeout: float) -> None:
        """Raises grpc.aio.AioRpcError or EtcdUnavailable."""
        await settled(self._call.write(request), timeout)

    async def read(self, timeout: float) -> Reply | None:
        """None when nothing came in time; the next read goes on waiting for the same."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        done, _ = await asyncio.wait({self._reading}, timeout=timeout)
        if not done:
            return None
        reading, self._reading = self._reading, None
        reply = _result(reading)
        if reply is grpc.aio.EOF:
            raise EtcdUnavailable("etcd ended the stream")
        return reply  # type: ignore[no-any-return]


async def settled(call: Awaitable[T], timeout: float) -> T:
    """The result of a call. One that is cancelled with its channel must not look like a cancelled task of ours."""
    task = asyncio.ensure_future(_awaited(call))
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout)
    finally:
        task.cancel()
    if not done:
        raise EtcdUnavailable(f"no answer within {timeout:g} s")
    return _result(task)


async def _awaited(call: Awaitable[T]) -> T:
    return await call


def _result(task: asyncio.Task[T]) -> T:
    if task.cancelled():
        raise EtcdUnavailable("the connection was closed")
    return task.result()
