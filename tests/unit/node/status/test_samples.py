"""Samples of metrics, what grew between two, and warnings that are kept."""

from __future__ import annotations

import logging

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from kvstore.node.status.recent import KEPT, listen, unlisten
from kvstore.node.status.samples import History, Sample, grown, grown_by, sample


def collected(hits: float, absent: float) -> Sample:
    misses = CounterMetricFamily("kvstore_misses", "", labels=["reason"])
    misses.add_metric(["absent"], absent)
    misses.add_metric(["busy"], 1)
    spread = HistogramMetricFamily("kvstore_request_seconds", "", buckets=[("1", 1), ("+Inf", 2)], sum_value=3.5)
    metrics = [CounterMetricFamily("kvstore_hits", "", value=hits), misses, GaugeMetricFamily("g", "", value=2), spread]
    return sample(metrics, 1.0)


def test_a_sample_has_all_values_but_buckets() -> None:
    found = collected(5, 7)
    assert found.total("kvstore_hits_total") == 5
    assert found.total("kvstore_misses_total") == 8
    assert found.total("kvstore_misses_total", reason="absent") == 7
    assert found.by("kvstore_misses_total", "reason") == {"absent": 7, "busy": 1}
    assert found.total("kvstore_request_seconds_sum") == 3.5
    assert not any(name.endswith("_bucket") for name in found.values)
    assert found.total("unknown") == 0


def test_what_grew_is_told_and_a_counter_that_began_anew_counts_whole() -> None:
    first, last = collected(5, 7), collected(9, 7)
    assert grown(first, last, "kvstore_hits_total") == 4
    assert grown(last, first, "kvstore_hits_total") == 5
    assert grown_by(first, last, "kvstore_misses_total", "reason") == {}
    assert grown_by(Sample(0.0), last, "kvstore_misses_total", "reason") == {"absent": 7, "busy": 1}


def test_a_history_forgets_what_is_older_than_its_window() -> None:
    numbers = iter(range(100))
    history = History(lambda: Sample(float(next(numbers))), Sample(-1.0), every=5.0, window=50.0)
    assert [one.at for one in history.samples()] == [-1.0]
    for _ in range(30):
        history.take()
    assert [one.at for one in history.samples()] == [float(n) for n in range(19, 30)]


def test_warnings_are_kept_once_a_kind_the_latest_first() -> None:
    handler, logger = listen(), logging.getLogger("kvstore.somewhere")
    try:
        for number in range(3):
            logger.warning("disk %d is slow", number)
        logger.info("not kept")
        logger.error("broken")
        found = handler.entries()
        assert [(one.level, one.text, one.count) for one in found] == [
            ("error", "broken", 1),
            ("warning", "disk 2 is slow", 3),
        ]
        for number in range(KEPT + 5):
            logger.warning("kind " + str(number))
        assert len(handler.entries()) == KEPT
    finally:
        unlisten(handler)
    logger.warning("after the end")
    assert handler.entries()[0].text != "after the end"
