"""Real etcd servers for tests: each a process of its own, its data in memory."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.etcd.certificates import Certificates
from tests.cluster.etcd.gateway import Gateway

PATIENCE = 30.0  # seconds after which a test gives up; nothing is measured with it


@dataclass
class Server:
    """One etcd. Its ports stay when it is restarted."""

    name: str
    folder: Path
    client_port: int
    peer_port: int
    certificates: Certificates | None
    options: Sequence[str]
    cluster: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def gateway(self) -> Gateway:
        return Gateway(self.address, self.certificates)

    def start(self) -> None:
        scheme = "https" if self.certificates else "http"
        client, peer = f"{scheme}://{self.address}", f"http://127.0.0.1:{self.peer_port}"
        command = ["etcd", "--name", self.name, "--data-dir", str(self.folder / self.name)]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", self.cluster, "--heartbeat-interval", "50", "--election-timeout", "500"]
        command += [*(self.certificates.etcd_options() if self.certificates else ()), *self.options]
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.process = None

    def wipe(self) -> None:
        shutil.rmtree(self.folder / self.name)


class Etcd:
    """One or three servers."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(server.address for server in self.servers)

    @property
    def gateway(self) -> Gateway:
        """Of the first server that runs."""
        return next(server for server in self.servers if server.process is not None).gateway

    def start(self) -> None:
        for server in self.servers:
            if server.process is None:
                server.start()
        wait_for(self.healthy, "etcd is healthy")

    def kill(self) -> None:
        for server in self.servers:
            if server.process is not None:
                server.kill()

    def healthy(self) -> bool:
        """Whether all that run answer, and know a leader."""
        with contextlib.suppress(OSError):
            return all(server.gateway.leader() for server in self.servers if server.process is not None)
        return False

    def leader(self) -> Server:
        leaders = {server.gateway.leader() for server in self.servers if server.process is not None}
        return next(server for server in self.servers if server.process and server.gateway.member() in leaders)


@contextlib.contextmanager
def etcd(members: int = 1, certificates: Certificates | None = None, options: Sequence[str] = ()) -> Iterator[Etcd]:
    """A running etcd that goes with the block."""
    if shutil.which("etcd") is None:
        pytest.skip("there is no etcd on this machine: apt-get install etcd-server")
    folder = Path(tempfile.mkdtemp(prefix="kvstore-etcd-", dir="/dev/shm"))
    ports = free_ports(2 * members)
    servers = [
        Server(f"m{number}", folder, ports[2 * number], ports[2 * number + 1], certificates, options)
        for number in range(members)
    ]
    for server in servers:
        server.cluster = ",".join(f"{one.name}=http://127.0.0.1:{one.peer_port}" for one in servers)
    running = Etcd(servers)
    try:
        running.start()
        yield running
    finally:
        running.kill()
        shutil.rmtree(folder)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [sock.getsockname()[1] for sock in sockets]


def wait_for(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> float:
    """Seconds until the condition came true."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < patience, f"not so within {patience:g} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began
