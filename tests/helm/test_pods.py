"""Rendered pods run as processes: the real `kvstore` takes their settings and arguments, and probes, hook and helm test
do what they are for."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.netlab import Net, net
from tests.helm.pods import Pod, running, wait_for
from tests.helm.rendering import VALUES, Manifest, Workload, find, manifests, node, workloads

HOSTS = ("a", "b", "c", "other")


@pytest.fixture(scope="module")
def lab() -> Iterator[Net]:
    with net(HOSTS) as made:
        yield made


def settings(output: str) -> dict[str, str]:
    return dict(line.split(" = ", 1) for line in output.splitlines() if " = " in line)


class Cluster:
    """Makes pods, and removes them at the end."""

    def __init__(self, lab: Net, folder: Path, stack: contextlib.ExitStack) -> None:
        self._lab, self._folder, self._stack = lab, folder, stack
        self._made = 0

    def pod(self, host: str, load: Workload, documents: list[Manifest], *known: str, machine: str = "machine") -> Pod:
        """``known``: hosts whose addresses the names of the Services lead to."""
        self._made += 1
        names = resolved(documents, *(self._lab.address[one] for one in known))
        folder = self._folder / f"pod-{self._made}"
        pod = Pod(self._lab, host, folder, self._folder / machine, load, documents, names)
        self._stack.callback(pod.remove)
        return pod

    def node(self, host: str, documents: list[Manifest], *known: str, machine: str = "machine") -> Pod:
        return self.pod(host, node(documents), documents, *known, machine=machine)

    def test(self, documents: list[Manifest], *known: str) -> Pod:
        """The pod of `helm test`."""
        return self.pod("other", next(one for one in workloads(documents) if one.kind == "Pod"), documents, *known)


@pytest.fixture
def cluster(lab: Net, tmp_path: Path) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        yield Cluster(lab, tmp_path, stack)


def resolved(documents: list[Manifest], *addresses: str) -> dict[str, list[str]]:
    """Where the names of the Services lead."""
    names = [one["metadata"]["name"] for one in documents if one["kind"] == "Service"]
    return {f"{name}.prod.svc": list(addresses) for name in names}


@pytest.mark.parametrize("values", VALUES)
def test_the_node_takes_the_rendered_settings_arguments_and_environment(values: str, cluster: Cluster) -> None:
    documents = manifests(values)
    pod = cluster.node("a", documents)
    for one in pod.spec.get("initContainers", []):
        assert pod.run(one["name"]).returncode == 0
    done = pod.run("node", "--check")
    assert done.returncode == 0, done.stderr
    found = settings(done.stdout)
    assert found["host_name"] == "machine-a"
    for line in find(documents, "ConfigMap", node(documents).name)["data"]["node.toml"].splitlines():
        key, value = line.split(" = ", 1)
        assert found[key] == shown(key, json.loads(value))


def shown(key: str, value: object) -> str:
    """A value of the ConfigMap as `kvstore node --check` shows it."""
    from kvstore.node.config import settings as table

    kind = next(setting.kind for setting in table() if setting.key == key)
    return kind.show(kind.parse(value))


def test_a_setting_that_the_node_refuses_fails_the_check(cluster: Cluster) -> None:
    documents = json.loads(json.dumps(manifests("default")))
    find(documents, "ConfigMap", "demo-kvstore")["data"]["node.toml"] += "high_watermark = 7\n"
    pod = cluster.node("a", documents)
    assert pod.run("own-directories").returncode == 0
    done = pod.run("node", "--check")
    assert (done.returncode, "high_watermark" in done.stderr) == (2, True)


def small(documents: list[Manifest]) -> list[Manifest]:
    """With as little memory as this machine surely has."""
    changed = json.loads(json.dumps(documents))
    config = find(changed, "ConfigMap", "demo-kvstore")["data"]
    config["node.toml"] = re.sub(r"capacity = .*", 'capacity = "64MiB"', config["node.toml"], count=1)
    return changed  # type: ignore[no-any-return]


def node_id(pod: Pod) -> str:
    return pod.exec("node", ["cat", "/var/lib/kvstore/data/node-id"]).stdout.strip()


def stat(pod: Pod) -> Any:
    done = pod.exec("node", ["kvstore", "stat", "--json"])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FILL = """
