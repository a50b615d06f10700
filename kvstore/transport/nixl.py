"""NIXL: blocks are read out of the node's memory without its Python taking part; nobody remote ever writes it.

A get leases blocks, reads them, and asks by RELEASE whether the lease was unbroken all the while. Only then, and when
the checksums hold, does the result count them: a client that was stopped in between may have read what another block's
writer put there. For a put the node reads this process's memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvstore.core.checksum import part_seed, xxh3
from kvstore.core.errors import InvalidArgument, LeaseLost, ProtocolError, Unsupported
from kvstore.core.keys import KEY_BYTES
from kvstore.transport.base import Borrowed, Capabilities, Reservation
from kvstore.transport.batch import (
    GetCall,
    GetResult,
    PutCall,
    Targets,
    commit_request,
    entries,
    milliseconds,
    parsed,
    reserve_request,
)
from kvstore.transport.copying import MASK, spread
from kvstore.transport.fabric.groups import grouped
from kvstore.transport.fabric.shared import client_fabric
from kvstore.transport.fetched import Fetched
from kvstore.transport.frame import Op
from kvstore.transport.leasing import LeasingTransport, Located, located
from kvstore.transport.outcome import STORED, get_result, merged
from kvstore.transport.plan import Chunk, Entry, Plan
from kvstore.transport.reaper import REAPER
from kvstore.transport.wire import Address, Wire
from kvstore.v1 import data_pb2 as pb

READ_BYTES = 2 << 20  # of one transfer, if no step is larger: it is hashed and copied while it is in the cache
PULL_BYTES = 8 << 20  # offered to the node at once


@dataclass(frozen=True, slots=True)
class Move:
    """Whole chunks of one piece: bytes ``start`` to ``end`` of it. ``sums``: index of the first one's checksum."""

    item: int
    start: int
    end: int
    chunks: tuple[Chunk, ...]
    sums: int

    @property
    def size(self) -> int:
        return self.end - self.start


def moves_of(plan: Plan, found: list[Entry]) -> list[Move]:
    """The steps of all pieces, in order."""
    moves: list[Move] = []
    for item, entry in enumerate(found):
        at = entry.sums
        for start, end, chunks in plan.pieces[entry.at].copies:
            moves.append(Move(item, start, end, chunks, at))
            at += len(chunks)
    return moves


class NixlTransport(LeasingTransport):
    """A network session that holds leases while it reads."""

    capabilities = Capabilities("nixl", same_host=False, zero_copy=False, heartbeat=True, fabric=True)

    def __init__(
        self, address: Address, deadline: float, *, max_wires: int = 4, client: str = "kvstore", devices: str = ""
    ) -> None:
        """``devices``: network devices in UCX's words; empty: all."""
        self._fabric = client_fabric(devices, deadline)
        self._peer = ""
        super().__init__(address, deadline, max_wires=max_wires, client=client)
        REAPER.watch(self)

    def _begin(self, wire: Wire, deadline: float) -> None:
        super()._begin(wire, deadline)
        if "nixl" not in self.hello.transports:
            raise Unsupported(f"the node at {self.address} does not offer nixl; add it to its setting transports")
        request = pb.FabricRequest(address=self._fabric.metadata)
        reply = parsed(pb.FabricReply(), wire.request(Op.FABRIC, request.SerializeToString(), deadline))
        self._base, self._size = reply.memory_address, reply.memory_bytes
        self._peer = self._fabric.agent.add_peer(reply.address)

    def _released(self) -> None:
        if self._peer:
            self._fabric.agent.remove_peer(self._peer)

    # --- get ---------------------------------------------------------------------------------------------

    def _get(self, call: GetCall, into: Targets, deadline: float) -> GetResult:
        self.pin()
        lease = 0
        try:
            reply = self._lease(call, deadline)
            lease = reply.lease
            found = located(call, reply)
            done, late = self._fetch(call, found, into, deadline)
            if lease:
                self._confirm(lease, deadline)
                lease = 0
            return get_result(call, reply, found.here, done, late, found.holes)
        finally:
            self.give_lease_back(lease)

    def _fetch(self, call: GetCall, found: Located, into: Targets, deadline: float) -> tuple[int, bool]:
        """How many leading pieces arrived and passed their checks, and whether time was up before the others."""
        moves = moves_of(call.plan, found.here)
        groups = grouped([move.size for move in moves], READ_BYTES)
        reached: dict[int, int] = {}  # first piece of a group that failed its check

        def work(at: int) -> bool:
            failed = self._pull(call, found, into, [moves[nth] for nth in groups[at]], deadline)
            if failed >= 0:
                reached[at] = failed
            return failed < 0

        done, late = spread(len(groups), found.size, work, deadline)
        if done == len(groups):
            return len(found.here), False
        return reached.get(done, moves[groups[done].start].item), late

    def _pull(self, call: GetCall, found: Located, into: Targets, moves: list[Move], deadline: float) -> int:
        """Reads some pieces; what passes its check is copied to where it belongs. The first that fails, or -1."""
        slab = self._fabric.pull(self._peer, [(self._source(found, move), move.size) for move in moves], deadline)
        try:
            view, at = memoryview(slab.array), 0
            for move in moves:
                entry = found.here[move.item]
                if not _passes(call, entry, move, view[at : at + move.size], found.sums):
                    return move.item
                np.copyto(into[entry.nth][move.start : move.end], slab.array[at : at + move.size])
                at += move.size
            return -1
        finally:
            slab.give_back()

    def _source(self, found: Located, move: Move) -> int:
        start = found.starts[move.item] + move.start
        if start + move.size > self._size:
            raise ProtocolError(f"the node named bytes {start} to {start + move.size} of {self._size}")
        return int(self._base + start)

    def _confirm(self, lease: int, deadline: float) -> None:
        """Gives a lease back. Raises LeaseLost unless it was unbroken until now."""
        message = pb.ReleaseRequest(leases=[lease]).SerializeToString()
        unbroken = list(parsed(pb.ReleaseReply(), self.call(Op.RELEASE, message, deadline)).unbroken)
        if unbroken != [True]:
            raise LeaseLost("the lease was broken while its blocks were read; what arrived is not used")

    def borrow(self, call: GetCall, deadline: float) -> Borrowed:
        return Fetched(self, call, deadline)

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
        self._settle()
        reply = parsed(pb.ReserveReply(), self.call(Op.RESERVE, reserve_request(call, deadline), deadline))
        return _Offered(self, call, reply)


