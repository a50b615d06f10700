"""What to load and what to save: pure functions over plain values. No vLLM, no I/O, no clocks.

A *block* here is a block of the namespace: ``unit`` tokens, one key. A *page* is one vLLM block of one cache
group; a group has ``unit // page_tokens`` pages a block. Page id 0 is vLLM's null block: never loaded or saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Pages = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """One cache group. ``window``: tokens of a sliding window, None for attention over the whole prefix."""

    index: int
    page_tokens: int
    window: int | None = None

    def first_page(self, tokens: int) -> int:
        """First page that token number ``tokens`` and later ones still attend to."""
        return 0 if self.window is None else max(0, tokens - self.window + 1) // self.page_tokens


@dataclass(frozen=True, slots=True)
class Geometry:
    """How tokens, hashes, pages and blocks relate. ``eagle``: draft layers lag one token behind."""

    hash_tokens: int
    groups: tuple[Group, ...]
    eagle: bool = False

    @property
    def unit(self) -> int:
        """Tokens of a block: the least common multiple of all page sizes (and of the hash granularity)."""
        return math.lcm(self.hash_tokens, *(group.page_tokens for group in self.groups))

    def pages(self, group: Group) -> int:
        return self.unit // group.page_tokens

    @property
    def windowed(self) -> bool:
        return any(group.window is not None for group in self.groups)

    def block_hashes(self, hashes: Sequence[bytes], first: int, end: int) -> list[bytes]:
        """The hash that names each of the blocks ``first`` to ``end``: the one of its last hashed run."""
        step = self.unit // self.hash_tokens
        return [bytes(hashes[(block + 1) * step - 1]) for block in range(first, min(end, self.hashed(len(hashes))))]

    def hashed(self, hashes: int) -> int:
        """Full blocks covered by so many hashes."""
        return hashes * self.hash_tokens // self.unit


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Blocks ``first`` to ``first + count`` of one group. ``pages``: ids, block-major; 0: not wanted."""

    group: int
    first: int
    count: int
    pages: Pages


@dataclass(frozen=True, slots=True)
class SaveRun:
    """Blocks ``first`` to ``first + count`` of these groups; ``pages[i]`` are those of ``groups[i]``, block-major."""

    first: int
    count: int
    groups: tuple[int, ...]
    pages: tuple[Pages, ...]


def hit_limit(geometry: Geometry, num_tokens: int) -> int:
    """Most blocks that may be served of a request of ``num_tokens``: at least one token is left to compute, as with
    vLLM's own prefix cache, so that what is computed behind a hit has the same shape and gives the same bits."""
    return max(0, (num_tokens - 1) // geometry.unit)


def needed_from(geometry: Geometry, group: Group, blocks: int) -> int:
    """First block of ``group`` that a hit of ``blocks`` blocks needs."""
    return group.first_page(blocks * geometry.unit) // geometry.pages(group)


def usable_hit(geometry: Geometry, matched: int, present: Mapping[int, Sequence[bool]] | None, limit: int) -> int:
    """Longest usable hit in blocks.

    ``matched``: prefix held by all groups of kind prefix. ``present``: for each window group, which blocks are
    held; None when the store said nothing about them (every one is then taken to be there, the load will tell).
    """
    blocks = min(matched, limit)
    if geometry.eagle and blocks:
        blocks = min(limit, matched - 1)
    if present is None:
        return max(0, blocks)
    windows = [group for group in geometry.groups if group.window is not None and group.index in present]
    while blocks > 0 and not all(_tail_held(geometry, group, present[group.index], blocks) for group in windows):
        blocks -= 1
    return max(0, blocks)


def _tail_held(geometry: Geometry, group: Group, held: Sequence[bool], blocks: int) -> bool:
    return len(held) >= blocks and all(held[needed_from(geometry, group, blocks) : blocks])


def plan_load(
    geometry: Geometry,
    computed: int,
    external: int,
    tables: Sequence[Sequence[int]],
) -> tuple[LoadRun, ...]:
    """Which pages to fill, after vLLM has allocated them.

    ``computed``: tokens already there; ``external``: tokens promised beyond them. ``tables[group]``: block table.
    Every page of the promised range that is not null is in the plan, because vLLM takes it for valid; that a page
    has a hash already says nothing (for synchronous loads vLLM hashes before the bytes are there).
    """
    runs = []
    for group in geometry.groups:
        first, end = computed // group.page_tokens, -(-(computed + external) // group.page_tokens)
        run = _load_run(geometry, group, first, end, tables[group.index])
        if run is not None:
            runs.append(run)
    return tuple(runs)


def _load_run(geometry: Geometry, group: Group, first: int, end: int, table: Sequence[int]) -> LoadRun | None:
    wanted = {i: table[i] for i in range(first, min(end, len(table))) if table[i]}
    if not wanted:
        return None
    per = geometry.pages(group)
    start, stop = min(wanted) // per, max(wanted) // per + 1
    pages = tuple(wanted.get(i, 0) for i in range(start * per, stop * per))
    return LoadRun(group.index, start, stop - start, pages)


def full_blocks(geometry: Geometry, computed: int, scheduled: int, known: int, hashes: int) -> int:
    """Blocks whose bytes are final after this step.

    ``computed + scheduled`` counts drafts that may be rejected, ``known`` (tokens really there) does not; a block
    without a hash cannot be named. Draft layers have their own last token only one step later.
    """
    tokens = min(computed + scheduled, known)
    if geometry.eagle:
        tokens -= 1
    return min(max(0, tokens) // geometry.unit, geometry.hashed(hashes))


def plan_saves(
    geometry: Geometry,
    first: int,
    end: int,
    tables: Sequence[Sequence[int]],
    skip: Callable[[int], bool] = lambda block: False,
    needed: Sequence[int] = (),
) -> tuple[tuple[SaveRun, ...], int]:
    """Runs of consecutive blocks with the same groups, and where the plan ends.

    ``needed``: groups without which a block is of no use (and those after it neither): the plan ends before a
    block that lacks a page of them. ``skip(block)``: the store has it already.
    """
    must = set(needed) or {g.index for g in geometry.groups if g.window is None} or {geometry.groups[0].index}
    runs: list[SaveRun] = []
    for block in range(first, end):
        have = {
            group.index: pages for group in geometry.groups if (pages := _block_pages(geometry, group, tables, block))
        }
        if not must <= have.keys():
            return tuple(runs), block
        if not skip(block):
            _append(runs, block, have)
    return tuple(runs), max(first, end)


def _block_pages(geometry: Geometry, group: Group, tables: Sequence[Sequence[int]], block: int) -> Pages:
    per = geometry.pages(group)
    pages = tuple(tables[group.index][block * per : (block + 1) * per])
    return pages if len(pages) == per and all(pages) else ()


def _append(runs: list[SaveRun], block: int, have: Mapping[int, Pages]) -> None:
    groups = tuple(have)
    last = runs[-1] if runs else None
    if last is not None and last.groups == groups and last.first + last.count == block:
        pages = tuple(old + have[group] for group, old in zip(groups, last.pages, strict=True))
        runs[-1] = SaveRun(last.first, last.count + 1, groups, pages)
    else:
        runs.append(SaveRun(block, 1, groups, tuple(have.values())))
