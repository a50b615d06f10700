"""A real `kvstore dev-cluster`, a real Prometheus that scrapes it, and clients that keep it busy."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kvstore
from kvstore.core.keys import Keys, chain_keys
from tests.cluster.etcd.servers import free_ports
from tests.integration.nodes import COMMAND, PATIENCE, wait_for
from tests.metrics.rules import ALERTS

JOB = "kvstore-dev"
BLOCK = 64 << 10
CHAIN = 24  # blocks
SPEC = kvstore.NamespaceSpec(model="watched", block_tokens=4, block_bytes=BLOCK)


@dataclass(frozen=True)
class Node:
    pid: int
    socket: Path
    data: str
    http: str


@contextlib.contextmanager
def dev_cluster(folder: Path, *options: str) -> Iterator[list[Node]]:
    """Its nodes, while it runs."""
    base = free_ports(1)[0] % 20_000 + 40_000
    command = [*COMMAND, "dev-cluster", "--base-port", str(base), "--dir", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = [_node(folder, nth, process.stdout.readline()) for nth in range(3)]
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        process.stdout.close()
        for path in folder.rglob("node-id"):
            for left in Path("/dev/shm").glob(f"kvstore-{path.read_text().strip()}.mem*"):
                left.unlink()


def _node(folder: Path, nth: int, line: str) -> Node:
    match = re.match(rf"node {nth}: pid (\d+)  data (\S+)  control \S+  http (\S+)", line)
    assert match, line
    return Node(int(match[1]), folder / f"node-{nth}" / "node.sock", match[2], match[3])


class Prometheus:
    """Scrapes and judges each second, by the shipped alerts with their waits cut to a second."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        rules = folder / "alerts.yaml"
        rules.write_text(re.sub(r"for: \d+m", "for: 1s", ALERTS.read_text()))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": targets}]}],
        }
        path = folder / "prometheus.yaml"
        path.write_text(json.dumps(config))
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address={self.address}", "--log.level=warn"],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip
        wait_for(self._ready, "Prometheus")

    def _ready(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5).status == 200)
        return False

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
            return json.load(reply)["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Samples now."""
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found

    def targets(self) -> dict[str, str]:
        """Health by instance."""
        return {one["labels"]["instance"]: one["health"] for one in self.get("targets")["activeTargets"]}

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """Alerts by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for one in self.get("alerts")["alerts"]:
            if one["state"] == "firing":
                found.setdefault(one["labels"]["alertname"], []).append(one)
        return found

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._log.close()


class Traffic:
    """A thread that puts chains at one node after another, and reads them there, elsewhere, and long after."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.rounds = 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                here = [stack.enter_context(kvstore.Client(f"unix://{one.socket}")) for one in self.nodes]
                far = [stack.enter_context(kvstore.Client(f"kv://{one.data}")) for one in self.nodes]
                spaces = [client.namespace(SPEC) for client in here]
                remote = [client.namespace(SPEC) for client in far]
                while not self._stop.is_set():
                    turn = self.rounds % 3
                    self._round(spaces[turn], remote[turn - 2], spaces[turn - 1])
                    self.rounds += 1
        except BaseException as error:
            self.error = error

    def _round(self, here: Any, elsewhere: Any, other: Any) -> None:
        blocks = [np.full(BLOCK, self.rounds % 251, np.uint8) for _ in range(CHAIN)]
        here.put(chain(self.rounds), blocks)
        elsewhere.put(chain(10_000 + self.rounds), blocks)
        into = [np.empty(BLOCK, np.uint8) for _ in range(CHAIN)]
        for space in (here, elsewhere):
            for number in (self.rounds, max(0, self.rounds - 12), 100_000 + self.rounds):
                space.match(chain(number))
                space.get(chain(number), into)
        other.get(chain(max(0, self.rounds - 3)), into)  # of which two of three nodes have a copy
        elsewhere.prefetch(chain(max(0, self.rounds - 30)))


def chain(number: int) -> Keys:
    start = number * 10_000
    return Keys(chain_keys(SPEC.root, range(start, start + 4 * CHAIN), 4))


def page_of(node: Node) -> str:
    """What it shows at /metrics."""
    with urllib.request.urlopen(f"http://{node.http}/metrics", timeout=PATIENCE) as reply:
        text: str = reply.read().decode()
    return text


def kill(node: Node) -> None:
    os.kill(node.pid, signal.SIGKILL)
