"""Calls to etcd: tried at one endpoint after another until their deadline, with a token when there is a user."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import grpc

from kvstore.cluster.etcd import etcd_min_pb2 as pb
from kvstore.cluster.etcd import methods
from kvstore.cluster.etcd.backoff import Backoff
from kvstore.cluster.etcd.channels import Channels, Metadata, Stream
from kvstore.cluster.etcd.errors import EtcdRefused, EtcdUnavailable, LeaseGone, Remedy, TokenRefused, remedy
from kvstore.cluster.etcd.methods import Method, Reply, Request
from kvstore.cluster.etcd.settings import EtcdSettings
from kvstore.core.errors import KVStoreError

_log = logging.getLogger(__name__)
ATTEMPT = 2.0  # seconds that one endpoint gets for an answer
DEADLINE = 5.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value. ``revision`` is that of its last change."""

    key: bytes
    value: bytes
    revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """All entries below a prefix, as of ``revision``."""

    revision: int
    entries: tuple[Entry, ...]


class EtcdClient:
    """All but the construction belongs to one event loop. Raises EtcdUnavailable and EtcdRefused."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self.channels = Channels(settings)
        self._token = ""
        self._authenticating = asyncio.Lock()

    async def get(self, key: bytes, deadline: float = DEADLINE) -> Entry | None:
        reply = await self.call(methods.RANGE, pb.RangeRequest(key=key), deadline)
        return _entry(reply.kvs[0]) if reply.kvs else None

    async def list(self, prefix: bytes, deadline: float = DEADLINE) -> Listing:
        reply = await self.call(methods.RANGE, pb.RangeRequest(key=prefix, range_end=prefix_end(prefix)), deadline)
        return Listing(reply.header.revision, tuple(map(_entry, reply.kvs)))

    async def ping(self, index: int, key: bytes) -> None:
        """One small read of the state of one endpoint, over the connection that its streams use."""
        request = pb.RangeRequest(key=key, serializable=True, keys_only=True)
        try:
            await self._attempt(index, methods.RANGE, request, ATTEMPT)
        except TokenRefused:
            await self._attempt(index, methods.RANGE, request, ATTEMPT)

    async def compare_and_put(
        self, key: bytes, value: bytes, revision: int, lease: int = 0, deadline: float = DEADLINE
    ) -> bool:
        """Writes if the key's last change is ``revision`` (0: there is no key). After EtcdUnavailable it may have."""
        unchanged = pb.Compare(target=pb.Compare.MOD, result=pb.Compare.EQUAL, key=key, mod_revision=revision)
        put = pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))
        reply = await self.call(methods.TXN, pb.TxnRequest(compare=[unchanged], success=[put]), deadline)
        return bool(reply.succeeded)

    async def store(self, key: bytes, value: bytes, lease: int, deadline: float = DEADLINE) -> None:
        """Makes this the value of a key of our own. In doubt it looks, so that nothing is written twice."""
        end = time.monotonic() + deadline
        backoff = Backoff()
        while True:
            there = await self.get(key, end - time.monotonic())
            if there is not None and (there.value, there.lease) == (value, lease):
                return
            revision = there.revision if there is not None else 0
            with suppress(EtcdUnavailable):
                if await self.compare_and_put(key, value, revision, lease, end - time.monotonic()):
                    return
            wait = backoff.wait()
            if time.monotonic() + wait >= end:
                raise EtcdUnavailable(f"{key.decode(errors='replace')} could not be written within {deadline:g} s")
            await asyncio.sleep(wait)

    async def grant(self, ttl: int, deadline: float = DEADLINE) -> tuple[int, int]:
        """A new lease: its id, and the seconds that etcd made of ``ttl``."""
        reply = await self.call(methods.GRANT, pb.LeaseGrantRequest(TTL=ttl), deadline)
        return reply.ID, reply.TTL

    async def revoke(self, lease: int, deadline: float = DEADLINE) -> None:
        """Ends a lease, and with it its keys."""
        try:
            await self.call(methods.REVOKE, pb.LeaseRevokeRequest(ID=lease), deadline)
        except LeaseGone:
            return

    async def call(self, method: Method[Request, Reply], request: Request, deadline: float = DEADLINE) -> Reply:
        """Tries endpoint after endpoint. A call that may not be repeated ends with its first failure."""
        end = time.monotonic() + deadline
        backoff = Backoff()
        while True:
            index = self.channels.current
            try:
                timeout = max(0.01, min(ATTEMPT, end - time.monotonic()))
                return await self._attempt(index, method, request, timeout)
            except EtcdUnavailable as error:
                untouched = isinstance(error, TokenRefused)
                if not untouched:
                    await self.channels.failed(index)
                wait = backoff.wait()
                if not (method.again or untouched) or time.monotonic() + wait >= end:
                    raise
                _log.debug("etcd: %s; trying %s", error, self.channels.name(self.channels.current))
                await asyncio.sleep(wait)

    @asynccontextmanager
    async def stream(self, method: Method[Request, Reply]) -> AsyncIterator[Stream[Request, Reply]]:
        """A stream that etcd ends when it has no leader. Failures inside come out typed; the next endpoint is next."""
        index = self.channels.current
        try:
            metadata = (("hasleader", "true"), *await self._metadata(index))
            async with self.channels.stream(index, method, metadata) as stream:
                yield stream
        except grpc.aio.AioRpcError as error:
            await self.channels.failed(index)
            raise self._typed(index, error) from None
        except EtcdUnavailable:
            await self.channels.failed(index)
            raise

    def forget_token(self) -> None:
        """The next call fetches a new one."""
        self._token = ""

    async def close(self) -> None:
        await self.channels.close()

    async def _attempt(self, index: int, method: Method[Request, Reply], request: Request, timeout: float) -> Reply:
        try:
            return await self.channels.unary(index, method, request, await self._metadata(index), timeout)
        except grpc.aio.AioRpcError as error:
            raise self._typed(index, error) from None

    async def _metadata(self, index: int) -> Metadata:
        if self._settings.user and not self._token:
            async with self._authenticating:
                if not self._token:
                    self._token = await self._authenticate(index)
        return (("token", self._token),) if self._token else ()

    async def _authenticate(self, index: int) -> str:
        request = pb.AuthenticateRequest(name=self._settings.user, password=self._settings.password)
        try:
            reply = await self.channels.unary(index, methods.AUTHENTICATE, request, (), ATTEMPT)
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" in error.details():
                return ""  # the operator may turn it on later
            raise self._typed(index, error) from None
        return reply.token

    def _typed(self, index: int, error: grpc.aio.AioRpcError) -> KVStoreError:
        code, details = error.code(), error.details() or ""
        text = f"etcd at {self.channels.name(index)}: {details or code.name}"
        cure = remedy(code, details)
        if cure is Remedy.NEW_LEASE:
            return LeaseGone(text)
        if cure is Remedy.NEW_TOKEN:
            self.forget_token()
            return TokenRefused(text)
        if cure is Remedy.OTHER_ENDPOINT:
            return EtcdUnavailable(text)
        return EtcdRefused(f"{text}; check user, password and the role's permissions")


def prefix_end(prefix: bytes) -> bytes:
    """The first key behind all that start with ``prefix``; zero byte: all keys are before it."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


def _entry(found: pb.KeyValue) -> Entry:
    return Entry(found.key, found.value, found.mod_revision, found.lease)
