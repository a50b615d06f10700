"""Nodes find each other in etcd: one key a node, held by a lease, all of them watched."""

from __future__ import annotations

import logging
import re
from concurrent.futures import wait

from kvstore.cluster.discovery.base import Discovery, OnChange, Report, Seed
from kvstore.cluster.etcd.announcement import Announcement
from kvstore.cluster.etcd.backoff import Trouble
from kvstore.cluster.etcd.client import EtcdClient
from kvstore.cluster.etcd.mirror import Update, follow
from kvstore.cluster.etcd.settings import EtcdSettings
from kvstore.cluster.loop import LoopThread
from kvstore.cluster.member import Member
from kvstore.core.errors import InvalidArgument, KVStoreError

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_GOODBYE = 1.0  # seconds that a stop gives etcd to take note


def cell_prefix(name: str) -> bytes:
    """Below which the nodes of a cell announce themselves. Raises InvalidArgument."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"cluster name {name!r} must be 1 to 64 letters, digits, dots, dashes and underscores", field="cluster"
        )
    return f"/kvstore/{name}/nodes/".encode()


class EtcdDiscovery(Discovery):
    """``cluster`` names the cell: nodes with other names in the same etcd are not seen."""

    def __init__(self, settings: EtcdSettings, cluster: str = "default", ttl: int = 10) -> None:
        """Raises InvalidArgument for a name that cannot be part of a key."""
        self._prefix = cell_prefix(cluster)
        self._settings = settings
        self._ttl = ttl
        self._following = Trouble(_log, "following the nodes in etcd")
        self._members: dict[bytes, Member] = {}
        self._twin = ""
        self._seen_own = False

    @property
    def problem(self) -> str:
        return "; ".join(filter(None, (self._twin, self._announcement.trouble.text, self._following.text)))

    @property
    def announced(self) -> bool:
        """Whether others can see this node in etcd, as far as can be known."""
        return self._announcement.alive()

    @property
    def visible(self) -> bool:
        """Its own key has come back to it, as to all others."""
        return self._seen_own and self.announced

    def start(self, announce: Member, on_change: OnChange) -> None:
        self._own = announce
        self._own_key = self._prefix + announce.node_id.hex().encode()
        self._report = Report(on_change, announce.control_address)
        self._client = EtcdClient(self._settings)
        self._announcement = Announcement(self._client, self._own_key, announce.to_json(), self._ttl)
        self._loop = LoopThread("kvstore-etcd")
        self._work = [
            self._loop.background(self._announcement.run()),
            self._loop.background(follow(self._client, self._prefix, self._take, self._following)),
        ]

    def update(self, announce: Member) -> None:
        self._loop.call(self._announcement.say, announce.to_json())

    def stop(self) -> None:
        self._report.close()
        for work in self._work:
            work.cancel()  # first, or the announcement would come back
        goodbye = self._loop.background(self._goodbye())
        wait([goodbye], timeout=2 * _GOODBYE)
        self._loop.stop()

    async def _goodbye(self) -> None:
        try:
            await self._announcement.withdraw(_GOODBYE)
        except KVStoreError as error:
            _log.info("this node stays in etcd until its lease is over: %s", error)
        finally:
            await self._client.close()

    def _take(self, updates: list[Update]) -> None:
        for update in updates:
            member = self._parse(update)
            if update.key == self._own_key:
                self._look_at_own(member)
            elif member is None:
                self._members.pop(update.key, None)
            else:
                self._members[update.key] = member
        self._report.tell(frozenset(Seed(member.control_address, member) for member in self._members.values()))

    def _parse(self, update: Update) -> Member | None:
        """None for a key that is gone, or says nothing that this version understands."""
        if update.entry is None:
            return None
        try:
            member = Member.from_json(update.entry.value)
        except InvalidArgument as error:
            _log.warning("etcd key %s is passed over: %s", update.key.decode(errors="replace"), error)
            return None
        if update.key != self._prefix + member.node_id.hex().encode():
            _log.warning(
                "etcd key %s is passed over: its value is of another node", update.key.decode(errors="replace")
            )
            return None
        return member

    def _look_at_own(self, member: Member | None) -> None:
        if member is None:
            self._announcement.repeat()
            return
        own = member.boot_id == self._own.boot_id
        self._seen_own = self._seen_own or own
        # What an earlier start left is there until ours replaces it; what replaces ours is not from us.
        twin = self._seen_own and not own
        if twin and not self._twin:
            _log.error("another process at %s announces itself with this node's id", member.control_address)
        self._twin = (
            f"a copy of this node's data directory runs at {member.control_address}; give it its own" if twin else ""
        )