def _passes(call: GetCall, entry: Entry, move: Move, view: memoryview, sums: list[int]) -> bool:
    key = (call.first + entry.block) * KEY_BYTES
    seed = part_seed(call.keys[key : key + KEY_BYTES], call.plan.pieces[entry.at].part)
    return all(
        xxh3(view[first - move.start : last - move.start], (seed + index) & MASK) == sums[move.sums + nth]
        for nth, (first, last, index) in enumerate(move.chunks)
    )


class _Offered(Reservation):
    """A reservation that the node fills by reading copies of the caller's buffers."""

    def __init__(self, transport: NixlTransport, call: PutCall, reply: pb.ReserveReply) -> None:
        self.outcomes = reply.outcomes
        self._transport = transport
        self._call = call
        self._id = reply.reservation
        self._stored = [nth for nth, outcome in enumerate(reply.outcomes) if outcome == STORED]
        if len(reply.outcomes) * KEY_BYTES != len(call.keys):
            raise ProtocolError(f"the node answered for {len(reply.outcomes)} of {len(call.keys) // KEY_BYTES} blocks")
        self._sums: list[int] = [-1] * (len(self._stored) * call.plan.block_chunks)

    def write(self, plan: Plan, sources: Targets, deadline: float) -> None:
        for blocks in grouped([plan.block_bytes] * len(self._stored), PULL_BYTES):
            self._offer(plan, sources, blocks, deadline)

    def _offer(self, plan: Plan, sources: Targets, blocks: range, deadline: float) -> None:
        """Copies some blocks where the node can read them, hashes the copies, and lets it read. What a node
        reads after the deadline may be other bytes: they fail its check, for the checksums come with COMMIT."""
        transport, width = self._transport, len(plan.pieces)
        slab = transport._fabric.arena.take(plan.block_bytes * len(blocks), deadline)
        request = pb.WriteRequest(
            reservation=self._id,
            range_offset=plan.range_offset,
            range_length=plan.range_length,
            first_block=blocks.start,
        )
        at = 0
        for block in blocks:
            for position, piece in enumerate(plan.pieces):
                copy = slab.array[at : at + piece.length]
                np.copyto(copy, sources[self._stored[block] * width + position])
                self._note(plan, block, position, memoryview(copy))
                request.addresses.append(slab.address + at)
                at += piece.length
        try:
            request.deadline_ms = milliseconds(deadline)
            transport.call(Op.WRITE, request.SerializeToString(), deadline)
        finally:
            slab.give_back()

    def _note(self, plan: Plan, block: int, position: int, view: memoryview) -> None:
        piece, entry = plan.pieces[position], entries(self._call.plan, len(self._stored))
        key = self._stored[block] * KEY_BYTES
        seed = part_seed(self._call.keys[key : key + KEY_BYTES], piece.part)
        first = entry[block * len(plan.pieces) + position].sums
        for start, end, index in piece.chunks:
            self._sums[first + index] = xxh3(view[start:end], (seed + index) & MASK)

    def commit(self, deadline: float) -> bytes:
        if -1 in self._sums:
            self.abort()
            raise InvalidArgument("the put is not complete: some ranges of its blocks were never written")
        if not self._id or not self._stored:
            return self.outcomes
        try:
            request = commit_request(self._id, self._sums, self._call.ack, deadline)
            reply = parsed(pb.CommitReply(), self._transport.call(Op.COMMIT, request, deadline))
        except BaseException:
            self.abort()
            raise
        return merged(self.outcomes, self._stored, reply.outcomes)

    def abort(self) -> None:
        if self._id:
            self._transport.abort(self._id)
