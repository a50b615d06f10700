"""Parts of answers that need nothing of the node."""

from __future__ import annotations

from kvstore.core.errors import VersionMismatch
from kvstore.tiers.values import MatchResult
from kvstore.transport.frame import MIN_VERSION, VERSION
from kvstore.v1 import data_pb2 as pb


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
