"""What a reply means: prefix, reason of a miss, outcomes of a put."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.core.errors import ProtocolError
from kvstore.transport.batch import CHECKSUM, DEADLINE, Elsewhere, GetCall, GetResult
from kvstore.transport.plan import Entry
from kvstore.v1 import data_pb2 as pb
from kvstore.v1 import types_pb2

STORED = types_pb2.PUT_OUTCOME_STORED
PRESENT = types_pb2.PUT_OUTCOME_PRESENT
PENDING = types_pb2.PUT_OUTCOME_PENDING
PARENT_MISSING = types_pb2.PUT_OUTCOME_PARENT_MISSING
NOT_DURABLE = types_pb2.PUT_OUTCOME_NOT_DURABLE
NOT_REPLICATED = types_pb2.PUT_OUTCOME_NOT_REPLICATED


def outcome_name(outcome: int) -> str:
    """``no_space`` for PUT_OUTCOME_NO_SPACE."""
    return _name(types_pb2.PutOutcome, outcome, "PUT_OUTCOME_")


def miss_name(reason: int) -> str:
    """``absent`` for MISS_REASON_ABSENT; empty for none."""
    return "" if not reason else _name(types_pb2.MissReason, reason, "MISS_REASON_")


def _name(kind, value: int, prefix: str) -> str:  # type: ignore[no-untyped-def]
    try:
        return str(kind.Name(value)).removeprefix(prefix).lower()
    except ValueError:
        return f"code_{value}"  # a newer node


def get_result(
    call: GetCall, reply: pb.GetReply, here: Sequence[Entry], done: int, late: bool, holes: tuple[tuple[int, int], ...]
) -> GetResult:
    """``done``: how many leading entries arrived and passed their check; ``late``: time was up before the others."""
    if done < len(here):
        reached = call.first + here[done].block
        kept = tuple(hole for hole in holes if hole[0] < reached)
        return GetResult(reached, False, DEADLINE if late else CHECKSUM, -1 if late else reached, holes=kept)
    more = call.first < reply.blocks < reply.prefix_blocks
    nodes = tuple(Elsewhere(one.node_id, one.data_address, one.blocks) for one in reply.nodes)
    return GetResult(
        reply.blocks,
        more,
        miss_name(reply.miss),
        holes=holes,
        found=reply.prefix_blocks,
        nodes=nodes,
        generation=(reply.generation, reply.rotation),
    )


def merged(outcomes: bytes, reserved: Sequence[int], committed: bytes) -> bytes:
    """Outcomes of a whole put, from those of its reservation and of its commit. Raises ProtocolError."""
    if len(committed) != len(reserved):
        raise ProtocolError(f"the node committed {len(committed)} blocks, {len(reserved)} were reserved")
    result = bytearray(outcomes)
    for index, outcome in zip(reserved, committed, strict=True):
        result[index] = outcome
    return bytes(result)
