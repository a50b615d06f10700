"""Numbers of one moment, and of the last minutes, out of what /metrics shows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from prometheus_client.core import Metric

EVERY = 5.0  # seconds between samples
WINDOW = 900.0  # seconds that are kept
Labels: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """All values at a time (time.time()): by name, then by labels."""

    at: float
    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def total(self, name: str, **labels: str) -> float:
        """Sum over all label values but those given."""
        wanted = set(labels.items())
        return sum(value for held, value in self.values.get(name, {}).items() if wanted <= set(held))

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by the values of one label."""
        found: dict[str, float] = {}
        for held, value in self.values.get(name, {}).items():
            key = dict(held).get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found


def sample(metrics: Iterable[Metric], at: float) -> Sample:
    """Histograms give their sums and counts alone."""
    values: dict[str, dict[Labels, float]] = {}
    for metric in metrics:
        for one in metric.samples:
            if not one.name.endswith("_bucket"):
                values.setdefault(one.name, {})[tuple(sorted(one.labels.items()))] = float(one.value)
    return Sample(at, values)


def grown(before: Sample, after: Sample, name: str, **labels: str) -> float:
    """How much a counter grew; all of it when it began anew."""
    first, last = before.total(name, **labels), after.total(name, **labels)
    return last - first if last >= first else last


def grown_by(before: Sample, after: Sample, name: str, label: str) -> dict[str, float]:
    """The same by one label, what did not grow left out."""
    first = before.by(name, label)
    change = {key: value - first.get(key, 0.0) for key, value in after.by(name, label).items()}
    return {key: value for key, value in change.items() if value > 0}


class History:
    """Samples of the last minutes, ``first`` before them all: of a node that starts now it is an empty one. ``collect``
    takes one. Safe to use from several threads."""

    def __init__(
        self, collect: Callable[[], Sample], first: Sample, every: float = EVERY, window: float = WINDOW
    ) -> None:
        self._collect = collect
        self._every = every
        self._lock = threading.Lock()
        self._kept: deque[Sample] = deque([first], maxlen=int(window / every) + 1)
        self._over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="status", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while True:
            self.take()
            if self._over.wait(self._every):
                return

    def take(self) -> Sample:
        """One more, now."""
        found = self._collect()
        with self._lock:
            self._kept.append(found)
        return found

    def samples(self) -> list[Sample]:
        """The oldest first."""
        with self._lock:
            return list(self._kept)
