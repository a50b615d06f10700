"""Extra copies of what many read, and new copies of what was lost: decisions only, and the bandwidth for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kvstore.cluster.placement import primaries
from kvstore.cluster.room import Room
from kvstore.core.errors import InvalidArgument

HOT = 10.0  # reads a second and copy above which one more copy is made
COOL = 4.0  # ... and below which one is given up: under half of HOT, else one more copy would be one too many at once
MAX_EXTRA = 8


def extra_wanted(reads_per_second: float, owed: int, extra: int) -> int:
    """How many extra copies blocks should have that have ``owed`` primaries and ``extra`` others; one step at most."""
    each = reads_per_second / max(owed + extra, 1)
    if each > HOT and extra < MAX_EXTRA:
        return extra + 1
    if each < COOL and extra > 0:
        return extra - 1
    return extra


class Heat:
    """Reads a second of up to ``limit`` runs, by the key of the first block: forgets half in ``half_life`` seconds."""

    def __init__(self, limit: int = 4096, half_life: float = 30.0) -> None:
        self._limit, self._half_life = limit, half_life
        self._reads: dict[bytes, tuple[float, float]] = {}  # key: reads not forgotten yet, and when that was

    def __len__(self) -> int:
        return len(self._reads)

    def read(self, key: bytes, now: float, times: float = 1.0) -> None:
        """A run was read, so many times."""
        reads = self._left(key, now) + times
        self._reads.pop(key, None)
        if len(self._reads) >= self._limit:  # the one not read for the longest
            del self._reads[next(iter(self._reads))]
        self._reads[key] = (reads, now)

    def rate(self, key: bytes, now: float) -> float:
        """About how many reads a second there are."""
        return self._left(key, now) * 0.6931471805599453 / self._half_life

    def above(self, rate: float, now: float) -> list[tuple[bytes, float]]:
        """Runs of which there are more reads a second, and how many."""
        rates = [(key, self.rate(key, now)) for key in self._reads]
        return [one for one in rates if one[1] > rate]

    def _left(self, key: bytes, now: float) -> float:
        reads, at = self._reads.get(key, (0.0, now))
        left: float = reads * 0.5 ** (max(now - at, 0.0) / self._half_life)
        return left


class Bandwidth:
    """``bytes_per_second`` in the long run, at most ``burst`` bytes at once."""

    def __init__(self, bytes_per_second: float, burst: int, now: float) -> None:
        if bytes_per_second <= 0 or burst <= 0:
            raise InvalidArgument(f"{bytes_per_second} bytes a second, {burst} at once: both must be above 0")
        self._rate, self._burst = bytes_per_second, burst
        self._left, self._at = float(burst), now

    def left(self, now: float) -> int:
        """Bytes that may be moved now."""
        self._left = min(self._burst, self._left + max(now - self._at, 0.0) * self._rate)
        self._at = max(now, self._at)
        return int(self._left)

    def take(self, size: int, now: float) -> bool:
        """Whether ``size`` bytes may be moved now. More than a burst goes when the whole burst is there, on credit."""
        if self.left(now) < min(size, self._burst):
            return False
        self._left -= size
        return True


def makes(own: Room, key: bytes, holders: Iterable[Room]) -> bool:
    """Whether ``own`` is the one of several holders that has a copy made, so that no other does the same. ``key``: of
    the chain's last block."""
    return primaries(key, [own, *holders], 1)[0] == own


def worth(size: int, idle: float, free: int, eviction_age: float) -> bool:
    """Whether a node is to take ``size`` bytes that were not used for ``idle`` seconds: it has room, or its next victim
    was not used for longer. ``eviction_age`` 0: nothing has to go there."""
    return size <= free if not eviction_age else idle < eviction_age


def surplus(key: bytes, holders: Collection[int], rooms: Mapping[int, Room], copies: int, extra: int) -> list[int]:
    """Holders whose copy may go, least wanted first, when only ``extra`` besides the ``copies`` owed are to stay."""
    order = [room.node for room in primaries(key, _known(holders, rooms), len(holders))]
    return order[copies + extra :][::-1]


def _known(nodes: Iterable[int], rooms: Mapping[int, Room]) -> list[Room]:
    return [rooms[node] for node in nodes if node in rooms]
