"""Reads and writes of network sessions: bytes go over the socket, straight from and into the memory file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from kvstore.core.errors import ChecksumMismatch, FrameTooLarge, InvalidArgument, KVStoreError, Unsupported
from kvstore.core.keys import KeyArray
from kvstore.node.acks import Acks, sliced
from kvstore.node.cell import CellReads
from kvstore.node.checks import checked_before, checked_importance, checked_slice, deadline_of
from kvstore.node.fabric import Fabrics
from kvstore.node.lane import Lane, Reply
from kvstore.node.layout import Layout, Layouts
from kvstore.node.metrics import source_of
from kvstore.node.network_put import PendingPut, Sums, check_complete, check_payload, receive
from kvstore.node.outcomes import CHECKSUM, STORED, merge
from kvstore.node.routing import Router
from kvstore.node.sessions import NodeSession
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import Acquired, ChainSlice, MissReason, Reserved
from kvstore.transport.batch import Generation
from kvstore.transport.frame import Limits
from kvstore.v1 import data_pb2 as pb

Reads = Callable[[int, KeyArray, int, int], None]  # namespace, chain, blocks from and to
_NONE = np.empty(0, np.uint64)
NOTHING = Acquired(0, 0, 0, _NONE, np.empty(0, np.uint32), _NONE, MissReason.ABSENT)


class NetworkOps:
    """GET, PUT, WRITE, COMMIT and ABORT of sessions that do not map the memory file."""

    def __init__(self, store: BlockStore, limits: Limits, layouts: Layouts, acks: Acks) -> None:
        self._store = store
        self._limits = limits
        self._layouts = layouts
        self._acks = acks
        self.cell: CellReads | None = None
        self.router: Router | None = None
        self.fabrics: Fabrics | None = None
        self.reads: Reads | None = None  # is told of what is sent

    # --- GET ------------------------------------------------------------------------------------------------

    def get(self, session: NodeSession, request: pb.GetRequest, keys: KeyArray, layout: Layout) -> Reply:
        """Leases blocks for as long as sending takes."""
        room = self._limits.max_frame_bytes // layout.block_bytes
        if not room:
            raise FrameTooLarge(
                f"one block in this range takes {layout.block_bytes} bytes, a frame at most "
                f"{self._limits.max_frame_bytes}; get smaller ranges, or raise max_frame_bytes",
                got=layout.block_bytes,
                want=self._limits.max_frame_bytes,
            )
        deadline = deadline_of(request.deadline_ms)
        ask = (
            session.stored,
            request.namespace,
            keys,
            request.first_block,
            layout.parts,
            request.request_id,
            min(room, request.max_blocks or room),
            request.range_offset,
            request.range_length,
            deadline,
            request.whole,
        )
        generation = self._generation(request.namespace)  # before the look: what is found is of this one, or later
        found = self._store.acquire(*ask)
        if not session.peer and self.cell is not None and not request.here:
            found = self.cell.further(session, request, keys, layout, deadline, found, ask)
        found = self.of_generation(session, request, found)
        try:
            reply = self._get_reply(found, generation)
            if request.here and self.router is not None:
                reply.nodes.extend(self.router.beyond(request.namespace, keys, layout, found.prefix_blocks))
            message, payload = reply.SerializeToString(), self._views(found, layout)
        except BaseException:
            self._release(session, found)
            raise
        if self.reads is not None and found.lease:
            self.reads(request.namespace, keys, request.first_block, found.blocks)
        return Reply(message, payload, sent=lambda: self._release(session, found), tier=source_of(found))

    def of_generation(self, session: NodeSession, request: pb.GetRequest, found: Acquired) -> Acquired:
        """Nothing, when the reader wants blocks of another generation: looked at after they were acquired, so that a
        rotation in between is seen. Raises Unsupported for another node that cannot say which."""
        asks = request.HasField("generation")
        if not asks and not session.peer:
            return found
        now = self._generation(request.namespace)
        if asks and (request.generation, request.rotation) == now:
            return found
        if asks or now != (0, 0):
            self._release(session, found)
            if not asks:
                raise Unsupported("the namespace was rotated on this node, and the other one does not know of that")
            return NOTHING
        return found

    def _generation(self, handle: int) -> Generation:
        view = self._store.namespace_at(self._store.spec(handle).root)
        return view.generation, view.rotation

    @staticmethod
    def _get_reply(found: Acquired, generation: Generation) -> pb.GetReply:
        reply = pb.GetReply(blocks=found.blocks, checksums=found.checksums.tobytes(), prefix_blocks=found.prefix_blocks)
        reply.miss = found.miss  # type: ignore[assignment]
        reply.generation, reply.rotation = generation
        return reply

    def _views(self, found: Acquired, layout: Layout) -> list[memoryview]:
        """The bytes to send; none for a window or state part that is not here, whose checksums are zero."""
        readable = self._store.dram.readable
        bounds = [layout.bounds(position) for position in range(len(layout.parts))]
        spans = bounds * (len(found.offsets) // len(bounds))
        return [
            readable(offset + start, end - start)
            for offset, (start, end) in zip(found.offsets.tolist(), spans, strict=True)
            if offset
        ]

    def _release(self, session: NodeSession, found: Acquired) -> None:
        if found.lease:
            self._store.release(session.stored, [found.lease])

    # --- PUT ------------------------------------------------------------------------------------------------

    def put(self, lane: Lane, session: NodeSession, request: pb.PutRequest) -> Reply:
        """Reserves, receives into the slots, and commits; whatever goes wrong on the way leaves nothing behind."""
        ack, deadline = self._acks.check(request.ack), deadline_of(request.deadline_ms)
        layout = self._layouts.get(request.namespace, request.parts)
        chain = checked_slice(request.chain, self._limits.max_keys)
        importance = checked_importance(request.importance, len(chain.keys))
        check_payload(lane.payload_left, len(chain.keys), layout, "PUT")
        self.bring(session, request, chain)
        reserved = self._store.reserve(
            session.stored,
            request.namespace,
            chain,
            layout.parts,
            request.request_id,
            importance,
            request.appended_tokens,
            ack,
            deadline,
        )
        self.took(reserved.outcomes, layout)
        try:
            outcomes = self._fill(lane, session, chain, layout, reserved, ack, deadline)
        except BaseException:
            if reserved.id:
                with contextlib.suppress(KVStoreError):  # it may be gone already
                    self._store.abort(session.stored, reserved.id)
            raise
        with lane.working():
            blocks = sliced(request.namespace, chain)
            outcomes = self._acks.stored(blocks, outcomes, request.ack, deadline, session.living)
        reply = pb.PutReply(stored=outcomes.count(STORED), outcomes=outcomes)
        return Reply(reply.SerializeToString(), damaged=outcomes.count(CHECKSUM))

    def _fill(
        self,
        lane: Lane,
        session: NodeSession,
        chain: ChainSlice,
        layout: Layout,
        reserved: Reserved,
        ack: int,
        deadline: float | None,
    ) -> bytes:
        taken = [outcome == STORED for outcome in reserved.outcomes]
        keys = chain.keys[np.array(taken, dtype=np.bool_)].tobytes()
        sums, equal = receive(lane, self._store.dram.writable, layout, keys, reserved.offsets.tolist(), taken)
        if not reserved.id:
            return reserved.outcomes
        if not equal.all():
            self._store.abort(session.stored, reserved.id)
            return merge(reserved.outcomes, bytes([CHECKSUM]) * len(sums))
        committed = self._store.commit(session.stored, reserved.id, sums.ravel(), ack, deadline)
        return merge(reserved.outcomes, committed)

    def bring(self, session: NodeSession, request: pb.PutRequest | pb.ReserveRequest, chain: ChainSlice) -> None:
        """Fetches the blocks before those of a put, as far as they are named and not here: a chain is whole on each
        node that has a part of it."""
        if self.cell is None or not request.before:
            return
        before = checked_before(request.before, chain, self._limits.max_keys)
        layout = self._layouts.get(request.namespace, ())
        self.cell.bring(session, request.namespace, before, layout, deadline_of(request.deadline_ms))

    def took(self, outcomes: bytes, layout: Layout) -> None:
        """Notes that new blocks are put here."""
        if self.router is not None and (stored := outcomes.count(STORED)):
            self.router.routes.took(stored * layout.block_bytes)

    # --- RESERVE, WRITE, COMMIT, ABORT ------------------------------------------------------------------------

    def opened(self, session: NodeSession, reserved: Reserved, chain: ChainSlice, layout: Layout) -> None:
        """Remembers a reservation that WRITE fills."""
        if reserved.id:
            taken = np.frombuffer(reserved.outcomes, np.uint8) == STORED
            put = PendingPut(chain.keys[taken].tobytes(), layout, reserved.offsets.tolist())
            with session.lock:
                session.pending[reserved.id] = put

    def write(self, lane: Lane, session: NodeSession, request: pb.WriteRequest) -> Reply:
        """Receives a range of all parts of a reservation."""
        put = self._pending(session, request.reservation)
        with put.lock:
            self._pending(session, request.reservation)  # still there: nobody committed it meanwhile
            if self.fabrics is not None and session.transport == "nixl":
                return Reply(taken=self.fabrics.write(lane, session, put, request))
            ranged = put.layout.ranged(request.range_offset, request.range_length)
            count = len(put.sums)
            check_payload(lane.payload_left, count, ranged, "WRITE")
            columns = put.columns(ranged)
            put.written[:, columns] = False
            sums, equal = receive(lane, self._store.dram.writable, ranged, put.keys, put.offsets, [True] * count)
            put.sums[:, columns] = sums
            put.written[:, columns] = equal
            if not equal.all():
                raise ChecksumMismatch(
                    f"{int((~equal).sum())} chunks did not arrive as they were sent; write this range again"
                )
        return Reply()

    def commit(
        self, session: NodeSession, reservation: int, sums: Sums, ack: int = 0, deadline: float | None = None
    ) -> bytes:
        """Makes a filled reservation visible. The sender's checksums must be those of the bytes that arrived."""
        put = self._pending(session, reservation)
        with put.lock:
            self._pending(session, reservation)
            if len(sums) != put.sums.size:
                raise InvalidArgument(
                    f"the reservation has {put.sums.size} chunks, the request {len(sums)} checksums",
                    field="checksums",
                    got=len(sums),
                    want=put.sums.size,
                )
            check_complete(put)
            self._forget(session, reservation)
            if not np.array_equal(put.sums.ravel(), sums):
                self._store.abort(session.stored, reservation)
                return bytes([CHECKSUM]) * len(put.sums)
            return self._store.commit(session.stored, reservation, sums, ack, deadline)

    def abort(self, session: NodeSession, reservation: int) -> None:
        """Gives a reservation back."""
        put = self._pending(session, reservation)
        with put.lock:
            self._pending(session, reservation)
            self._forget(session, reservation)
            self._store.abort(session.stored, reservation)

    @staticmethod
    def _pending(session: NodeSession, reservation: int) -> PendingPut:
        with session.lock:
            put = session.pending.get(reservation)
        if put is None:
            raise InvalidArgument(
                f"this session has no reservation {reservation}: it was committed or given up",
                field="reservation",
                got=reservation,
            )
        return put

    @staticmethod
    def _forget(session: NodeSession, reservation: int) -> None:
        with session.lock:
            session.pending.pop(reservation, None)
