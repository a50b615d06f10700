"""Bytes over the socket (TCP, or the unix socket when memory cannot be shared): received into the caller's buffers
and sent from them; each side hashes a chunk while it is in the cache."""

from __future__ import annotations

import numpy as np

from kvstore.core.checksum import part_seed, xxh3
from kvstore.core.errors import DeadlineExceeded, InvalidArgument, ProtocolError, SessionLost
from kvstore.core.keys import KEY_BYTES
from kvstore.transport.base import Borrowed, Capabilities, Reservation, Transport
from kvstore.transport.batch import (
    GetCall,
    GetResult,
    PutCall,
    Targets,
    commit_request,
    entries,
    get_request,
    parsed,
    present,
    reserve_request,
)
from kvstore.transport.copying import MASK
from kvstore.transport.fetched import Fetched
from kvstore.transport.frame import IOV_MAX, Buffer, Op
from kvstore.transport.outcome import STORED, get_result, merged
from kvstore.transport.plan import Entry, Piece, Plan
from kvstore.transport.reaper import REAPER
from kvstore.transport.wire import Address, Wire
from kvstore.v1 import data_pb2 as pb

PIECE_BYTES = 256 << 20  # a larger batch goes in several requests, so that a lane is not held for long
SEND_BYTES = 512 << 10  # hashed, then sent in one call


