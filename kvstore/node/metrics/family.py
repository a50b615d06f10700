"""What a metric is, and how a scrape's samples of it are made. Names, labels and help live in the catalog alone."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from prometheus_client.core import Metric

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_TOTAL = "_total"
Labels: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """``values``: all that it can have; empty where ``means`` says what bounds them."""

    name: str
    values: tuple[str, ...] = ()
    means: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """``name`` is what Prometheus shows. ``buckets``: upper bounds of a histogram."""

    name: str
    kind: str
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def label_names(self) -> list[str]:
        return [label.name for label in self.labels]

    def combinations(self) -> Iterable[Labels]:
        """All labels that there can be, where the catalog names them all. A counter that is there before its first
        event lets ``increase`` see that event."""
        if not all(label.values for label in self.labels):
            return ()
        return itertools.product(*(label.values for label in self.labels))


@dataclass(frozen=True, slots=True)
class Section:
    """Families that belong together. ``when``: of which nodes they are there, empty: of all."""

    title: str
    families: tuple[Family, ...]
    when: str = ""


def counter(name: str, help: str, *labels: Label) -> Family:
    return Family(name, COUNTER, help, labels)


def gauge(name: str, help: str, *labels: Label) -> Family:
    return Family(name, GAUGE, help, labels)


def sampled(family: Family, values: Mapping[Labels, float]) -> Metric:
    """A counter or gauge with its samples; those of the catalog that are not named are 0."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if family.kind == COUNTER else GaugeMetricFamily
    made = kind(family.name.removesuffix(_TOTAL), family.help, labels=family.label_names)
    for labels, value in {**dict.fromkeys(family.combinations(), 0), **values}.items():
        if len(labels) != len(family.labels):
            raise ValueError(f"{family.name} has labels {family.label_names}, not {len(labels)} of them")
        made.add_metric(labels, value)
    return made


def single(family: Family, value: float) -> Metric:
    """A family without labels."""
    return sampled(family, {(): value})


class Histogram:
    """Numbers of one histogram. One thread writes, any reads; a reader may see a sum that is one event ahead."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float], counts: list[int] | None = None, total: float = 0.0) -> None:
        self.bounds = bounds
        self.counts = counts or [0] * (len(bounds) + 1)
        self.total = total

    def observe(self, value: float) -> None:
        self.total += value
        self.counts[bisect_left(self.bounds, value)] += 1

    def add(self, other: Histogram) -> None:
        """Takes another one's numbers in; it has the same bounds."""
        self.total += other.total
        for bucket, count in enumerate(other.counts):
            self.counts[bucket] += count


def distributed(family: Family, values: Mapping[Labels, Histogram]) -> Metric:
    """A histogram with its samples."""
    from prometheus_client.core import HistogramMetricFamily

    made = HistogramMetricFamily(family.name, family.help, labels=family.label_names)
    for labels, one in values.items():
        made.add_metric(labels, _cumulative(one), one.total)
    return made


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = (*map(str, map(float, histogram.bounds)), "+Inf")
    return list(zip(bounds, itertools.accumulate(histogram.counts), strict=True))
