"""What nodes before this one have left in the memory directory, in a line of bounded length."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.node.units import show_size
from kvstore.tiers.memopen import Orphan

_NAMED = 10


def listed(former: Sequence[Orphan]) -> str:
    """How many memory files there are, what they take together, and the first ones by name."""
    named = ", ".join(f"{one.path} ({show_size(one.bytes)})" for one in former[:_NAMED])
    more = f" and {len(former) - _NAMED} more" if len(former) > _NAMED else ""
    total = show_size(sum(one.bytes for one in former))
    return f"{len(former)} file{'s' if len(former) > 1 else ''}, {total} together: {named}{more}"
