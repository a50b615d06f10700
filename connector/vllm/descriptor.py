"""The namespace of an engine: everything that must agree for two engines' KV pages to be interchangeable.

Each worker describes what it really runs (:class:`RankFacts`), the scheduler half compares the ranks and builds
one :class:`~kvstore.core.namespace.NamespaceSpec`. Pure: plain values in, a spec or a refusal out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvstore.core.errors import InvalidArgument
from kvstore.core.namespace import MAX_PARTS, NamespaceSpec, PartSpec

from .planner import Geometry, Group

PAYLOAD_FORMAT = "1"  # of the bytes of a part: pages of a block in order, layers of a page in group order
LAYOUTS = ("LBHNC", "LBNHC", "BLHNC", "BLNHC")  # those that keep a layer's page in one piece
KINDS = ("full", "mla", "window")
HASHES = ("sha256", "sha256_cbor")


class Refused(Exception):
    """This engine's blocks cannot be cached safely; the message says why and what to change."""


@dataclass(frozen=True)
class GroupFacts:
    """One cache group as a rank holds it. ``page_bytes``: all its layers of one page, without padding.

    ``heads``: KV heads (or head slots) of a page, when they are whole byte ranges of it; else 0.
    """

    index: int
    kind: str
    page_tokens: int
    window: int | None
    page_bytes: int
    heads: int
    eagle: bool
    detail: str  # spec class, head sizes, dtypes, layer names: digested, compared, never interpreted


@dataclass(frozen=True)
class RankFacts:
    """What one worker runs. ``shared`` must be equal on all ranks; ``refusals`` are reasons not to cache."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    replicas: int  # consecutive TP ranks that hold the same KV bytes
    hash_tokens: int
    shared: Mapping[str, str]
    groups: tuple[GroupFacts, ...]
    refusals: tuple[str, ...] = ()

    @property
    def shards(self) -> int:
        return self.tp_size // self.replicas

    @property
    def shard(self) -> int:
        return self.tp_rank // self.replicas

    @property
    def saves(self) -> bool:
        """Of ranks that hold the same bytes the first one stores them."""
        return self.tp_rank % self.replicas == 0


@dataclass(frozen=True)
class OwnPart:
    """A part of the namespace that a rank holds: bytes ``start`` to ``end`` of ``heads_of`` equal head ranges."""

    id: int  # position in the namespace's parts
    group: int
    slice: int  # which head range of the rank's page, of ``slices``
    slices: int


@dataclass(frozen=True)
class Fields:
    """What the scheduler half knows: hashing, options."""

    hash_algorithm: str
    hash_probe: str
    tenant: str = "default"
    weights_generation: str = ""
    head_parts: int = 0
    extra: Mapping[str, str] = field(default_factory=dict)


def geometry(rank: RankFacts) -> Geometry:
    groups = tuple(Group(g.index, g.page_tokens, g.window) for g in rank.groups)
    return Geometry(rank.hash_tokens, groups, any(g.eagle for g in rank.groups))


def digest(value: object) -> str:
    """Short digest of any JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def disagreements(ranks: Sequence[RankFacts]) -> list[str]:
    """Fields in which ranks differ that must be equal on all."""
    first, found = ranks[0], set()
    for rank in ranks[1:]:
        for name in {*first.shared, *rank.shared}:
            if first.shared.get(name) != rank.shared.get(name):
                found.add(name)
        for name in ("tp_size", "pp_size", "replicas", "hash_tokens"):
            if getattr(first, name) != getattr(rank, name):
                found.add(name)
        if _group_form(first) != _group_form(rank):
            found.add("groups")
    return sorted(found)


def _group_form(rank: RankFacts) -> list[tuple[object, ...]]:
    return [(g.index, g.kind, g.page_tokens, g.window, g.eagle) for g in rank.groups]


def build(ranks: Mapping[tuple[int, int], RankFacts], fields: Fields) -> NamespaceSpec:
    """The namespace of all ranks, keyed by (pp rank, tp rank). Raises Refused."""
    ordered = [ranks[key] for key in sorted(ranks)]
    _check(ordered, fields)
    first = ordered[0]
    extra = {
        **{name: value for name, value in first.shared.items() if name not in ("model", "kv_dtype", "layout")},
        **fields.extra,
        "tp_size": "any" if fields.head_parts else str(first.shards),
        "pp_size": str(first.pp_size),
        "groups": digest(_groups_identity(ordered, bool(fields.head_parts))),
        "hash_probe": fields.hash_probe,
        "format": PAYLOAD_FORMAT,
    }
    try:
        return NamespaceSpec(
            model=first.shared.get("model", "unknown"),
            block_tokens=geometry(first).unit,
            weights_generation=fields.weights_generation,
            kv_dtype=first.shared.get("kv_dtype", ""),
            layout=first.shared.get("layout", ""),
            tenant=fields.tenant,
            parts=tuple(_parts(ordered, fields.head_parts)),
            hash_scheme=f"vllm-{fields.hash_algorithm}",
            extra={name: str(value) for name, value in extra.items()},
        )
    except InvalidArgument as error:
        raise Refused(error.message) from None


