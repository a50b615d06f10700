"""What the two halves tell each other each step: plain values, pickled by vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field

from .descriptor import RankFacts
from .planner import LoadRun, SaveRun


@dataclass
class LoadOp:
    """Fill pages for a request that waits. Each rank reports its end exactly once, whatever happens."""

    request: str
    end: int  # blocks of the chain up to here are needed
    runs: tuple[LoadRun, ...]
    tag: int  # request id on the wire, for the store's eviction policy
    sync: bool = False
    refused: str = ""  # why it must be reported as failed without trying


@dataclass
class SaveOp:
    """Store blocks of a request, filled by this step."""

    request: str
    run: SaveRun
    tag: int
    appended_tokens: int = 0


@dataclass
class StepPlan:
    """Scheduler to workers. ``chains``: (request, first block, keys) that extend what the worker already has."""

    chains: list[tuple[str, int, bytes]] = field(default_factory=list)
    loads: list[LoadOp] = field(default_factory=list)
    saves: list[SaveOp] = field(default_factory=list)
    forget: list[str] = field(default_factory=list)  # requests that will not be named again
    namespace: bytes | None = None  # canonical form, when it changed; b"": caching is off from now on
    acknowledged: bool = False  # the scheduler knows the ranks: they need not describe themselves any more
    fence: bool = False  # pages of this step are still being copied out for an earlier save

    @property
    def empty(self) -> bool:
        return not (self.chains or self.loads or self.saves or self.forget) and self.namespace is None


@dataclass
class LoadEnd:
    """One rank's end of a load. ``good``: blocks of the chain, from 0, whose pages are all right."""

    request: str
    good: int
    reason: str  # "" when all arrived
    tokens: int
    transfer_s: float
    total_s: float


@dataclass
class WorkerReport:
    """Workers to scheduler, ranks joined by :meth:`join`."""

    ranks: dict[tuple[int, int], RankFacts] = field(default_factory=dict)
    loads: list[LoadEnd] = field(default_factory=list)
    dropped: list[bytes] = field(default_factory=list)  # keys that were not saved
    copied: list[int] = field(default_factory=list)  # pages no longer being copied out
    lost_namespace: bool = False  # the worker was given work for a namespace it does not know

    @property
    def empty(self) -> bool:
        return not (self.ranks or self.loads or self.dropped or self.copied or self.lost_namespace)

    def join(self, other: WorkerReport) -> WorkerReport:
        return WorkerReport(
            {**self.ranks, **other.ranks},
            self.loads + other.loads,
            self.dropped + other.dropped,
            self.copied + other.copied,
            self.lost_namespace or other.lost_namespace,
        )
