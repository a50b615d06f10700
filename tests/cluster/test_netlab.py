"""The test network does what its users ask of it, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.netlab import Forward, Net, net
from tests.integration.nodes import wait_for

PORT = 5000
ROOT = Path(__file__).resolve().parents[2]
KILLED = """
import time
from tests.cluster.netlab import Net
made = Net("ab")
inner = made.popen("a", ["sleep", "600"])
print(inner.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Net]:
    with net("abc") as made:
        yield made


@pytest.fixture(autouse=True)
def healed(lab: Net) -> Iterator[None]:
    yield
    lab.heal()


class Probe:
    """Numbered datagrams from one host to another."""

    def __init__(self, lab: Net, source: str, target: str) -> None:
        self._out = lab.inside(source, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._in = lab.inside(target, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._in.bind((lab.address[target], 0))
        self._in.settimeout(0.3)

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()
        self._in.close()

    def arrived(self, count: int) -> list[int]:
        for number in range(count):
            self._out.sendto(number.to_bytes(4, "little"), self._in.getsockname())
            time.sleep(0.0005)
        found: list[int] = []
        try:
            while len(found) < count:
                found.append(int.from_bytes(self._in.recv(64), "little"))
        except TimeoutError:
            pass
        return found

    def seconds(self) -> float:
        began = time.monotonic()
        assert self.arrived(1)
        return time.monotonic() - began


def test_hosts_reach_each_other(lab: Net) -> None:
    for source, target in lab.links:
        with Probe(lab, source, target) as probe:
            assert probe.arrived(20) == list(range(20))


def test_a_cut_is_both_ways_or_one_way_and_for_these_two_alone(lab: Net) -> None:
    with Probe(lab, "a", "b") as there, Probe(lab, "b", "a") as back, Probe(lab, "a", "c") as other:
        lab.cut("a", "b", one_way=True)
        assert (len(there.arrived(5)), len(back.arrived(5)), len(other.arrived(5))) == (0, 5, 5)
        lab.heal()
        lab.cut("a", "b")
        assert (len(there.arrived(5)), len(back.arrived(5)), len(other.arrived(5))) == (0, 0, 5)
        lab.heal()
        lab.isolate("a")
        assert (len(there.arrived(5)), len(back.arrived(5)), len(other.arrived(5))) == (0, 0, 0)
        lab.heal()
        assert len(there.arrived(5)) == len(back.arrived(5)) == 5


def test_a_cut_holds_for_connections_that_are_open(lab: Net) -> None:
    listener = lab.inside("b", lambda: socket.create_server((lab.address["b"], PORT)))
    with listener, lab.connect("a", (lab.address["b"], PORT)) as near, listener.accept()[0] as far:
        far.settimeout(0.3)
        lab.cut("a", "b")
        near.sendall(b"late")
        with pytest.raises(TimeoutError):
            far.recv(4)
        lab.heal()
        far.settimeout(30.0)
        assert far.recv(4) == b"late"


def test_delay_jitter_and_loss_are_of_a_direction(lab: Net) -> None:
    lab.spoil("a", "b", one_way=True, delay=0.05, jitter=0.05, loss=0.3)
    with Probe(lab, "b", "a") as back:
        assert back.arrived(100) == list(range(100))
    with Probe(lab, "a", "b") as there:
        found = there.arrived(300)
        assert 150 < len(found) < 260
        assert found == sorted(found)
    lab.spoil("a", "b", one_way=True, loss=0.0)
    with Probe(lab, "a", "b") as there:
        assert there.seconds() >= 0.05


def test_a_rate_bounds_what_goes_through(lab: Net) -> None:
    lab.spoil("a", "b", one_way=True, rate=8e5)  # 100 bytes a millisecond
    listener = lab.inside("b", lambda: socket.create_server((lab.address["b"], PORT)))
    with listener, lab.connect("a", (lab.address["b"], PORT)) as near, listener.accept()[0] as far:
        began = time.monotonic()
        writer = threading.Thread(target=near.sendall, args=(bytes(50_000),))
        writer.start()
        got = 0
        while got < 50_000:
            got += len(far.recv(1 << 16))
        writer.join()
        assert time.monotonic() - began > 0.3


def test_a_forward_leads_to_a_host_that_is_cut_off(lab: Net) -> None:
    lab.isolate("c")
    listener = lab.inside("c", lambda: socket.create_server((lab.address["c"], PORT)))
    forward = Forward(lab, "c", f"{lab.address['c']}:{PORT}")
    host, _, port = forward.address.rpartition(":")
    with listener, socket.create_connection((host, int(port))) as near, listener.accept()[0] as far:
        near.sendall(b"ask")
        assert far.recv(3) == b"ask"
        far.sendall(b"answer")
        assert near.recv(6) == b"answer"
    forward.close()


def test_a_network_whose_process_is_killed_leaves_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    inner = int(process.stdout.readline())
    wait_for(lambda: Path(f"/proc/{inner}/comm").read_text() == "sleep\n", "the process on the host")
    space = os.stat(f"/proc/{inner}/ns/net").st_ino
    assert space != os.stat("/proc/self/ns/net").st_ino
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_for(lambda: space not in spaces(), "all that was in the namespace to end")


def spaces() -> set[int]:
    """Network namespaces in which a process is, or that are mounted somewhere."""
    found = set()
    for path in [*Path("/proc").glob("[0-9]*/ns/net"), *Path("/run/netns").glob("*")]:
        try:
            found.add(path.stat().st_ino)
        except OSError:  # it has ended
            continue
    return found
