"""What the scheduler half remembers between requests: failures, and saves on their way. Bounded, pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

FAILURE_S = 10.0  # a block that failed is not asked for again for so long; doubles each time
LONGEST_FAILURE_S = 600.0


class FailureMemory:
    """Keys of blocks that failed to load, so that a bad block is never tried in a loop."""

    def __init__(self, bound: int = 16_384) -> None:
        self._bound = bound
        self._until: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # key: (until, pause)

    def __len__(self) -> int:
        return len(self._until)

    def failed(self, keys: Iterable[bytes], now: float) -> None:
        for key in keys:
            pause = min(2 * self._until[key][1], LONGEST_FAILURE_S) if key in self._until else FAILURE_S
            self._until[key] = (now + pause, pause)
            self._until.move_to_end(key)
        while len(self._until) > self._bound:
            self._until.popitem(last=False)

    def cut(self, keys: Sequence[bytes], matched: int, now: float) -> int:
        """The hit ends before the first block that failed lately."""
        if self._until:
            for index in range(matched):
                entry = self._until.get(keys[index])
                if entry is not None and now < entry[0]:
                    return index
        return matched


class SaveMemory:
    """Keys handed to the savers lately, and keys that were dropped: chains with a gap are not continued."""

    def __init__(self, bound: int = 65_536) -> None:
        self._bound = bound
        self._sent: OrderedDict[bytes, None] = OrderedDict()
        self._gaps: OrderedDict[bytes, None] = OrderedDict()

    def sent(self, key: bytes) -> bool:
        return key in self._sent

    def gap(self, key: bytes) -> bool:
        return key in self._gaps

    def send(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._remember(self._sent, key)
            self._gaps.pop(key, None)

    def dropped(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._remember(self._gaps, key)
            self._sent.pop(key, None)

    def absent(self, keys: Iterable[bytes]) -> None:
        """A lookup did not find these: whatever was sent is gone again (or was never written)."""
        if self._sent:
            for key in keys:
                self._sent.pop(key, None)

    def clear(self) -> None:
        self._sent.clear()
        self._gaps.clear()

    def _remember(self, where: OrderedDict[bytes, None], key: bytes) -> None:
        where[key] = None
        where.move_to_end(key)
        while len(where) > self._bound:
            where.popitem(last=False)


class Copying:
    """Pages that a save still copies out: whoever gets them next must let the copy go first."""

    def __init__(self) -> None:
        self._pages: set[int] = set()

    def begin(self, pages: Iterable[int]) -> None:
        self._pages.update(pages)

    def end(self, pages: Iterable[int]) -> None:
        self._pages.difference_update(pages)

    def touched_by(self, fresh: set[int]) -> bool:
        """Whether a page given out now is still being copied."""
        return not self._pages.isdisjoint(fresh)
