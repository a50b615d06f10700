"""What a watch saw, for tests."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kvstore.cluster.etcd import etcd_min_pb2 as pb
from kvstore.cluster.etcd.backoff import Trouble
from kvstore.cluster.etcd.client import EtcdClient
from kvstore.cluster.etcd.mirror import Update, follow
from kvstore.cluster.etcd.watch import watch
from kvstore.cluster.loop import LoopThread


class Troubles(Trouble):
    """Remembers all."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("test"), "watching")
        self.all: list[str] = []

    def begins(self, why: object) -> None:
        super().begins(why)
        self.all.append(self.text)


class Watching:
    """A running watch: ``values`` of all events in the order in which they came."""

    def __init__(self, loop: LoopThread, client: EtcdClient, prefix: bytes, start: int) -> None:
        self.values: list[bytes] = []
        self.revisions: list[int] = []
        self.trouble = Troubles()
        self.task = loop.submit(watch(client, prefix, start, self._events, self.trouble))

    def _events(self, events: Sequence[pb.Event]) -> None:
        self.values += [event.kv.value for event in events]
        self.revisions += [event.kv.mod_revision for event in events]


class Following:
    """A mirror kept: ``updates`` one by one, ``now`` what they add up to."""

    def __init__(self, loop: LoopThread, client: EtcdClient, prefix: bytes) -> None:
        self.updates: list[Update] = []
        self.now: dict[bytes, bytes] = {}
        self.trouble = Troubles()
        self.task = loop.submit(follow(client, prefix, self._take, self.trouble))

    def _take(self, updates: list[Update]) -> None:
        for update in updates:
            self.updates.append(update)
            if update.entry is None:
                del self.now[update.key]
            else:
                self.now[update.key] = update.entry.value
