"""The chart as Helm sees it: lint, schemas of Kubernetes, golden renders, values that are refused."""

from __future__ import annotations

import json
import re
import shlex
import tarfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kvstore import __version__
from kvstore.node.config import settings
from tests.helm.golden import looked_at
from tests.helm.rendering import CHART, HELMS, HERE, ROOT, VALUES, Manifest, find, manifests, node, run, template
from tests.helm.rules import amount
from tools import chart_schema

KUBERNETES = ("1.29", "1.33", "1.37")
# Kinds of the Prometheus operator, of which kubernetes-validate has no schemas: what they must have.
OPERATOR = {"ServiceMonitor": ("selector", "endpoints"), "PrometheusRule": ("groups",)}
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("major", HELMS)
def test_lint_has_nothing_to_say(values: str, major: int) -> None:
    done = run(major, "lint", "--strict", str(CHART), "-f", str(HERE / "values" / f"{values}.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"\[(WARNING|ERROR)\]", done.stdout)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", VALUES)
def test_every_object_fits_the_schemas_of_kubernetes(values: str, version: str) -> None:
    for document in manifests(values):
        if document["kind"] in OPERATOR:
            assert set(OPERATOR[document["kind"]]) <= document["spec"].keys()
        else:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_find_a_misspelt_field() -> None:
    document = json.loads(json.dumps(node(manifests("default")).whole))
    document["spec"]["template"]["spec"]["containers"][0]["imagePulPolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, KUBERNETES[0], strict=True)


@pytest.mark.parametrize("values", VALUES)
def test_both_helms_render_the_same(values: str) -> None:
    assert manifests(values, 3) == manifests(values, 4)


@pytest.mark.parametrize("values", VALUES)
def test_a_render_is_as_it_was_looked_at(values: str) -> None:
    """`python -m tests.helm.golden` writes them anew; look at what changed."""
    assert looked_at(values).strip() == (HERE / "golden" / f"{values}.yaml").read_text().strip()


def test_an_old_kubernetes_is_refused() -> None:
    done = run(4, "template", "demo", str(CHART), "--kube-version", "1.26.0")
    assert done.returncode != 0
    assert "1.27" in done.stderr


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


# --- values -------------------------------------------------------------------------------------------------


def leaves(values: Any, schema: Any, path: str = "") -> set[str]:
    """Paths of values; below a value that the schema takes as a whole there are none."""
    if not isinstance(values, dict) or not values or (path and "properties" not in schema):
        return {path}
    known = schema.get("properties", {})
    return {leaf for key, inner in values.items() for leaf in leaves(inner, known.get(key, {}), f"{path}.{key}")}


def described(schema: Any, path: str = "") -> set[str]:
    if "properties" not in schema:
        return {path}
    return {leaf for key, inner in schema["properties"].items() for leaf in described(inner, f"{path}.{key}")}


def test_every_value_has_an_entry_of_the_schema_and_the_other_way_round() -> None:
    values = leaves(yaml.safe_load((CHART / "values.yaml").read_text()), SCHEMA)
    known = {path for path in described(SCHEMA) if not path.startswith((".config.", ".scheduling.affinity."))}
    assert known - {".global"} == values - {".config", ".scheduling.affinity"}


def entries(schema: Any) -> list[Any]:
    inner = [one for value in schema.get("properties", {}).values() for one in entries(value)]
    return [schema, *inner]


def test_every_entry_of_the_schema_says_what_it_is_for_and_takes_nothing_unknown() -> None:
    for entry in entries(SCHEMA):
        assert entry.get("description"), entry
        assert entry.get("type") != "object" or "properties" not in entry or entry["additionalProperties"] is False


def test_the_schema_knows_the_settings_of_the_node() -> None:
    assert chart_schema.SCHEMA.read_text() == chart_schema.wanted(), "run make chart-schema"
    assert set(chart_schema.DECIDED) < {setting.key for setting in settings()}


@pytest.mark.parametrize("major", HELMS)
def test_a_packaged_chart_has_the_shipped_dashboard_and_alerts(major: int, tmp_path: Path) -> None:
    """They are links in the source tree."""
    done = run(major, "package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(tmp_path.glob("*.tgz"))) as archive:
        for name, source in (("dashboard.json", "grafana/kvstore.json"), ("alerts.yaml", "prometheus/alerts.yaml")):
            packed = archive.extractfile(f"kvstore/files/{name}")
            assert packed is not None
            assert packed.read() == (ROOT / "deploy" / source).read_bytes()


POOL = "mode=statefulset,network.allowInsecure=true,cell.discovery=dns"
# Values of the command line, and what the message says.
REFUSED = {
    "replica=3": "replica",
    "mode=deployment": "/mode",
    "replicas=0": "/replicas",
    "replicas=two": "/replicas",
    "dram.capacity=4096": "/dram/capacity",
    "dram.capacity=10Gigs": "/dram/capacity",
    "network.dataPort=70000": "/network/dataPort",
    "network.dataPort=80": "/network/dataPort",
    "image.digest=latest": "/image/digest",
    "socket.mode=rw": "/socket/mode",
    "socket.hostPath=run/kvstore": "/socket/hostPath",
    "config.capcity=1GiB": "capcity",
    "config.capacity=1GiB": "capacity",
    "config.eviction=random": "/config/eviction",
    "config.max_sessions=many": "/config/max_sessions",
    "drain.timeoutSeconds=0": "/drain/timeoutSeconds",
    "podDisruptionBudget.maxUnavailable=most": "/podDisruptionBudget/maxUnavailable",
    "cell.discovery=dns": "network.allowInsecure=true",
    "mode=statefulset,replicas=1": "nobody could reach this pool",
    "mode=statefulset,network.allowInsecure=true": "nodes that do not know each other",
    f"{POOL},socket.hostPath=/run/kvstore": "scheduling.antiAffinity=hard",
    f"{POOL},nvme.enabled=true,nvme.hostPath=/mnt": "nvme.hostPath is of a daemonset",
    "nvme.enabled=true": "needs nvme.hostPath",
    "metrics.serviceMonitor.enabled=true": "metrics.serviceMonitor.enabled needs network.allowInsecure",
    f"{POOL},metrics.serviceMonitor.enabled=true": "networkPolicy.monitoring",
    "network.allowInsecure=true,cell.discovery=etcd": "cell.etcd.endpoints",
    "cell.etcd.tls.certKey=tls.crt": "certKey and keyKey go together",
    "cell.etcd.tls.certKey=a,cell.etcd.tls.keyKey=b": "cell.etcd.tls.secret",
    "cell.etcd.auth.user=kvstore": "cell.etcd.auth.secret go together",
    "cell.zone=a,cell.zoneFromLabel=b": "cell.zone and cell.zoneFromLabel",
    "network.dataPort=7001": "must differ",
    "podDisruptionBudget.minAvailable=1": "one of maxUnavailable and minAvailable",
    f"{POOL},shutdown.terminationGracePeriodSeconds=60": "too short",
    f"{POOL},replicas=1,cell.discovery=none,network.allowInsecure=false,vllmExample.enabled=true": "vllmExample could",
}


@pytest.mark.parametrize("values", REFUSED)
def test_values_that_are_wrong_or_contradict_each_other_are_refused_with_a_reason(values: str) -> None:
    done = template(4, "--set", values)
    assert done.returncode != 0
    assert REFUSED[values] in done.stderr
    assert "nil pointer" not in done.stderr


def test_all_contradictions_are_told_at_once() -> None:
    done = template(
        3, "--set", "mode=statefulset,nvme.enabled=true,nvme.hostPath=/mnt,cell.zone=a,cell.zoneFromLabel=b"
    )
    assert done.stderr.count("\n- ") == 4


# --- what the chart promises --------------------------------------------------------------------------------


@pytest.mark.parametrize("values", VALUES)
def test_memory_limit_holds_the_blocks_and_the_process_and_its_volume_the_blocks(values: str) -> None:
    documents = manifests(values)
    pod = node(documents).pod
    config = find(documents, "ConfigMap", node(documents).name)["data"]["node.toml"]
    capacity = amount(re.search(r'^capacity = "(\d+[MGT]i)B"$', config, re.MULTILINE)[1])  # type: ignore[index]
    memory = next(volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "memory")
    limit = amount(pod["containers"][0]["resources"]["limits"]["memory"])
    assert memory["medium"] == "Memory"
    assert capacity < amount(memory["sizeLimit"]) <= capacity + (16 << 20)
    assert limit >= capacity * 1.04 + (500 << 20)
    assert (
        pod["containers"][0]["resources"]["requests"]["memory"] == pod["containers"][0]["resources"]["limits"]["memory"]
    )


@pytest.mark.parametrize("values", VALUES)
def test_drain_and_stop_fit_into_the_grace_period(values: str) -> None:
    documents = manifests(values)
    pod = node(documents).pod
    config = find(documents, "ConfigMap", node(documents).name)["data"]["node.toml"]
    own = sum(int(found) for found in re.findall(r'^(?:shutdown_grace|nvme_flush) = "(\d+)s"$', config, re.MULTILINE))
    hook = json.dumps(pod["containers"][0].get("lifecycle", {}))
    drain = re.search(r"timeout -k (\d+) (\d+) kvstore cluster drain --timeout (\d+)", hook)
    if drain is not None:
        assert int(drain[3]) < int(drain[2])
        own += int(drain[1]) + int(drain[2])
    assert (drain is not None) == (values in ("pool-dns", "pool-etcd-nvme", "machine-cell", "pool-vllm", "monitored"))
    assert own + 5 <= pod["terminationGracePeriodSeconds"]


def test_what_a_node_listens_on_is_loopback_unless_said_otherwise() -> None:
    documents = manifests("default")
    config = find(documents, "ConfigMap", "demo-kvstore")["data"]["node.toml"]
    assert set(re.findall(r'^\w+_address = "(.*):\d+"$', config, re.MULTILINE)) == {"127.0.0.1"}
    policy = find(documents, "NetworkPolicy")["spec"]
    assert (policy["ingress"], policy["egress"]) == ([], [])
    assert [one["kind"] for one in documents if one["kind"] == "Service"] == []


def test_only_who_is_named_reaches_the_ports_of_a_pool() -> None:
    policy = find(manifests("pool-etcd-nvme"), "NetworkPolicy")["spec"]
    own = {
        "podSelector": {
            "matchLabels": find(manifests("pool-etcd-nvme"), "StatefulSet")["spec"]["selector"]["matchLabels"]
        }
    }
    clients = [{"namespaceSelector": {"matchLabels": {"team": "inference"}}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]
    assert [rule["from"] for rule in policy["ingress"]] == [[own], clients]
    etcd = policy["egress"][2]
    assert etcd["to"] == [{"podSelector": {"matchLabels": {"app": "etcd"}}}]
    assert [port["port"] for port in etcd["ports"]] == [2379, 2379, 12379]


@pytest.mark.parametrize("values", VALUES)
def test_a_change_of_the_settings_starts_the_nodes_anew(values: str) -> None:
    before = node(manifests(values)).whole["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
    path = str(HERE / "values" / f"{values}.yaml")
    done = template(4, "-f", path, "--set", "config.log_level=debug")
    changed: list[Manifest] = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert node(changed).whole["spec"]["template"]["metadata"]["annotations"]["checksum/config"] != before


def test_the_notes_show_the_memory_limit_and_commands_that_exist() -> None:
    arguments = ["-n", "prod", "-f", str(HERE / "values" / "pool-dns.yaml"), "--dry-run=client"]
    notes = run(4, "install", "demo", str(CHART), *arguments).stdout.partition("NOTES:")[2]
    limit = node(manifests("pool-dns")).pod["containers"][0]["resources"]["limits"]["memory"]
    assert f"Memory limit of each node: {limit}" in notes
    assert "exec statefulset/demo-kvstore -c node -- kvstore cluster status" in notes
    assert "may read and write all blocks" in notes


def test_no_file_of_deploy_names_a_registry() -> None:
    known = re.compile(r"\b(docker|quay|gcr|ghcr|registry)\.(io|com|net|k8s\.io)\b")
    files = [path for path in Path(CHART.parents[1]).rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [path.name for path in files if known.search(path.read_text(errors="replace"))] == []


COMMANDS = re.findall(
    r"^    helm install (\S+) deploy/helm/kvstore((?:.*\\\n)*.*)$",
    (ROOT / "docs" / "kubernetes.md").read_text(),
    re.MULTILINE,
)


@pytest.mark.parametrize(("release", "options"), COMMANDS)
def test_every_helm_command_of_the_docs_renders(release: str, options: str) -> None:
    done = run(4, "template", release, str(CHART), *shlex.split(options.replace("\\\n", " ")))
    assert done.returncode == 0, done.stderr
    assert f"{release}-kvstore" in {one["metadata"]["name"] for one in yaml.safe_load_all(done.stdout) if one}


def test_the_docs_show_how_to_install_each_way() -> None:
    assert len(COMMANDS) == 3
