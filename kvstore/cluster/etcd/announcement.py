"""A key that is there for as long as this process lives: held by a lease, put again whenever it got lost."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import NoReturn

from kvstore.cluster.etcd import etcd_min_pb2 as pb
from kvstore.cluster.etcd import methods
from kvstore.cluster.etcd.backoff import Backoff, Trouble
from kvstore.cluster.etcd.client import ATTEMPT, DEADLINE, EtcdClient
from kvstore.cluster.etcd.errors import EtcdUnavailable, LeaseGone
from kvstore.core.errors import KVStoreError

_log = logging.getLogger(__name__)
_ROUNDS = 3  # renewals in the time to live, so that some may fail


class Lease:
    """Lives until ``ttl`` seconds after the last renewal that succeeded was *sent*, by our own monotonic clock.

    etcd counts from a later moment, so this one never holds a lease for alive that etcd has given up.
    """

    def __init__(self, number: int, ttl: float, sent: float) -> None:
        self.number = number
        self.ttl = ttl
        self._sent = sent

    def renewed(self, ttl: float, sent: float) -> None:
        self.ttl, self._sent = ttl, max(sent, self._sent)

    def left(self, now: float) -> float:
        """Seconds; 0 when it is over."""
        return max(0.0, self._sent + self.ttl - now)


class Announcement:
    """Runs on the client's loop. ``ttl``: seconds after which others see that this process is gone."""

    def __init__(self, client: EtcdClient, key: bytes, value: bytes, ttl: int = 10) -> None:
        self._client = client
        self._key = key
        self._value = value
        self._ttl = ttl
        self._due = asyncio.Event()
        self._lease: Lease | None = None
        self.trouble = Trouble(_log, "announcing this node in etcd")

    def alive(self) -> bool:
        """Whether the lease is known to be held now."""
        return self._lease is not None and self._lease.left(time.monotonic()) > 0.0

    def say(self, value: bytes) -> None:
        """A new value."""
        self._value = value
        self.repeat()

    def repeat(self) -> None:
        """The key may be missing: looks, and puts it again."""
        self._due.set()

    async def run(self) -> NoReturn:
        """Goes on until it is cancelled, whatever becomes of etcd."""
        backoff = Backoff()
        while True:
            try:
                await self._hold()
            except KVStoreError as error:
                self.trouble.begins(error)
            await asyncio.sleep(backoff.wait())

    async def withdraw(self, deadline: float) -> None:
        """Takes the key back, if etcd can be reached: otherwise it goes with its lease."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await self._client.revoke(lease.number, deadline)

    async def _hold(self) -> NoReturn:
        sent = time.monotonic()
        number, ttl = await self._client.grant(self._ttl)
        lease = self._lease = Lease(number, ttl, sent)
        self._due.set()
        while True:
            if self._due.is_set():
                self._due.clear()
                await self._client.store(self._key, self._value, number, min(DEADLINE, lease.left(time.monotonic())))
                self.trouble.ends()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._due.wait(), lease.ttl / _ROUNDS)
            await renew(self._client, lease)


async def renew(client: EtcdClient, lease: Lease) -> None:
    """Tries until it succeeds or the lease is over: LeaseGone."""
    backoff = Backoff(most=lease.ttl / 10)
    while True:
        sent = time.monotonic()
        left = lease.left(sent)
        if not left:
            raise LeaseGone(f"the lease could not be renewed within its {lease.ttl:g} s")
        try:
            ttl = await _renew_once(client, lease.number, min(ATTEMPT, lease.ttl / _ROUNDS, left))
        except EtcdUnavailable as error:
            _log.debug("renewing the lease: %s", error)
            await asyncio.sleep(backoff.wait())
            continue
        if ttl <= 0:
            raise LeaseGone("etcd has given the lease up")
        lease.renewed(ttl, sent)
        return


async def _renew_once(client: EtcdClient, number: int, timeout: float) -> int:
    async with client.stream(methods.KEEP_ALIVE) as stream:
        await stream.write(pb.LeaseKeepAliveRequest(ID=number), timeout)
        reply = await stream.read(timeout)
        if reply is None:
            raise EtcdUnavailable(f"{client.channels.name(stream.index)} does not renew the lease")
        return reply.TTL
