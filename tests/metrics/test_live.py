"""A real Prometheus watches three real nodes: all metrics come, every panel has data, and a killed node is told of."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvstore.node.metrics.catalog_node import FAMILIES
from tests.integration.nodes import wait_for
from tests.metrics.live import JOB, Node, Prometheus, Traffic, dev_cluster, kill, page_of
from tools.dashboard import dashboard

SECONDS = 90.0  # after which what has not come is missed
WHOLE = 'min(kvstore_cell_nodes{state="live"}) == 2 and count(kvstore_ready == 1) == 3'
TROUBLE = {"KvstoreNodeDown", "KvstoreNodeSuspect", "KvstoreChecksumFailures", "KvstoreNvmeNotOk"}
VARIABLES = {"$job": JOB, "$instance": ".*", "$__rate_interval": "30s"}


@dataclass(frozen=True)
class Watched:
    nodes: list[Node]
    prometheus: Prometheus
    traffic: Traffic


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with dev_cluster(folder / "cell", "--capacity", "32MiB", "--nvme", "256MiB", "--replicas", "2") as nodes:
        prometheus = Prometheus(folder, [node.http for node in nodes])
        try:
            traffic = Traffic(nodes)
            try:
                yield Watched(nodes, prometheus, traffic)
            finally:
                traffic.stop()
        finally:
            prometheus.close()


def test_every_node_is_scraped_and_no_alert_fires(watched: Watched) -> None:
    addresses = {node.http for node in watched.nodes}
    wait_for(lambda: watched.prometheus.targets() == dict.fromkeys(addresses, "up"), "all targets to be up")
    wait_for(lambda: watched.prometheus.query(WHOLE), "all nodes to know each other")
    wait_for(lambda: watched.traffic.error or watched.traffic.rounds > 3, "traffic")
    wait_for(lambda: not TROUBLE & watched.prometheus.firing().keys(), "alerts of the start to end")


def test_a_node_shows_what_the_catalog_says_and_nothing_else(watched: Watched) -> None:
    found = {}
    for node in watched.nodes:
        for family in text_string_to_metric_families(page_of(node)):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = family
            known = FAMILIES[name]
            assert (family.type, family.documentation) == (known.kind, known.help)
            values = {label.name: label.values for label in known.labels}
            for sample in family.samples:
                assert sample.labels.keys() - {"le"} == values.keys(), sample
                for label, value in sample.labels.items():
                    assert label == "le" or not values[label] or value in values[label], sample
    assert sorted(FAMILIES.keys() - found.keys()) == []


def test_promtool_has_nothing_to_say_about_the_page(watched: Watched) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page_of(watched.nodes[0]), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_expression_of_the_dashboard_returns_data(watched: Watched) -> None:
    missing = {expr: title for title, expr in expressions()}
    assert len(missing) > 60
    end = time.monotonic() + SECONDS
    while missing and time.monotonic() < end:
        missing = {expr: title for expr, title in missing.items() if not has_data(watched.prometheus, expr)}
    assert missing == {}


def test_the_choices_of_the_dashboard_find_the_nodes(watched: Watched) -> None:
    jobs, instances = (
        variable["query"]["query"] for variable in dashboard()["templating"]["list"] if variable["type"] == "query"
    )
    assert labels(watched.prometheus, jobs) == {JOB}
    assert labels(watched.prometheus, instances) == {node.http for node in watched.nodes}


def test_what_is_moved_is_counted_by_transport_and_tier(watched: Watched) -> None:
    for tier, transport in (("dram", "shm"), ("nvme", ".*"), ("remote", ".*"), ("dram", "tcp"), ("dram", "peer")):
        ask = f'sum(kvstore_request_bytes_sum{{op="get",tier="{tier}",transport=~"{transport}"}}) > 0'
        wait_for(lambda ask=ask: watched.prometheus.query(ask), ask)  # type: ignore[misc]
    moved = watched.prometheus.query('sum(kvstore_request_bytes_sum{op="reserve",transport="shm"})')
    told = watched.prometheus.query('sum(kvstore_received_bytes_total{op="reserve",transport="shm"})')
    assert float(moved[0]["value"][1]) > 0
    assert float(told[0]["value"][1]) > 0


def test_an_alert_fires_when_a_node_is_killed(watched: Watched) -> None:
    watched.traffic.stop()
    victim, *others = watched.nodes
    assert "KvstoreNodeDown" not in watched.prometheus.firing()
    kill(victim)
    wait_for(lambda: {"KvstoreNodeDown", "KvstoreNodeSuspect"} <= watched.prometheus.firing().keys(), "the alerts")
    (down,) = watched.prometheus.firing()["KvstoreNodeDown"]
    assert down["labels"]["instance"] == victim.http
    assert down["labels"]["severity"] == "critical"
    assert down["annotations"]["summary"] == f"kvstore node {victim.http} cannot be scraped"
    wait_for(
        lambda: summaries(watched.prometheus, "KvstoreNodeSuspect") == ["1 node(s) of the kvstore cell are suspect"]
    )
    assert watched.prometheus.targets() == {victim.http: "down", **{one.http: "up" for one in others}}


def summaries(prometheus: Prometheus, alert: str) -> list[str]:
    return [one["annotations"]["summary"] for one in prometheus.firing().get(alert, ())]


def expressions() -> list[tuple[str, str]]:
    """Title of the panel, and expression with its variables filled in."""
    found = []
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"]
            for name, value in VARIABLES.items():
                expr = expr.replace(name, value)
            assert "$" not in expr
            found.append((panel["title"], expr))
    return found


def has_data(prometheus: Prometheus, expr: str) -> bool:
    """A number, not only series without any."""
    return any(math.isfinite(float(sample["value"][1])) for sample in prometheus.query(expr))


def labels(prometheus: Prometheus, choice: str) -> set[str]:
    """What label_values(series, label) gives."""
    series, _, label = choice.removeprefix("label_values(").removesuffix(")").rpartition(", ")
    return {sample["metric"][label] for sample in prometheus.query(series.replace("$job", JOB))}