import sys
from kvstore import Client, NamespaceSpec
client = Client("unix:///run/kvstore/node.sock", timeout=60)
ns = client.namespace(NamespaceSpec(model="filled", block_tokens=16, block_bytes=65536))
chains = [ns.keys([chain] * 16 * 16) for chain in range(8)]
blocks = [bytes([at]) * 65536 for at in range(16)]
if sys.argv[1] == "put":
    print(sum(ns.put(keys, blocks).stored for keys in chains))
else:
    into = [bytearray(65536) for _ in range(16)]
    print(sum(ns.get(keys, into=into) for keys in chains))
    assert into == blocks
client.close()
"""


def filled(pod: Pod, what: str) -> int:
    done = pod.exec("node", ["python", "-c", FILL, what])
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_cache_of_one_machine_serves_other_pods_by_its_socket_and_survives_its_container(
    cluster: Cluster, tmp_path: Path
) -> None:
    documents = small(manifests("default"))
    pod = running(cluster.node("a", documents))
    assert oct((tmp_path / "machine/run/kvstore").stat().st_mode & 0o7777) == "0o750"
    assert pod.exec("node", ["touch", "/etc/kvstore/x"]).returncode != 0
    test = cluster.test(documents)
    done = test.run("round-trip")
    assert (done.returncode, done.stdout) == (0, "a block went to the node and came back\n"), done.stderr
    assert filled(pod, "put") == 128
    before = node_id(pod)
    pod.signal("node", signal.SIGKILL)
    pod.wait("node")
    assert test.run("round-trip").returncode == 1  # the helm test can fail
    running(pod)
    assert (node_id(pod), filled(pod, "get")) == (before, 128)
    pod.signal("node", signal.SIGSTOP)
    for kind in ("readinessProbe", "livenessProbe"):
        assert not pod.probe("node", kind)[0]
    pod.signal("node", signal.SIGCONT)
    wait_for(lambda: pod.probe("node", "readinessProbe")[0], "ready again")
    pod.signal("node", signal.SIGTERM)
    assert pod.wait("node") == 0


def test_nodes_of_a_pool_find_each_other_and_a_stopped_one_leaves_its_blocks_to_the_others(cluster: Cluster) -> None:
    documents = manifests("pool-dns")
    pods = [cluster.node(host, documents, "a", "b", "c", machine=f"machine-{host}") for host in "abc"]
    first, second, third = (running(pod) for pod in pods)
    wait_for(lambda: live(first) == live(second) == live(third) == 2, "all nodes to know each other")
    done = cluster.test(documents, "a", "b", "c").run("round-trip")
    assert done.returncode == 0, done.stdout + done.stderr
    assert filled(first, "put") == 128
    hook = first.pre_stop("node")
    assert (hook.returncode, hook.stderr) == (0, "")
    assert "not all was drained" not in first.log("node")
    ready, why = first.probe("node", "readinessProbe")
    assert (ready, "drains" in why) == (False, True)
    assert first.probe("node", "livenessProbe")[0]
    first.signal("node", signal.SIGTERM)
    assert first.wait("node") == 0
    assert filled(second, "get") == 128


def live(pod: Pod) -> int:
    done = pod.exec("node", ["kvstore", "cluster", "status", "--json"])
    return sum(peer["state"] == "live" for peer in json.loads(done.stdout)["peers"]) if done.returncode == 0 else 0


def test_a_node_with_nobody_to_drain_to_stops_in_time_and_keeps_its_blocks(cluster: Cluster) -> None:
    documents = manifests("machine-cell")
    pod = running(cluster.node("a", documents, "a"))
    assert filled(pod, "put") == 128
    began = time.monotonic()
    hook = pod.pre_stop("node")
    took = time.monotonic() - began
    assert (hook.returncode, hook.stderr) == (0, "")
    assert "not all was drained; the node stops all the same" in pod.log("node")
    assert took < pod.spec["terminationGracePeriodSeconds"]
    pod.signal("node", signal.SIGTERM)
    assert pod.wait("node") == 0
    again = running(cluster.node("a", documents, "a"))  # another pod of this machine: memory is gone, NVMe is not
    assert filled(again, "get") == 128


def test_the_hook_ends_by_itself_when_the_node_hangs_and_its_log_cannot_be_written(cluster: Cluster) -> None:
    quick = json.dumps(manifests("machine-cell")).replace("--timeout 20", "--timeout 1").replace("-k 2 23", "-k 2 4")
    documents = json.loads(quick)
    pod = running(cluster.node("a", documents, "a"))
    pod.keep_log("node")
    pod.signal("node", signal.SIGSTOP)
    assert pod.pre_stop("node").returncode == 0
    pod.signal("node", signal.SIGCONT)
