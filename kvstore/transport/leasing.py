"""Sessions that hold leases: a GET answers with locations, the lease goes back once nobody looks at them any more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from kvstore.core.errors import ProtocolError
from kvstore.transport.base import Transport
from kvstore.transport.batch import GetCall, entries, get_request, parsed, present
from kvstore.transport.frame import Op
from kvstore.transport.plan import Entry
from kvstore.transport.reaper import REAPER
from kvstore.transport.wire import Address
from kvstore.v1 import data_pb2 as pb

_DUE_AT_ONCE = 1024  # leases in one request


@dataclass(frozen=True, slots=True)
class Located:
    """Leased pieces: where each lies, the checksums of the whole batch, what is not here, bytes in all."""

    here: list[Entry]
    starts: list[int]
    sums: list[int]
    holes: tuple[tuple[int, int], ...]
    size: int


def located(call: GetCall, reply: pb.GetReply) -> Located:
    """The leased pieces. Raises ProtocolError when the reply makes no sense."""
    plan = call.plan
    blocks = max(0, reply.blocks - call.first)
    every = entries(plan, blocks)
    if len(reply.offsets) != len(every) or len(reply.checksums) != 8 * plan.block_chunks * blocks:
        raise ProtocolError(f"the node located {len(reply.offsets)} parts instead of {len(every)}")
    sums = np.frombuffer(reply.checksums, dtype="<u8").tolist()
    here, holes = present(call, every, sums)
    offsets = list(reply.offsets)
    starts = [offsets[entry.nth] + plan.pieces[entry.at].offset for entry in here]
    return Located(here, starts, sums, holes, plan.block_bytes * blocks)


class LeasingTransport(Transport):
    """Leases, and how they are given back: with the next get, or soon by the reaper."""

    def __init__(self, address: Address, deadline: float, *, max_wires: int = 4, client: str = "kvstore") -> None:
        self._due: deque[tuple[int, bool]] = deque()  # leases to give back, and whether each still holds a pin
        self._tended = False
        super().__init__(address, deadline, max_wires=max_wires, client=client)

    def _lease(self, call: GetCall, deadline: float, whole: bool = False) -> pb.GetReply:
        due = self._take_due() if self._due else []
        try:
            request = get_request(call, release=due, deadline=deadline, whole=whole)
            return parsed(pb.GetReply(), self.call(Op.GET, request, deadline))
        except BaseException:
            for lease in due:  # refused before they were released, perhaps: releasing twice does no harm
                self._owe(lease, False)
            raise

    def give_lease_back(self, lease: int) -> None:
        """The pieces of a lease are no longer looked at. The next get takes it along; without one, the reaper soon."""
        self.unpin()
        if lease:
            self._owe(lease, False)

    def lease_died(self, lease: int) -> None:
        """The last view of a borrow is gone. Safe in a finalizer."""
        self._owe(lease, True)

    def _owe(self, lease: int, pinned: bool) -> None:
        self._due.append((lease, pinned))
        if not self._tended:
            self._tended = True
            REAPER.tend(self)

    def _take_due(self) -> list[int]:
        leases: list[int] = []
        while len(leases) < _DUE_AT_ONCE:
            try:
                lease, pinned = self._due.popleft()
            except IndexError:
                break
            if pinned:
                self.unpin()
            if lease:
                leases.append(lease)
        return leases

    def _settle(self) -> None:
        while leases := self._take_due():
            if self.lost:
                continue  # all of them go back with the session
            if not self.notify(Op.RELEASE, pb.ReleaseRequest(leases=leases).SerializeToString()):
                for lease in leases:
                    self._owe(lease, False)
                return

    def _came_late(self, op: Op, message: bytes) -> None:
        if op is Op.GET and (lease := parsed(pb.GetReply(), message).lease):
            self._owe(lease, False)
        super()._came_late(op, message)

    def tick(self) -> bool:
        waits = super().tick()
        if self._due:
            self._settle()
            return True
        self._tended = False
        if self._due:  # came in between
            self._tended = True
        return self._tended or waits