def _check(ordered: list[RankFacts], fields: Fields) -> None:
    first = ordered[0]
    if len(ordered) != first.tp_size * first.pp_size:
        raise Refused(f"only {len(ordered)} of {first.tp_size * first.pp_size} ranks described themselves")
    reasons = sorted({reason for rank in ordered for reason in rank.refusals})
    if reasons:
        raise Refused("; ".join(reasons))
    differing = disagreements(ordered)
    if differing:
        raise Refused(f"ranks run different things: {', '.join(differing)} differ")
    if fields.hash_algorithm not in HASHES:
        raise Refused(
            f"block hashes by {fields.hash_algorithm} can collide; use --prefix-caching-hash-algo sha256_cbor"
        )
    if not first.groups:
        raise Refused("the model has no KV cache that could be stored")
    _check_parts(ordered, fields.head_parts)


def _check_parts(ordered: list[RankFacts], head_parts: int) -> None:
    first = ordered[0]
    for rank in ordered:
        for group in rank.groups:
            if group.kind not in KINDS:
                raise Refused(f"cache group {group.index} is of an unknown kind ({group.kind})")
    if head_parts:
        slices = head_parts // first.shards if head_parts % first.shards == 0 else 0
        fits = slices and all(g.heads and g.heads % slices == 0 for rank in ordered for g in rank.groups)
        if not fits:
            raise Refused(
                f"head_parts={head_parts} does not fit: it must be a multiple of the {first.shards} KV shards, divide "
                "the KV heads, and needs pages in which heads are whole byte ranges (layout LBHNC, no MLA)"
            )
    count = len(first.groups) * first.pp_size * (head_parts or first.shards)
    if count > MAX_PARTS:
        raise Refused(f"cache groups x PP stages x KV shards give {count} parts, a namespace has at most {MAX_PARTS}")


def _groups_identity(ordered: list[RankFacts], portable: bool) -> list[object]:
    """What the digest of the groups covers. With portable head parts nothing in it depends on the TP size."""
    return [
        [r.pp_rank, g.index, g.kind, g.page_tokens, g.window, g.eagle, g.detail, _size_identity(r, g, portable)]
        for r in ordered
        if not (portable and r.tp_rank)
        for g in r.groups
    ]


def _size_identity(rank: RankFacts, group: GroupFacts, portable: bool) -> list[int]:
    if portable:
        return [group.page_bytes * rank.shards, group.heads * rank.shards]
    return [rank.tp_rank, group.page_bytes, group.heads]


def part_name(group: int, pp_rank: int, shard: int) -> str:
    return f"g{group}.p{pp_rank}.s{shard}"


def _parts(ordered: list[RankFacts], head_parts: int) -> list[PartSpec]:
    """One part a group, PP stage and KV shard (or head range). A stage without layers of a group has none."""
    first = ordered[0]
    pages = geometry(first)
    any_full = any(g.window is None for g in first.groups)
    parts = []
    for rank in ordered:
        if not rank.saves:
            continue
        slices = head_parts // rank.shards if head_parts else 1
        for group, shape in zip(rank.groups, pages.groups, strict=True):
            size = group.page_bytes * pages.pages(shape) // slices
            prefix = group.window is None or (not any_full and group.index == first.groups[0].index)
            for index in range(slices if size else 0):
                name = part_name(group.index, rank.pp_rank, rank.shard * slices + index)
                kind = "prefix" if prefix else "window"
                parts.append(PartSpec(name, size, f"g{group.index}", kind))  # type: ignore[arg-type]
    return parts


def own_parts(spec: NamespaceSpec, rank: RankFacts, head_parts: int) -> tuple[OwnPart, ...]:
    """The parts of the namespace that this rank loads (and saves, when ``rank.saves``), in namespace order."""
    ids = {part.name: index for index, part in enumerate(spec.parts)}
    slices = head_parts // rank.shards if head_parts else 1
    own = []
    for group in rank.groups:
        for index in range(slices):
            found = ids.get(part_name(group.index, rank.pp_rank, rank.shard * slices + index))
            if found is not None:
                own.append(OwnPart(found, group.index, index, slices))
    return tuple(sorted(own, key=lambda part: part.id))


def needed_groups(spec: NamespaceSpec) -> tuple[int, ...]:
    """Groups of kind prefix."""
    return tuple(sorted({int(part.group[1:]) for part in spec.parts if part.kind == "prefix"}))


def window_parts(spec: NamespaceSpec) -> dict[int, list[int]]:
    """Window groups of a namespace and the positions of their parts."""
    found: dict[int, list[int]] = {}
    for index, part in enumerate(spec.parts):
        if part.kind == "window":
            found.setdefault(int(part.group[1:]), []).append(index)
    return found
