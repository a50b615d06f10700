"""A copy of all keys below a prefix, kept up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from kvstore.cluster.etcd import etcd_min_pb2 as pb
from kvstore.cluster.etcd.backoff import Backoff, Trouble
from kvstore.cluster.etcd.client import Entry, EtcdClient, Listing
from kvstore.cluster.etcd.errors import HistoryLost
from kvstore.cluster.etcd.watch import watch
from kvstore.core.errors import KVStoreError


@dataclass(frozen=True, slots=True)
class Update:
    """A key's new entry; None: it is gone."""

    key: bytes
    entry: Entry | None


class Mirror:
    """The copy. Says what changed, however it learned of it."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}

    def reset(self, listing: Listing) -> list[Update]:
        """Takes a whole listing; only what differs is a change."""
        before, self.entries = self.entries, {entry.key: entry for entry in listing.entries}
        gone = [Update(key, None) for key in before if key not in self.entries]
        return gone + [Update(key, entry) for key, entry in self.entries.items() if before.get(key) != entry]

    def apply(self, events: Sequence[pb.Event]) -> list[Update]:
        updates = []
        for event in events:
            key = event.kv.key
            if event.type == pb.Event.DELETE:
                if self.entries.pop(key, None) is not None:
                    updates.append(Update(key, None))
            else:
                entry = self.entries[key] = Entry(key, event.kv.value, event.kv.mod_revision, event.kv.lease)
                updates.append(Update(key, entry))
        return updates


async def follow(
    client: EtcdClient, prefix: bytes, on_updates: Callable[[list[Update]], None], trouble: Trouble
) -> NoReturn:
    """Goes on until it is cancelled, whatever becomes of etcd. ``on_updates`` gets all that is there first."""
    mirror, backoff = Mirror(), Backoff()
    while True:
        try:
            listing = await client.list(prefix)
            on_updates(mirror.reset(listing))
            trouble.ends()
            await watch(client, prefix, listing.revision + 1, lambda events: on_updates(mirror.apply(events)), trouble)
        except HistoryLost:
            pass  # the listing is the remedy
        except KVStoreError as error:
            trouble.begins(error)
        await asyncio.sleep(backoff.wait())
