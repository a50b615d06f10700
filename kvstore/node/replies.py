"""Parts of requests and answers that need nothing of the node."""

from __future__ import annotations

import os
from typing import Any

from google.protobuf.message import DecodeError, Message

from kvstore.core.errors import InternalError, KVStoreError, ProtocolError, VersionMismatch
from kvstore.node.lane import Reply
from kvstore.tiers.values import MatchResult
from kvstore.transport.frame import MIN_VERSION, VERSION, Op
from kvstore.v1 import data_pb2 as pb
from kvstore.v1 import types_pb2 as types


def common_version(request: pb.HelloRequest) -> int:
    """The highest version that both sides speak. Raises VersionMismatch."""
    version = min(request.version, VERSION)
    if version < max(request.min_version, MIN_VERSION):
        raise VersionMismatch(
            f"the client speaks protocol versions {request.min_version} to {request.version}, this node "
            f"{MIN_VERSION} to {VERSION}; run versions of kvstore that are at most one protocol version apart",
            got=f"{request.min_version}..{request.version}",
            want=f"{MIN_VERSION}..{VERSION}",
        )
    return version


def match_reply(found: MatchResult) -> pb.MatchReply:
    """What a store found, on the wire."""
    reply = pb.MatchReply(blocks=found.blocks)
    reply.miss = found.miss  # type: ignore[assignment]
    for tier, blocks in found.tiers:
        reply.tiers.add(tier=tier + 1, blocks=blocks)
    for part in found.parts:
        reply.parts.add(part=part.part, blocks=part.blocks, present=part.present)
    return reply


def parsed(kind: type[Message], message: bytes, op: Op) -> Any:
    """The message of a frame. Raises ProtocolError."""
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise ProtocolError(f"the message of op {op.name} is no {kind.DESCRIPTOR.name}: {error}") from None


def descriptor_reply(name: str, descriptor: int) -> Reply:
    """Passes a descriptor on, which is closed then."""
    return Reply(
        pb.AttachReply(fds=[name]).SerializeToString(), descriptors=(descriptor,), sent=lambda: os.close(descriptor)
    )


def code_name(error: BaseException) -> str:
    """Label of an error in the metrics: "wrong_block_size"."""
    code = error.code if isinstance(error, KVStoreError) else InternalError.code
    return types.ErrorCode.Name(code).removeprefix("ERROR_CODE_").lower()
