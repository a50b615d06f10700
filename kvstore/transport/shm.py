"""Shared memory: the node's memory file is mapped here, only locations travel. A get copies out of leased slots (or
lends views of them), a put writes straight into reserved ones."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import replace

from kvstore.core.checksum import part_seed
from kvstore.core.errors import DeadlineExceeded, InvalidArgument, ProtocolError, SessionLost, Unsupported
from kvstore.core.keys import KEY_BYTES
from kvstore.transport.base import Borrowed, Capabilities, Reservation
from kvstore.transport.batch import (
    GetCall,
    GetResult,
    PutCall,
    Targets,
    commit_request,
    entries,
    parsed,
    reserve_request,
)
from kvstore.transport.copying import fetch, place, spread, verify
from kvstore.transport.frame import Op
from kvstore.transport.leasing import LeasingTransport, located
from kvstore.transport.lockfile import LOCK_FILES
from kvstore.transport.mapping import MemoryMap, map_memory
from kvstore.transport.outcome import STORED, get_result, merged
from kvstore.transport.plan import Plan
from kvstore.transport.reaper import REAPER
from kvstore.transport.wire import Address, Wire
from kvstore.v1 import data_pb2 as pb

_STEP = pb.AttachRequest.Step


class ShmTransport(LeasingTransport):
    """A session that proves its life by a kernel lock on its byte of the node's lock file."""

    capabilities = Capabilities("shm", same_host=True, zero_copy=True, heartbeat=False)

    def __init__(self, address: Address, deadline: float, *, max_wires: int = 4, client: str = "kvstore") -> None:
        if not address.local:
            raise Unsupported(
                f"{address}: shared memory needs the node's unix socket; use unix://PATH or transport='tcp'"
            )
        self._writer: MemoryMap | None = None
        self._writer_lock = threading.Lock()
        super().__init__(address, deadline, max_wires=max_wires, client=client)
        REAPER.start()

    # --- handshake ---------------------------------------------------------------------------------------

    def _begin(self, wire: Wire, deadline: float) -> None:
        super()._begin(wire, deadline)
        self._index = self.hello.session_index
        self._file = self._lock_byte(wire, deadline)
        try:
            self._reader = self._attach(wire, _STEP.STEP_READ, "memory-ro", deadline)
        except BaseException:
            LOCK_FILES.unlock(self._file, self._index)
            raise

    def _lock_byte(self, wire: Wire, deadline: float) -> tuple[int, int]:
        file = (self.hello.lock_dev, self.hello.lock_ino)
        try:
            return LOCK_FILES.lock(file, self._index, lambda: _descriptor(wire, _STEP.STEP_LOCK_FILE, "lock", deadline))
        except OSError as error:
            raise SessionLost(f"byte {self._index} of the node's lock file cannot be locked: {error}") from error

    def _attach(self, wire: Wire, step: pb.AttachRequest.Step, name: str, deadline: float) -> MemoryMap:
        descriptor = _descriptor(wire, step, name, deadline)
        return map_memory(descriptor, self.hello.memory_bytes, writable=step == _STEP.STEP_WRITE)

    def _writable(self, deadline: float) -> MemoryMap:
        with self._writer_lock:
            if self._writer is None:
                wire = self.pool.take(deadline)
                try:
                    self._writer = self._attach(wire, _STEP.STEP_WRITE, "memory-rw", deadline)
                finally:
                    self.give(wire)
            return self._writer

    def _released(self) -> None:
        LOCK_FILES.unlock(self._file, self._index)

    # --- get ---------------------------------------------------------------------------------------------

    def _get(self, call: GetCall, into: Targets, deadline: float) -> GetResult:
        self.pin()
        lease = 0
        try:
            reply = self._lease(call, deadline)
            lease = reply.lease
            result = self._fetch(call, reply, into, deadline)
            if result.more:
                result, lease = replace(result, lease=lease), 0
            return result
        finally:
            self.give_lease_back(lease)

    def _fetch(self, call: GetCall, reply: pb.GetReply, into: Targets, deadline: float) -> GetResult:
        plan, keys = call.plan, call.keys
        found = located(call, reply)

        def work(item: int) -> bool:
            entry = found.here[item]
            piece, key = plan.pieces[entry.at], (call.first + entry.block) * KEY_BYTES
            seed = part_seed(keys[key : key + KEY_BYTES], piece.part)
            source = self._reader.part(found.starts[item], piece.length)
            return fetch(into[entry.nth], source, piece, seed, found.sums, entry.sums)

        done, late = spread(len(found.here), found.size, work, deadline)
        return get_result(call, reply, found.here, done, late, found.holes)

    # --- borrow ------------------------------------------------------------------------------------------

    def borrow(self, call: GetCall, deadline: float) -> Borrowed:
        self.pin()
        lease = 0
        try:
            reply = self._lease(call, deadline, whole=True)
            lease = reply.lease
            return _Lent(self, call, reply, deadline)
        except BaseException:
            self.give_lease_back(lease)
            raise

    # --- put ---------------------------------------------------------------------------------------------

    def put(self, call: PutCall, sources: Targets, deadline: float) -> bytes:
        reservation = self.reserve(call, deadline)
        try:
            reservation.write(call.plan, sources, deadline)
        except BaseException:
            reservation.abort()
            raise
        return reservation.commit(deadline)

    def reserve(self, call: PutCall, deadline: float) -> Reservation:
        memory = self._writable(deadline)
        self._settle()
        self.pin()
        try:
            reply = parsed(pb.ReserveReply(), self.call(Op.RESERVE, reserve_request(call, deadline), deadline))
            return _Slots(self, memory, call, reply)
        except BaseException:
            self.unpin()
            raise


