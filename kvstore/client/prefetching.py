"""Blocks that are brought to a faster tier ahead of their use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvstore.client.results import PrefetchResult
from kvstore.core.errors import InvalidArgument
from kvstore.core.keys import Keys
from kvstore.transport.base import Transport
from kvstore.v1 import types_pb2

if TYPE_CHECKING:
    from kvstore.client.namespace import AnyKeys, Namespace, Parts

_TIERS = {"dram": types_pb2.TIER_KIND_DRAM, "hbm": types_pb2.TIER_KIND_HBM}


def prefetch(
    namespace: Namespace, keys: AnyKeys, tier: str, deadline: float | None, parts: Parts, timeout: float | None
) -> PrefetchResult:
    """As Namespace.prefetch."""
    chain, plan, until = Keys.of(keys), namespace.plan(parts, None), namespace.client.deadline(timeout)
    if tier not in _TIERS:
        raise InvalidArgument(f"tier must be one of {', '.join(_TIERS)}, not {tier!r}", field="tier")
    if deadline is not None and not deadline > 0:
        raise InvalidArgument(f"deadline must be a positive number of seconds, not {deadline}", field="deadline")
    start_by = None if deadline is None else time.monotonic() + deadline
    if not len(chain):
        return PrefetchResult()

    def action(transport: Transport, handle: int) -> PrefetchResult:
        reply = transport.prefetch(handle, chain.raw, _TIERS[tier], plan.parts, start_by, until)
        return PrefetchResult(reply.started, reply.present, reply.absent)

    found = namespace.served(until, action)
    return PrefetchResult(absent=len(chain)) if isinstance(found, str) else found
