"""Nodes that know each other, for a benchmark: what they sent, hold and cost, as they count and the kernel does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from kvstore import Client, errors
from kvstore.cli.bench import worker
from kvstore.cli.bench.ceilings import Pass, prefaulted, socket_pass
from kvstore.cli.bench.node import OwnNode
from kvstore.cli.control import control
from kvstore.v1 import control_pb2 as pb

CALL_TIMEOUT = 60.0
PATIENCE = 180.0
_BUFFERS = 16
_BUFFER_BYTES = 2 << 20
_POLL = 0.02


class CellNode:
    """One node. ``control`` and ``http``: its addresses."""

    def __init__(self, target: str, control: str, http: str, node: OwnNode) -> None:
        self.target, self.control, self.http, self._node = target, control, http, node

    @property
    def pid(self) -> int:
        return self._node.pid

    def client(self) -> Client:
        """By shared memory."""
        return Client(self.target, timeout=CALL_TIMEOUT, on_failure="raise")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def sees(self) -> int:
        """Other nodes that live, as it knows."""
        with control(f"grpc://{self.control}", CALL_TIMEOUT) as stub:
            peers = stub.ClusterStatus(pb.ClusterStatusRequest()).peers
        return sum(peer.state == "live" for peer in peers)

    def sent(self) -> float:
        """Bytes of blocks that it sent to whoever is not on its machine's memory."""
        lines = self._metrics("kvstore_sent_bytes_total")
        return sum(value for labels, value in lines if 'transport="shm"' not in labels)

    def held(self) -> float:
        """Bytes of blocks that can be read there."""
        return sum(value for _, value in self._metrics("kvstore_ready_bytes"))

    def _metrics(self, family: str) -> list[tuple[str, float]]:
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=CALL_TIMEOUT) as reply:
            lines = reply.read().decode().splitlines()
        found = [line.rpartition(" ") for line in lines if line.split("{")[0].split(" ")[0] == family]
        return [(name, float(value)) for name, _, value in found]


@contextmanager
def cell(count: int, capacity: int, **settings: str | float) -> Iterator[list[CellNode]]:
    """Nodes that all see each other, as if each were on a machine of its own."""
    with ExitStack() as stack:
        ports = [f"127.0.0.1:{port}" for port in _free_ports(2 * count)]
        controls, https = ports[:count], ports[count:]
        shared = {"discovery": f"static://{','.join(controls)}", **settings}
        nodes = []
        for nth, (address, http) in enumerate(zip(controls, https, strict=True)):
            own = {"control_address": address, "http_address": http, "host_name": f"bench-{nth}"}
            node = OwnNode(capacity, {**shared, **own})
            target, _ = stack.enter_context(node)
            nodes.append(CellNode(target, address, http, node))
        awaited(lambda: all(node.sees() == count - 1 for node in nodes), "all nodes to see each other")
        yield nodes


def awaited(condition: Callable[[], bool], what: str) -> float:
    """When it came true, by ``time.perf_counter``. Raises DeadlineExceeded."""
    end = time.perf_counter() + PATIENCE
    while not condition():
        if time.perf_counter() > end:
            raise errors.DeadlineExceeded(f"waited {PATIENCE:.0f} s in vain for {what}")
        time.sleep(_POLL)
    return time.perf_counter()


def cpu_seconds(pids: Sequence[int], action: Callable[[], None]) -> float:
    """CPU time that this process and others take while ``action`` runs."""
    before = sum(map(_ran, [os.getpid(), *pids]))
    action()
    return sum(map(_ran, [os.getpid(), *pids])) - before


def _ran(pid: int) -> float:
    """Seconds that the threads of a process ran so far; those that ended meanwhile are not in it."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def raw_sockets(stack: ExitStack, length: int) -> tuple[int, Pass]:
    """A process that does nothing but send, its id, and ``length`` bytes received from it over one connection."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=worker.peer, args=(theirs, length), daemon=True)
    process.start()
    stack.callback(process.kill)
    stack.callback(ours.close)
    lane = stack.enter_context(socket.create_connection(ours.recv()))
    buffers = [prefaulted(_BUFFER_BYTES) for _ in range(min(_BUFFERS, length // _BUFFER_BYTES))]
    return process.pid or 0, lambda: socket_pass([lane], length, buffers, put=False)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]
