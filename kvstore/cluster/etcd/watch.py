"""Watching keys: each event exactly once and in order, over any number of broken connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

from kvstore.cluster.etcd import etcd_min_pb2 as pb
from kvstore.cluster.etcd import methods
from kvstore.cluster.etcd.backoff import Backoff, Trouble
from kvstore.cluster.etcd.client import ATTEMPT, EtcdClient, prefix_end
from kvstore.cluster.etcd.errors import EtcdUnavailable, HistoryLost

_log = logging.getLogger(__name__)
_SILENCE = 2.0  # seconds after which etcd is asked for a sign of life
OnEvents = Callable[[Sequence[pb.Event]], None]


class Cursor:
    """How far a watch has come: ``next`` is the first revision that was not seen yet."""

    def __init__(self, start: int) -> None:
        self.next = start
        self._cluster_id: int | None = None

    def take(self, response: pb.WatchResponse) -> Sequence[pb.Event]:
        """The events of a response. Raises HistoryLost, or EtcdUnavailable when etcd gives the watch up."""
        if response.compact_revision:
            raise HistoryLost(f"events up to revision {response.compact_revision} are compacted away")
        if response.canceled:
            raise EtcdUnavailable(f"etcd ended the watch: {response.cancel_reason or 'no reason given'}")
        if response.created:
            self._check_history(response.header)
        elif response.events:
            # Whole revisions come in one response, unless fragments are asked for. The header may be ahead.
            self.next = response.events[-1].kv.mod_revision + 1
        else:  # etcd's word now and then that there are no events up to here
            self.next = max(self.next, response.header.revision + 1)
        return response.events

    def _check_history(self, header: pb.ResponseHeader) -> None:
        """An etcd that was set up anew would never tell what is there already, and would wait for old revisions."""
        if self._cluster_id not in (None, header.cluster_id):
            raise HistoryLost("this is another etcd cluster than before")
        if header.revision + 1 < self.next:
            raise HistoryLost(f"etcd is at revision {header.revision}, events up to {self.next - 1} were seen")
        self._cluster_id = header.cluster_id


async def watch(client: EtcdClient, prefix: bytes, start: int, on_events: OnEvents, trouble: Trouble) -> NoReturn:
    """Goes on until it is cancelled. Raises HistoryLost and EtcdRefused."""
    cursor, backoff = Cursor(start), Backoff()
    while True:
        try:
            await _watch_once(client, prefix, cursor, on_events, trouble)
        except EtcdUnavailable as error:
            trouble.begins(error)
            _log.debug("watch resumes at revision %d: %s", cursor.next, error)
        await asyncio.sleep(backoff.wait())


async def _watch_once(
    client: EtcdClient, prefix: bytes, cursor: Cursor, on_events: OnEvents, trouble: Trouble
) -> NoReturn:
    create = pb.WatchCreateRequest(
        key=prefix, range_end=prefix_end(prefix), start_revision=cursor.next, progress_notify=True
    )
    async with client.stream(methods.WATCH) as stream:
        await stream.write(pb.WatchRequest(create_request=create), ATTEMPT)
        while True:
            response = await stream.read(_SILENCE)
            if response is None:
                # Not by a progress request: a watch that had no event yet may get no answer (etcd issue 17507).
                await client.ping(stream.index, prefix)
                continue
            if response.canceled:
                client.forget_token()  # a token that has run out looks like a lack of permission here
            events = cursor.take(response)
            trouble.ends()
            if events:
                on_events(events)
