"""Who of the cell is there: a state machine without clocks and sockets of its own.

Discovery says which nodes exist, their event streams say which live. Discovery never takes a node away: a node that is
lost by etcd or DNS is still a member for as long as it is heard.

    discovered ─→ suspect ⇄ live (draining)        heard: live; silent or stream lost: suspect
                     └────→ gone                   suspect for long, or by its own word at once
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from kvstore.cluster.member import Member

MAX_PEERS = 254  # the index numbers the nodes of a cell with one byte; one of them is this node
_RETIRED_BOOTS = 8  # earlier boot ids remembered of a node


class State(Enum):
    """``LIVE`` and ``DRAINING`` nodes are read from, new blocks go to ``LIVE`` ones alone."""

    LIVE = "live"
    DRAINING = "draining"
    SUSPECT = "suspect"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node as it is seen now."""

    member: Member
    state: State


@dataclass(frozen=True, slots=True)
class Change:
    """One step of one node. ``before`` is None for a node that was not known, ``after`` for one that was forgotten.

    ``restarted``: all that was known of its blocks is of an earlier boot.
    """

    node_id: bytes
    before: State | None
    after: State | None
    restarted: bool = False


@dataclass(slots=True)
class _Record:
    member: Member
    alive: State  # LIVE, SUSPECT or GONE: draining is the member's own word
    since: float  # live: when last heard; suspect and gone: since when. In time that this process was awake
    heard: bytes | None = None  # the boot that was heard last
    retired: list[bytes] = field(default_factory=list)  # boots that are over for certain

    @property
    def state(self) -> State:
        return State.DRAINING if self.alive is State.LIVE and self.member.draining else self.alive

    def retire(self, boot_id: bytes) -> None:
        self.retired = [*self.retired, boot_id][-_RETIRED_BOOTS:]


class Membership:
    """The other nodes of the cell. Not thread-safe. ``now`` is a monotonic clock's time, in seconds.

    ``tick`` is to be called several times in ``suspect_after`` seconds. A longer gap is a pause of this process
    and counts little: a node that slept itself must not think that all others died.
    """

    def __init__(self, own_id: bytes, suspect_after: float = 3.0, gone_after: float = 300.0) -> None:
        self._own_id = own_id
        self._suspect_after = suspect_after
        self._gone_after = gone_after
        self._records: dict[bytes, _Record] = {}
        self._last_now: float | None = None
        self._awake = 0.0
        self.refused = 0  # nodes past MAX_PEERS

    def discovered(self, member: Member, now: float) -> list[Change]:
        """A node says, or somebody says for it, who it is. It is suspect until it is heard.

        Boot ids have no order and discovery may lag behind, so a boot that is only discovered ends no other.
        """
        awake = self._clock(now)
        if member.node_id == self._own_id:
            return []
        record = self._records.get(member.node_id)
        if record is None:
            return self._admit(member, awake)
        if member.boot_id == record.member.boot_id:
            before, record.member = record.state, member
            return self._changed(record, before)
        if member.boot_id in record.retired:
            return []  # old news
        return self._reboot(record, member, State.SUSPECT, awake)

    def heard(self, node_id: bytes, boot_id: bytes, now: float) -> list[Change]:
        """Anything came on the node's event stream. Unknown nodes and boots that are over are no news."""
        awake = self._clock(now)
        record = self._records.get(node_id)
        if record is None or boot_id in record.retired:
            return []
        if record.heard not in (None, boot_id):
            record.retire(record.heard)
        record.heard = boot_id
        if boot_id != record.member.boot_id:
            rebooted = replace(record.member, boot_id=boot_id, draining=False)
            return self._reboot(record, rebooted, State.LIVE, awake)
        return self._turn(record, State.LIVE, awake)

    def stream_lost(self, node_id: bytes, boot_id: bytes, now: float) -> list[Change]:
        """The event stream broke: suspect at once, others hold the same blocks or they are computed again."""
        awake = self._clock(now)
        record = self._records.get(node_id)
        if record is None or record.member.boot_id != boot_id or record.alive is not State.LIVE:
            return []
        return self._turn(record, State.SUSPECT, awake)

    def left(self, node_id: bytes, boot_id: bytes, now: float) -> list[Change]:
        """The node said goodbye. What still arrives of this boot is late and changes nothing."""
        awake = self._clock(now)
        record = self._records.get(node_id)
        if record is None or boot_id in record.retired or boot_id not in (record.heard, record.member.boot_id):
            return []
        record.retire(boot_id)
        return self._turn(record, State.GONE, awake) if boot_id == record.member.boot_id else []

    def tick(self, now: float) -> list[Change]:
        """Time passes; each node makes one step at most."""
        awake = self._clock(now)
        changes: list[Change] = []
        for record in self._records.values():
            silent = awake - record.since
            if record.alive is State.LIVE and silent >= self._suspect_after:
                changes += self._turn(record, State.SUSPECT, awake)
            elif record.alive is State.SUSPECT and silent >= self._gone_after:
                changes += self._turn(record, State.GONE, awake)
        return changes

    def peers(self) -> tuple[Peer, ...]:
        """All that are known, gone ones included."""
        return tuple(Peer(record.member, record.state) for record in self._records.values())

    def peer(self, node_id: bytes) -> Peer | None:
        """None: not known."""
        record = self._records.get(node_id)
        return Peer(record.member, record.state) if record is not None else None

    def state(self, node_id: bytes) -> State | None:
        """None: not known."""
        record = self._records.get(node_id)
        return record.state if record is not None else None

    def _clock(self, now: float) -> float:
        """Time in which this process was awake."""
        passed = now - self._last_now if self._last_now is not None else 0.0
        if passed >= 0.0:
            self._last_now = now
            self._awake += min(passed, self._suspect_after / 2)
        return self._awake

    def _admit(self, member: Member, awake: float) -> list[Change]:
        changes: list[Change] = []
        if len(self._records) >= MAX_PEERS:
            gone = [record for record in self._records.values() if record.alive is State.GONE]
            if not gone:
                self.refused += 1
                return []
            oldest = min(gone, key=lambda record: record.since).member.node_id
            del self._records[oldest]
            changes.append(Change(oldest, State.GONE, None))
        record = self._records[member.node_id] = _Record(member, State.SUSPECT, awake)
        return [*changes, Change(member.node_id, None, record.state)]

    def _reboot(self, record: _Record, member: Member, alive: State, awake: float) -> list[Change]:
        before = record.state
        record.member, record.alive, record.since = member, alive, awake
        return [Change(member.node_id, before, record.state, restarted=True)]

    def _turn(self, record: _Record, alive: State, awake: float) -> list[Change]:
        before = record.state
        record.alive, record.since = alive, awake
        return self._changed(record, before)

    def _changed(self, record: _Record, before: State) -> list[Change]:
        after = record.state
        return [Change(record.member.node_id, before, after)] if after is not before else []
