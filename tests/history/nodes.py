"""A cell of real nodes on hosts of a test network, and the etcd beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster.etcd.gateway import Gateway
from tests.cluster.netlab import Forward, Net
from tests.integration.nodes import PATIENCE, NodeProcess, wait_for

COMMAND = (sys.executable, "-m", "kvstore.cli")
ROOT = Path(__file__).resolve().parents[2]
PORTS = {"data_address": 7000, "control_address": 7001, "http_address": 7002}


class NetNode(NodeProcess):
    """A node on a host of its own. It is looked into from outside: a cut does not hide it from the test."""

    def __init__(self, net: Net, host: str, number: int, folder: Path, **settings: object) -> None:
        self.net, self.host, self.number = net, host, number
        self.listens = {key: f"{net.address[host]}:{port}" for key, port in PORTS.items()}
        self.doors = {key: Forward(net, host, address) for key, address in self.listens.items()}
        self.checkout = ROOT  # whose code the node runs
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(
            folder,
            **self.listens,
            **{"allow_insecure_network": True, "host_name": host, **settings},
        )

    def start(self) -> NetNode:
        self.begin()
        self.await_start()
        return self

    def begin(self) -> None:
        """Starts the process and does not wait for it."""
        self._mark = len(self.log())
        command = [*COMMAND, "node", "--config", str(self.config)]
        with open(self.folder / "node.log", "ab") as log:
            self.process = self.net.popen(self.host, command, stdout=log, stderr=log, cwd=self.checkout)

    def await_start(self) -> None:
        assert self.process is not None
        process = self.process
        wait_for(lambda: "serves:" in self.log()[self._mark :] or process.poll() is not None, "the node to serve")
        assert process.poll() is None, f"the node did not start:\n{self.log()[self._mark :]}"
        self.data, self.control, self.http = (self.doors[key].address for key in PORTS)

    @property
    def address(self) -> str:
        """Of its data path, on the network."""
        return self.listens["data_address"]

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command of kvstore on the node's host."""
        whole, descriptors = self.net.command(self.host, *COMMAND, *arguments)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("KVSTORE_")}
        return subprocess.run(
            whole, pass_fds=descriptors, capture_output=True, text=True, timeout=2 * PATIENCE, check=False,
            env={**clean, "KVSTORE_TARGET": self.target, "COLUMNS": "200"}, cwd=self.checkout,
        )  # fmt: skip

    def lose_memory(self) -> None:
        """What a crash of its machine does; the process has ended."""
        for path in (self.memory_file, Path(f"{self.memory_file}.lock")):
            path.unlink(missing_ok=True)

    def lose_disk(self) -> None:
        self.lose_memory()
        for name in ("data", "nvme"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            super().remove()
        for door in self.doors.values():
            door.close()


class NetEtcd:
    """One etcd or three on a host."""

    def __init__(self, net: Net, host: str, folder: Path, members: int = 1) -> None:
        self._net, self._host, self._folder = net, host, folder
        where = net.address[host]
        self.clients = [f"{where}:{2379 + 10 * number}" for number in range(members)]
        self._peers = [f"http://{where}:{2380 + 10 * number}" for number in range(members)]
        self._doors = [Forward(net, host, address) for address in self.clients]
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Those that do not run."""
        for number in set(range(len(self.clients))) - set(self._running):
            self._running[number] = self._run(number)
        wait_for(lambda: all(map(self._leader_of, self._running)), "etcd to have a leader")

    def _run(self, number: int) -> subprocess.Popen[bytes]:
        client, peer = f"http://{self.clients[number]}", self._peers[number]
        command = ["etcd", "--name", f"m{number}", "--data-dir", str(self._folder / f"m{number}")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", ",".join(f"m{n}={peer}" for n, peer in enumerate(self._peers))]
        command += ["--heartbeat-interval", "50", "--election-timeout", "500"]
        with open(self._folder / f"m{number}.log", "ab") as log:
            return self._net.popen(self._host, command, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        process = self._running.pop(number)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for number in list(self._running):
            self.kill(number)

    def leader(self) -> int:
        """The number of the one that leads."""
        leader = self._leader_of(next(iter(self._running)))
        return next(number for number in self._running if self._gateway(number).member() == leader)

    def _leader_of(self, number: int) -> str:
        with contextlib.suppress(OSError):
            return self._gateway(number).leader()
        return ""

    def _gateway(self, number: int) -> Gateway:
        return Gateway(self._doors[number].address)

    def close(self) -> None:
        self.kill_all()
        for door in self._doors:
            door.close()
