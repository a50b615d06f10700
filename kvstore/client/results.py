"""Values that calls return."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvstore.transport.outcome import NOT_DURABLE, NOT_REPLICATED, PENDING, PRESENT, STORED, outcome_name

_HERE = (STORED, PRESENT, PENDING, NOT_DURABLE, NOT_REPLICATED)  # what follows these can be found


@dataclass(frozen=True, slots=True)
class PutResult:
    """What became of the blocks of a put.

    ``stored`` by this call, ``present`` before it, ``pending`` (another writer is at it), ``failed``; ``reasons``
    says for which reason how many failed. ``not_durable`` and ``not_replicated`` ones are stored and visible, but what
    ``ack`` asked for had not come true in time.
    """

    stored: int = 0
    present: int = 0
    pending: int = 0
    failed: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Every block is there now."""
        return not self.failed and not self.pending


@dataclass(frozen=True, slots=True)
class PrefetchResult:
    """What became of the blocks of a prefetch: ``started`` (or on their way before), ``present`` in the tier already,
    ``absent`` from the node, or refused because too many wait."""

    started: int = 0
    present: int = 0
    absent: int = 0


def tally(outcomes: bytes, missing: int = 0, reason: str = "") -> PutResult:
    """Counts outcomes; ``missing`` further blocks failed for ``reason``."""
    reasons: dict[str, int] = {reason: missing} if missing else {}
    for outcome in set(outcomes) - {STORED, PRESENT, PENDING}:
        name = outcome_name(outcome)
        reasons[name] = reasons.get(name, 0) + outcomes.count(outcome)
    return PutResult(
        outcomes.count(STORED), outcomes.count(PRESENT), outcomes.count(PENDING), sum(reasons.values()), reasons
    )


def failed_at(outcomes: bytes) -> int:
    """Index of the first block that nothing can follow, since it is not there; the length when there is none. One that
    is there without being kept as was asked is no such block."""
    return next((index for index, outcome in enumerate(outcomes) if outcome not in _HERE), len(outcomes))