class _Lent(Borrowed):
    """Views of leased slots. The lease goes back when the borrower's block has ended and no view lives."""

    def __init__(self, transport: ShmTransport, call: GetCall, reply: pb.GetReply, deadline: float) -> None:
        found = located(call, reply)
        plan, pieces, base = call.plan, len(call.plan.pieces), transport._reader.fresh()
        lent = memoryview(base)
        views = [lent[:0]] * (pieces * max(0, reply.blocks - call.first))
        for entry, start in zip(found.here, found.starts, strict=True):
            source = transport._reader.part(start, plan.pieces[entry.at].length)
            views[entry.nth] = lent[start : start + len(source)]

        def work(item: int) -> bool:
            entry = found.here[item]
            piece, key = plan.pieces[entry.at], (call.first + entry.block) * KEY_BYTES
            seed = part_seed(call.keys[key : key + KEY_BYTES], piece.part)
            return verify(views[entry.nth], piece, seed, found.sums, entry.sums)

        done, late = spread(len(found.here), found.size, work, deadline)
        self.result = get_result(call, reply, found.here, done, late, found.holes)
        self.views = views[: max(0, self.result.blocks - call.first) * pieces]
        weakref.finalize(base, transport.lease_died, reply.lease).atexit = False

    def give_back(self) -> None:
        self.views = []


class _Slots(Reservation):
    """Reserved slots, written in place."""

    def __init__(self, transport: ShmTransport, memory: MemoryMap, call: PutCall, reply: pb.ReserveReply) -> None:
        self.outcomes = reply.outcomes
        self._transport = transport
        self._memory = memory
        self._call = call
        self._id = reply.reservation
        pieces = len(call.plan.pieces)
        self._stored = [nth for nth, outcome in enumerate(reply.outcomes) if outcome == STORED]
        if len(reply.outcomes) * KEY_BYTES != len(call.keys) or len(reply.offsets) != len(self._stored) * pieces:
            raise ProtocolError(f"the node reserved {len(reply.offsets)} parts for {len(self._stored)} blocks")
        self._offsets = list(reply.offsets)
        self._sums: list[int] = [-1] * (len(self._stored) * call.plan.block_chunks)
        self._held = True

    def write(self, plan: Plan, sources: Targets, deadline: float) -> None:
        width, keys, memory = len(plan.pieces), self._call.keys, self._memory
        every = entries(self._call.plan, len(self._stored))

        def work(item: int) -> bool:
            entry = every[item]
            index, piece = self._stored[entry.block], plan.pieces[entry.at]
            slot = memory.part(self._offsets[item] + piece.offset, piece.length)
            seed = part_seed(keys[index * KEY_BYTES : (index + 1) * KEY_BYTES], piece.part)
            place(slot, sources[index * width + entry.at], piece, seed, self._sums, entry.sums + piece.chunks[0][2])
            return True

        done, _ = spread(len(every), plan.block_bytes * len(self._stored), work, deadline)
        if done < len(every):
            raise DeadlineExceeded("the deadline passed while blocks were written")

    def commit(self, deadline: float) -> bytes:
        if -1 in self._sums:
            self.abort()
            raise InvalidArgument("the put is not complete: some ranges of its blocks were never written")
        if not self._id or not self._stored:
            self._let_go()
            return self.outcomes
        try:
            request = commit_request(self._id, self._sums, self._call.ack, deadline)
            reply = parsed(pb.CommitReply(), self._transport.call(Op.COMMIT, request, deadline))
        except BaseException:
            self.abort()
            raise
        self._let_go()
        return merged(self.outcomes, self._stored, reply.outcomes)

    def abort(self) -> None:
        try:
            if self._id and self._held:
                self._transport.abort(self._id)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._held:
            self._held = False
            self._transport.unpin()


def _descriptor(wire: Wire, step: pb.AttachRequest.Step, name: str, deadline: float) -> int:
    request = pb.AttachRequest()
    request.step = step
    data, descriptors = wire.request_descriptors(Op.ATTACH, request.SerializeToString(), deadline)
    reply = parsed(pb.AttachReply(), data)
    if list(reply.fds) != [name] or len(descriptors) != 1:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ProtocolError(f"the node sent the descriptors {list(reply.fds)} instead of {name!r}")
    return descriptors[0]