class TcpTransport(Transport):
    """A network session: the node copies, nothing of its memory is seen here."""

    capabilities = Capabilities("tcp", same_host=False, zero_copy=False, heartbeat=True)

    def __init__(
        self, address: Address, deadline: float, *, max_wires: int = 4, client: str = "kvstore", node_id: bytes = b""
    ) -> None:
        super().__init__(address, deadline, max_wires=max_wires, client=client, node_id=node_id)
        REAPER.watch(self)

    # --- get ---------------------------------------------------------------------------------------------

    def _get(self, call: GetCall, into: Targets, deadline: float) -> GetResult:
        return self.pull(call, into, deadline)[0]

    def pull(self, call: GetCall, into: Targets, deadline: float) -> tuple[GetResult, list[int]]:
        """One request of a get; also the checksums of all chunks of the blocks that were sent, block-major."""
        most = max(1, min(len(into) // len(call.plan.pieces), self._frame_blocks(call.plan)))
        wire = self.pool.take(deadline)
        try:
            wire.start(Op.GET, get_request(call, most, deadline=deadline), deadline)
            reply, here, holes, sums = self._located(wire, call, most, deadline)
            done = _receive(wire, call, here, sums, into, deadline)
            return get_result(call, reply, here, done, False, holes), sums
        except DeadlineExceeded:
            wire.cut = wire.broken and wire.late is None  # within the payload: a network session holds no lease
            raise
        except SessionLost:
            self.retire()
            raise
        finally:
            self.give(wire)

    def _frame_blocks(self, plan: Plan) -> int:
        """How many blocks one frame may carry."""
        return min(PIECE_BYTES, self.node.max_frame_bytes) // plan.sent_bytes

    def _located(
        self, wire: Wire, call: GetCall, most: int, deadline: float
    ) -> tuple[pb.GetReply, list[Entry], tuple[tuple[int, int], ...], list[int]]:
        """The reply, the entries whose bytes follow, those that are not here, and all checksums."""
        header, data = wire.reply(Op.GET, deadline)
        try:
            reply, plan = parsed(pb.GetReply(), data), call.plan
            blocks = max(0, reply.blocks - call.first)
            if blocks > most or len(reply.checksums) != 8 * blocks * plan.block_chunks:
                raise ProtocolError(f"the node sent {len(reply.checksums)} bytes of checksums for {blocks} blocks")
            sums = np.frombuffer(reply.checksums, dtype="<u8").tolist()
            here, holes = present(call, entries(plan, blocks), sums)
            want = sum(plan.pieces[entry.at].length for entry in here)
            if header.payload_len != want:
                raise ProtocolError(f"the node sent {header.payload_len} bytes for {blocks} blocks, not {want}")
        except BaseException:
            wire.broken = True
            raise
        return reply, here, holes, sums

    def borrow(self, call: GetCall, deadline: float) -> Borrowed:
        return Fetched(self, call, deadline)

    # --- put ---------------------------------------------------------------------------------------------

    def put(self, call: PutCall, sources: Targets, deadline: float) -> bytes:
        blocks = len(call.keys) // KEY_BYTES
        data = self._upload(Op.PUT, reserve_request(call, deadline), call.plan, call.keys, sources, blocks, deadline)
        outcomes = parsed(pb.PutReply(), data[0]).outcomes
        if len(outcomes) != blocks:
            raise ProtocolError(f"the node answered for {len(outcomes)} blocks, {blocks} were put")
        return outcomes

    def reserve(self, call: PutCall, deadline: float) -> Reservation:
        reply = parsed(pb.ReserveReply(), self.call(Op.RESERVE, reserve_request(call, deadline), deadline))
        return _Upload(self, call, reply)

    def _upload(
        self, op: Op, message: bytes, plan: Plan, keys: bytes, sources: Targets, blocks: int, deadline: float
    ) -> tuple[bytes, list[int]]:
        """Sends a request with the pieces of ``blocks`` blocks; the reply's message, and the checksums sent."""
        wire = self.pool.take(deadline)
        try:
            length = blocks * plan.sent_bytes
            wire.start(op, message, deadline, length)
            sums = _send(wire, op, plan, keys, sources, deadline)
            header, data = wire.reply(op, deadline)
            if header.payload_len:
                wire.broken = True
                raise ProtocolError(f"the reply to {op.name} has a payload, none was expected")
            return data, sums
        except SessionLost:
            self.retire()
            raise
        finally:
            self.give(wire)


def _receive(wire: Wire, call: GetCall, here: list[Entry], sums: list[int], into: Targets, deadline: float) -> int:
    """Receives the payload into the buffers. How many leading entries passed their check."""
    plan, keys, done = call.plan, call.keys, len(here)
    for item, entry in enumerate(here):
        key, piece = (call.first + entry.block) * KEY_BYTES, plan.pieces[entry.at]
        seed = part_seed(keys[key : key + KEY_BYTES], piece.part)
        if not _receive_piece(wire, memoryview(into[entry.nth]), piece, seed, sums, entry.sums, deadline):
            done = min(done, item)
    return done


def _receive_piece(
    wire: Wire, view: memoryview, piece: Piece, seed: int, sums: list[int], at: int, deadline: float
) -> bool:
    good = True
    for start, end, chunks in piece.steps:
        wire.read_payload(view[start:end], deadline)
        for first, last, index in chunks:
            good = good and xxh3(view[first:last], (seed + index) & MASK) == sums[at]
            at += 1
    return good


def _send(wire: Wire, op: Op, plan: Plan, keys: bytes, sources: Targets, deadline: float) -> list[int]:
    """Sends the pieces and the checksum tail, hashing a little ahead of what is sent. The checksums."""
    sums: list[int] = []
    waiting: list[Buffer] = []
    size = 0
    pieces = plan.pieces
    for nth, source in enumerate(sources):
        block, at = divmod(nth, len(pieces))
        seed, view = part_seed(keys[block * KEY_BYTES : (block + 1) * KEY_BYTES], pieces[at].part), memoryview(source)
        for start, end, chunks in pieces[at].steps:
            for first, last, index in chunks:
                sums.append(xxh3(view[first:last], (seed + index) & MASK))
            waiting.append(view[start:end])
            size += end - start
            if size >= SEND_BYTES or len(waiting) == IOV_MAX:
                wire.send(op, waiting, deadline)
                waiting, size = [], 0
    wire.send(op, [*waiting, np.array(sums, dtype="<u8").tobytes()], deadline)
    return sums


class _Upload(Reservation):
    """A reservation on the node that WRITE requests fill."""

    def __init__(self, transport: TcpTransport, call: PutCall, reply: pb.ReserveReply) -> None:
        self.outcomes = reply.outcomes
        self._transport = transport
        self._call = call
        self._id = reply.reservation
        self._stored = [nth for nth, outcome in enumerate(reply.outcomes) if outcome == STORED]
        if len(reply.outcomes) * KEY_BYTES != len(call.keys):
            raise ProtocolError(f"the node answered for {len(reply.outcomes)} of {len(call.keys) // KEY_BYTES} blocks")
        keys = call.keys
        self._keys = b"".join(keys[nth * KEY_BYTES : (nth + 1) * KEY_BYTES] for nth in self._stored)
        self._sums: list[int] = [-1] * (len(self._stored) * call.plan.block_chunks)

    def write(self, plan: Plan, sources: Targets, deadline: float) -> None:
        if not self._stored:
            return
        pieces = len(plan.pieces)
        chosen = [sources[nth * pieces + at] for nth in self._stored for at in range(pieces)]
        request = pb.WriteRequest(
            reservation=self._id, range_offset=plan.range_offset, range_length=plan.range_length
        ).SerializeToString()
        _, sums = self._transport._upload(Op.WRITE, request, plan, self._keys, chosen, len(self._stored), deadline)
        self._note(plan, sums)

    def _note(self, plan: Plan, sums: list[int]) -> None:
        sent = iter(sums)
        for entry in entries(self._call.plan, len(self._stored)):
            for _, _, index in plan.pieces[entry.at].chunks:
                self._sums[entry.sums + index] = next(sent)

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
