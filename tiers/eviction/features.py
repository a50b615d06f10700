"""Facts that policies learn about blocks: turn, references, appended tokens; kept per request, so that the size of the
pieces in which a request puts its blocks changes nothing."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import IntArray, column
from kvstore.tiers.eviction.ghost import Ghost
from kvstore.tiers.index import BlockIndex

UNIT_TOKENS = 512  # the ghost keeps one entry for this many tokens of a chain; appended tokens count in this unit
GHOST_UNITS = 30_000  # the ghost remembers at least this many units ...
GHOST_FACTOR = 3  # ... and this many times the units that were resident at once
MAX_REQUESTS = 16_384  # requests remembered, the oldest is forgotten first
REPEAT_SECONDS = 60.0  # a request that asks for the same chain again so soon is repeating itself
MAX_TURN, MAX_REFERENCES = 255, 65535
MAX_TOKENS = 2**32 - 1
NEVER = -1.0

_SPREAD = 0xD1B54A32D192ED03
_MASK = 2**64 - 1


class _Request:
    """One request: how much of its chain was known when it came, and how long the chain is."""

    __slots__ = ("carry", "chain", "known", "open", "path", "seen", "since", "start", "turn")

    def __init__(self, chain: int, known: int, turn: int, since: float, start: int) -> None:
        self.chain = chain  # blocks asked for or put so far
        self.known = known  # blocks of it that were resident, or evicted lately
        self.turn = turn  # of its deepest known block, -1: nothing known
        self.open = True  # no new unit was put yet: what comes next may still turn out to be known
        self.carry = 0  # what the ghost knows of the unit being put, 0: nothing
        self.path = known  # blocks found resident when it asked last
        self.seen = NEVER  # when its deepest block that the ghost knew was last asked for
        self.since = since
        self.start = start  # row of block 0, to tell a reused request id


class Features:
    """Columns by row: ``turn`` u8 (how many requests deep the creator was on its path), ``references`` u16 (times asked
    for), ``appended`` u32 (tokens that the last request on it added after what was known). And the ghost."""

    def __init__(self, index: BlockIndex, block_tokens: Callable[[int], int]) -> None:
        self.index = index
        self.block_tokens = block_tokens
        self.turn: npt.NDArray[np.uint8] = column(index.max_blocks, np.uint8)
        self.references: npt.NDArray[np.uint16] = column(index.max_blocks, np.uint16)
        self.appended: npt.NDArray[np.uint32] = column(index.max_blocks, np.uint32)
        self._turn_at, self._references_at = memoryview(self.turn), memoryview(self.references)
        self._appended_at = memoryview(self.appended)
        self._requests: OrderedDict[int, _Request] = OrderedDict()
        self._ghost: Ghost | None = None
        self._units = self._peak = 0  # resident blocks that start a unit, now and at most

    @property
    def nbytes(self) -> int:
        """Bytes of memory behind the columns and the ghost."""
        return self.index.rows_used * 7 + (self._ghost.nbytes if self._ghost else 0)

    def score(self, row: int) -> float:
        """(1 + turn)^0.75 / sqrt(1 + appended units)."""
        return float((1 + self._turn_at[row]) ** 0.75 / math.sqrt(1 + self._appended_at[row] / UNIT_TOKENS))

    # --- learning -----------------------------------------------------------------------------------------

    def touched(self, path: IntArray, request: int, now: float, chain: int) -> bool:
        """Learns from a look-up. False if the request only repeats itself."""
        size = len(path)
        known = self._requests.get(request) if request else None
        start = int(path[0]) if size else -1
        if known is not None and self._repeats(known, start, chain, now):
            counted, known.path = known.path, max(known.path, size)
            known.known = max(known.known, size)
        else:
            counted = 0
            known = _Request(chain, size, int(self._turn_at[path[-1]]) if size else -1, now, start)
            self._remember(request, known)
        if size:
            asked = path[counted:]
            self.references[asked] = np.minimum(self.references[asked], MAX_REFERENCES - 1) + 1
            self.appended[path] = self._appended_tokens(known, start)
        return counted == 0

    def inserted(self, rows: IntArray, parent_row: int, request: int, appended_tokens: int, now: float) -> float:
        """Learns from one piece of a put. When it shows where a chain that had been evicted ends: the seconds from its
        last use to this request; else ``NEVER``."""
        first, size = self.index.block_at[rows[0]], len(rows)
        known = self._requests.get(request) if request else None
        if known is None:
            known = self._newcomer(parent_row, first, now)
            self._remember(request, known)
        if appended_tokens:
            tokens = self.block_tokens(self.index.namespace_at[rows[0]])
            known.chain = max(known.chain, known.known + -(-appended_tokens // tokens))
        known.chain = max(known.chain, first + size)
        was_open = known.open
        old = self._restore(known, rows, first)
        if old < size:
            self.turn[rows[old:]] = min(known.turn + 1, MAX_TURN)
            self.references[rows[old:]] = 1
        self.appended[rows] = self._appended_tokens(known, int(rows[0]))
        ended = was_open and not known.open and known.seen != NEVER
        return max(known.since - known.seen, 0.0) if ended else NEVER

    def restored(self, rows: IntArray) -> None:
        """Rows of which nothing is known but that they are here."""
        self.turn[rows], self.references[rows], self.appended[rows] = 0, 1, 0
        numbers = self.index.namespace[rows]
        for number in np.unique(numbers):
            mine = rows[numbers == number]
            self._units += int(np.count_nonzero(self.index.block[mine] % self._stride(int(mine[0])) == 0))
        self._peak = max(self._peak, self._units)

    def removed(self, row: int, last: float) -> None:
        """Keeps what is worth remembering of a row that goes and was asked for at ``last``."""
        index = self.index
        if index.block_at[row] % self._stride(row):
            return
        self._units -= 1
        if self._ghost is None or GHOST_FACTOR * self._peak > 2 * self._ghost.entries:
            self._ghost = Ghost(max(GHOST_UNITS, GHOST_FACTOR * self._peak))
        value = self._references_at[row] | self._turn_at[row] << 16
        self._ghost.put(index.key_low_at[row] ^ self._salt(row), value, last)

    # --- requests -----------------------------------------------------------------------------------------

    def _remember(self, request: int, known: _Request) -> None:
        if not request:
            return
        self._requests[request] = known
        self._requests.move_to_end(request)
        if len(self._requests) > MAX_REQUESTS:
            self._requests.popitem(last=False)

    @staticmethod
    def _repeats(known: _Request, start: int, chain: int, now: float) -> bool:
        same = known.start in (start, -1) or start < 0
        return same and known.chain >= chain and now - known.since < REPEAT_SECONDS

    def _newcomer(self, parent_row: int, first: int, now: float) -> _Request:
        """A request that puts without having asked. Blocks nobody asked for since they were put: it is going on."""
        if parent_row < 0:
            return _Request(0, first, -1, now, -1)
        turn = self._turn_at[parent_row]
        if self._references_at[parent_row] > 1:
            return _Request(first, first, turn, now, -1)
        before = self._appended_at[parent_row] // self.block_tokens(self.index.namespace_at[parent_row])
        return _Request(first, max(first - before, 0), turn - 1, now, -1)

    def _appended_tokens(self, known: _Request, row: int) -> int:
        tokens = self.block_tokens(self.index.namespace_at[row])
        return int(min(max(known.chain - known.known, 0) * tokens, MAX_TOKENS))

    # --- the ghost ----------------------------------------------------------------------------------------

    def _stride(self, row: int) -> int:
        """Blocks in a unit."""
        return max(UNIT_TOKENS // self.block_tokens(self.index.namespace_at[row]), 1)

    def _salt(self, row: int) -> int:
        """Keeps the tags of namespaces apart."""
        return self.index.namespace_at[row] * _SPREAD & _MASK

    def _restore(self, known: _Request, rows: IntArray, first: int) -> int:
        """Gives rows that the ghost knows their turn and references back. How many: the first ones of ``rows``."""
        stride = self._stride(int(rows[0]))
        offset = -first % stride
        starts = rows[offset::stride]
        self._units += len(starts)
        self._peak = max(self._peak, self._units)
        if self._ghost is None or not known.open:
            return 0
        values, times = self._ghost.take(self.index.key_low[starts] ^ np.uint64(self._salt(int(rows[0]))))
        run = _leading(values)
        known.open = run == len(values)
        if run:
            known.seen = float(times[run - 1])
        lead = known.carry or (int(values[0]) if run else 0)
        old = np.repeat(values[:run], stride)
        if lead:
            old = np.concatenate((np.full(min(offset, len(rows)), lead, np.uint32), old))
        elif offset:
            return 0
        if len(values):
            known.carry = int(values[-1])
        return self._recollect(known, rows, first, old[: len(rows)])

    def _recollect(self, known: _Request, rows: IntArray, first: int, values: npt.NDArray[np.uint32]) -> int:
        count = len(values)
        if count:
            self.references[rows[:count]] = np.minimum(values & 0xFFFF, MAX_REFERENCES - 1) + 1
            self.turn[rows[:count]] = values >> 16
            known.known = max(known.known, first + count)
            known.turn = int(values[-1]) >> 16
        return count


def _leading(values: npt.NDArray[np.uint32]) -> int:
    """How many values before the first 0."""
    absent = np.flatnonzero(values == 0)
    return int(absent[0]) if absent.size else len(values)
