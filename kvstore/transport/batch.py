"""Batches: what calls ask for, what they give, and the messages they travel in."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from kvstore.core.errors import ProtocolError
from kvstore.core.keys import KEY_BYTES
from kvstore.transport.mapping import Bytes
from kvstore.transport.plan import Entry, Plan
from kvstore.v1 import data_pb2 as pb
from kvstore.v1.types_pb2 import ChainSlice

M = TypeVar("M", bound=Message)
Targets: TypeAlias = "Sequence[Bytes]"  # one a piece, block-major
CHECKSUM = "checksum"
DEADLINE = "deadline"
Generation: TypeAlias = "tuple[int, int]"  # of a namespace: how often it was rotated, and by which rotation
_KEPT = 4096  # entries that a plan keeps
_NODE_SHARE = 0.9  # of the time left, that a node may wait for slower tiers


@dataclass(frozen=True, slots=True)
class GetCall:
    """Blocks ``first`` to the end of a chain. ``keys``: the whole chain from block 0, concatenated. ``here``: what
    other nodes have is told, not fetched. ``generation``: blocks of any other are a miss."""

    handle: int
    keys: bytes
    first: int
    plan: Plan
    request_id: int = 0
    release: int = 0  # a lease given back with this call
    here: bool = False
    generation: Generation | None = None


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another node that has the first ``blocks`` of a chain, as the node asked sees it."""

    node_id: bytes
    address: str
    blocks: int


@dataclass(frozen=True, slots=True)
class GetResult:
    """``blocks``: length of the prefix that was served and checked, from block 0. ``more``: it was cut by a bound of
    one request, the next goes on. ``miss``: why the prefix ends. ``bad``: index of a block that failed its check.
    ``lease``: still held, goes back with the next request. ``holes``: (block, position of the part) of window and state
    parts that are not here; their buffers were left alone, their views are empty. ``found``: length of the prefix that
    the node has, or can have; ``nodes``: others that have more; ``generation``: that the node had before it looked."""

    blocks: int
    more: bool
    miss: str
    bad: int = -1
    lease: int = 0
    holes: tuple[tuple[int, int], ...] = ()
    found: int = 0
    nodes: tuple[Elsewhere, ...] = ()
    generation: Generation | None = None


@dataclass(frozen=True, slots=True)
class PutCall:
    """Consecutive blocks of a chain. ``keys``: of these blocks only; ``parent``: of the block before (or empty).
    ``before``: keys of all blocks before, for a node to fetch those that it lacks; empty: it is known to have them."""

    handle: int
    keys: bytes
    parent: bytes
    first: int
    plan: Plan
    request_id: int = 0
    importance: bytes = b""
    ack: int = 0
    appended_tokens: int = 0
    before: bytes = b""

    def chain(self) -> ChainSlice:
        return ChainSlice(keys=self.keys, parent=self.parent, first_block=self.first)

    def cut(self, start: int, end: int) -> PutCall:
        """Blocks ``start`` to ``end`` of this put (counted from its own first)."""
        low, high = start * KEY_BYTES, end * KEY_BYTES
        return replace(
            self,
            keys=self.keys[low:high],
            parent=self.keys[low - KEY_BYTES : low] if start else self.parent,
            first=self.first + start,
            importance=self.importance[2 * start : 2 * end],
            before=b"" if start else self.before,
        )


def parsed(message: M, data: bytes) -> M:
    """Parses a reply's message in place and returns it. Raises ProtocolError."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ProtocolError(f"the node sent a {type(message).__name__} that cannot be decoded: {error}") from None
    return message


def milliseconds(deadline: float) -> int:
    """What a node may take of the time that is left until a deadline (time.monotonic), so that its answer is in time;
    0: no deadline."""
    return max(1, int((deadline - time.monotonic()) * _NODE_SHARE * 1000)) if deadline else 0


def get_request(
    call: GetCall, max_blocks: int = 0, release: Sequence[int] = (), deadline: float = 0.0, whole: bool = False
) -> bytes:
    """The message of op GET. ``release``: leases given back before anything else, beside that of the call. Without a
    ``deadline`` the node does not wait for slower tiers; ``whole``: it answers once with all that comes in time."""
    plan = call.plan
    request = pb.GetRequest(
        namespace=call.handle,
        keys=call.keys,
        first_block=call.first,
        parts=plan.parts,
        request_id=call.request_id,
        range_offset=plan.range_offset,
        range_length=plan.range_length,
        max_blocks=max_blocks,
        release=(call.release, *release) if call.release else release,
        deadline_ms=milliseconds(deadline),
        whole=whole,
        here=call.here,
    )
    if call.generation is not None:
        request.generation, request.rotation = call.generation
    return request.SerializeToString()


def reserve_request(call: PutCall, deadline: float = 0.0) -> bytes:
    """The message of op RESERVE; that of PUT has the same fields under the same numbers."""
    request = pb.ReserveRequest(
        namespace=call.handle,
        chain=call.chain(),
        parts=call.plan.parts,
        request_id=call.request_id,
        importance=call.importance,
        appended_tokens=call.appended_tokens,
        deadline_ms=milliseconds(deadline) if call.ack or call.before else 0,
        before=call.before,
    )
    request.ack = call.ack  # type: ignore[assignment]
    return request.SerializeToString()


def commit_request(reservation: int, sums: Sequence[int], ack: int, deadline: float = 0.0) -> bytes:
    """The message of op COMMIT."""
    request = pb.CommitRequest(reservation=reservation, checksums=np.array(sums, dtype="<u8").tobytes())
    request.ack = ack  # type: ignore[assignment]
    request.deadline_ms = milliseconds(deadline) if ack else 0
    return request.SerializeToString()


def entries(plan: Plan, blocks: int) -> list[Entry]:
    """The pieces of ``blocks`` blocks, block-major."""
    count, found = blocks * len(plan.pieces), plan.kept[0]
    if len(found) < count:
        found = _entries(plan, blocks)
        if count <= _KEPT:
            plan.kept[0] = found
    return found[:count]


def _entries(plan: Plan, blocks: int) -> list[Entry]:
    starts = [0, *itertools.accumulate(len(piece.chunks) for piece in plan.pieces)][:-1]
    width = len(starts)
    return [
        Entry(block * width + at, block, at, block * plan.block_chunks + start)
        for block in range(blocks)
        for at, start in enumerate(starts)
    ]


def present(call: GetCall, found: list[Entry], sums: Sequence[int]) -> tuple[list[Entry], tuple[tuple[int, int], ...]]:
    """The entries that carry bytes, and the (block, position) of those that are not here: their checksums are zero."""
    pieces = call.plan.pieces
    if not call.plan.sparse:
        return found, ()
    here = [
        entry
        for entry in found
        if not pieces[entry.at].sparse or any(sums[entry.sums : entry.sums + len(pieces[entry.at].chunks)])
    ]
    places = {entry.nth for entry in here}
    return here, tuple((call.first + entry.block, entry.at) for entry in found if entry.nth not in places)
