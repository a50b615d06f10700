"""Blocks that are kept from eviction, and namespaces that are voided."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvstore.core.errors import InvalidArgument, NoSpace
from kvstore.core.keys import Keys
from kvstore.transport.base import Transport

if TYPE_CHECKING:
    from kvstore.client.namespace import AnyKeys, Namespace


def pin(namespace: Namespace, keys: AnyKeys, hard: bool, ttl: float | None, timeout: float | None) -> int:
    """As Namespace.pin."""
    chain, deadline = Keys.of(keys), namespace.client.deadline(timeout)
    if ttl is not None and not 0 < ttl < math.inf:
        raise InvalidArgument(
            f"ttl must be a positive number of seconds, or None for a pin that does not end, not {ttl}", field="ttl"
        )
    if not len(chain):
        return 0

    def action(transport: Transport, handle: int) -> int | NoSpace:
        try:
            return transport.pin_keys(handle, chain.raw, hard, ttl or 0.0, deadline)
        except NoSpace as refused:  # no miss: the caller has to know
            return refused

    pinned = namespace.served(deadline, action)
    if isinstance(pinned, NoSpace):
        raise pinned
    return 0 if isinstance(pinned, str) else pinned


def unpin(namespace: Namespace, keys: AnyKeys, timeout: float | None) -> int:
    """As Namespace.unpin."""
    chain, deadline = Keys.of(keys), namespace.client.deadline(timeout)
    if not len(chain):
        return 0
    lifted = namespace.served(deadline, lambda transport, handle: transport.unpin_keys(handle, chain.raw, deadline))
    return 0 if isinstance(lifted, str) else lifted


def rotate(namespace: Namespace, timeout: float | None) -> int:
    """As Namespace.rotate."""
    deadline = namespace.client.deadline(timeout)

    def action(transport: Transport, handle: int) -> int:
        reply = transport.rotate(handle, deadline)
        if reply.unreached:
            namespace.client.link.reporter.warn(
                f"rotate {namespace.root.hex()}",
                f"the rotation did not reach {', '.join(reply.unreached)}: clients of these nodes may get what is void "
                "until they hear of it",
            )
        return reply.generation

    return namespace.client.link.run(deadline, lambda transport: namespace.with_handle(transport, deadline, action))
