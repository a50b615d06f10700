"""Hosts of a test network: a network namespace and a TUN device each, and this process is the switch between them.

For each directed link: delay, jitter, loss, rate, up or down. A namespace has no name: it lives while this process or
one inside it does, and those inside are killed with this process. So nothing is left behind, however a test ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import heapq
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pytest

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_QUEUE = 0.05  # seconds of packets that wait for a link with a rate; further ones are dropped
_BURST = 64  # packets taken from one host before the next one's turn
_LARGEST = 65_535
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Link:
    """One direction between two hosts. Seconds, probability, bits a second (0: no bound)."""

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    rate: float = 0.0
    up: bool = True
    free_at: float = 0.0  # when all that was sent has left
    last_at: float = 0.0  # when the latest packet arrives: order is kept


class Net:
    """Hosts by name, addresses 10.77.0.1 and so on in that order."""

    def __init__(self, names: Iterable[str], mtu: int = 65_000) -> None:
        self.names = list(names)
        self.address = {name: f"10.77.0.{number}" for number, name in enumerate(self.names, 1)}
        self.links = {(a, b): Link() for a in self.names for b in self.names if a != b}
        self._by_byte = dict(enumerate(self.names, 1))
        self._spaces: dict[str, int] = {}
        self._taps: dict[str, int] = {}
        self._waiting: list[tuple[float, int, int, bytes]] = []  # when, number, where to, packet
        self._sent = 0
        self._ended = False
        for name in self.names:
            make = functools.partial(_make_host, self.address[name], mtu)
            self._spaces[name], self._taps[name] = _run_apart(make)
        self._switch = threading.Thread(target=self._run, name="netlab", daemon=True)
        self._switch.start()

    def command(self, host: str, *command: str) -> tuple[list[str], tuple[int, ...]]:
        """What to run for a process on a host, and the descriptors to pass to it. It dies with the calling thread."""
        space = self._spaces[host]
        return ["nsenter", f"--net=/proc/self/fd/{space}", "setpriv", "--pdeathsig", "KILL", *command], (space,)

    def popen(self, host: str, command: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
        whole, descriptors = self.command(host, *command)
        return subprocess.Popen(whole, pass_fds=descriptors, **options)  # type: ignore[call-overload,no-any-return]

    def connect(self, host: str, address: tuple[str, int]) -> socket.socket:
        """A connection that begins on a host. To itself, it is none of the switch's business."""
        return self.inside(host, lambda: socket.create_connection(address, 10.0))

    def inside(self, host: str, action: Callable[[], T]) -> T:
        """Runs an action in the host's namespace; sockets made there stay in it."""

        def enter() -> T:
            _checked(_libc.setns(self._spaces[host], _CLONE_NEWNET), "setns")
            return action()

        return _run_apart(enter)

    # --- what is wrong with the wires ------------------------------------------------------------------------

    def spoil(self, a: str | None = None, b: str | None = None, *, one_way: bool = False, **values: float) -> None:
        """Sets properties of the links from a to b (None: all), and of those back."""
        for (x, y), link in self.links.items():
            if (a in (None, x) and b in (None, y)) or (not one_way and a in (None, y) and b in (None, x)):
                for name, value in values.items():
                    setattr(link, name, value)

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing goes from a to b, nor back; packets that are on their way arrive."""
        self.spoil(a, b, one_way=one_way, up=False)

    def isolate(self, host: str) -> None:
        self.spoil(host, up=False)

    def heal(self) -> None:
        self.spoil(delay=0.0, jitter=0.0, loss=0.0, rate=0.0, up=True)

    # --- the switch ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        source = {tap: name for name, tap in self._taps.items()}
        with select.epoll() as poll:
            for tap in source:
                poll.register(tap, select.EPOLLIN)
            while not self._ended:
                for tap, _ in poll.poll(self._pause()):
                    self._take(source[tap], tap)
                self._deliver()

    def _pause(self) -> float:
        if not self._waiting:
            return 0.1
        return max(0.0, min(0.1, self._waiting[0][0] - time.monotonic()))

    def _take(self, host: str, tap: int) -> None:
        for _ in range(_BURST):
            try:
                packet = os.read(tap, _LARGEST)
            except OSError:  # no more; or the host is going
                return
            target = self._by_byte.get(packet[19]) if packet[0] >> 4 == 4 else None
            if target is not None and target != host:
                self._send(self.links[host, target], self._taps[target], packet)

    def _send(self, link: Link, tap: int, packet: bytes) -> None:
        if not link.up or (link.loss and random.random() < link.loss):
            return
        now = at = time.monotonic()
        if link.rate:
            if link.free_at - now > _QUEUE:
                return
            at = link.free_at = max(link.free_at, now) + len(packet) * 8 / link.rate
        at += link.delay + random.random() * link.jitter
        if at <= now and link.last_at <= now:
            _write(tap, packet)
            return
        link.last_at = at = max(at, link.last_at)
        self._sent += 1
        heapq.heappush(self._waiting, (at, self._sent, tap, packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, tap, packet = heapq.heappop(self._waiting)
            _write(tap, packet)

    def close(self) -> None:
        self._ended = True
        self._switch.join()
        for descriptor in (*self._taps.values(), *self._spaces.values()):
            os.close(descriptor)


class Forward:
    """A port of this machine's loopback that leads to an address as a host sees it: to look into a node from outside
    of the network under test."""

    def __init__(self, net: Net, host: str, address: str) -> None:
        where, _, port = address.rpartition(":")
        self._net, self._host, self._target = net, host, (where, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name=f"to {address}", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = self._net.connect(self._host, self._target)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=pair, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextlib.contextmanager
def net(names: Iterable[str]) -> Iterator[Net]:
    """A network that goes with the block."""
    missing = [tool for tool in ("ip", "nsenter", "setpriv") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        pytest.skip(f"network namespaces need root, /dev/net/tun, iproute2 and util-linux {' '.join(missing)}")
    made = Net(names)
    try:
        yield made
    finally:
        made.close()


def _make_host(address: str, mtu: int) -> tuple[int, int]:
    """A namespace around the calling thread with a TUN device in it: their descriptors."""
    _checked(_libc.unshare(_CLONE_NEWNET), "unshare")
    space = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH", b"eth0", _IFF_TUN_NO_PI))
    for command in ("link set lo up", f"addr add {address}/24 dev eth0", f"link set eth0 mtu {mtu} up"):
        subprocess.run(["ip", *command.split()], check=True)
    return space, tap


def _run_apart(action: Callable[[], T]) -> T:
    """Runs an action in a thread that ends with it, since a thread's namespace is its own."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # raised below, in the thread that asked
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def _checked(code: int, what: str) -> None:
    if code:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _write(tap: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # a full queue or a host that is going: the packet is lost
        os.write(tap, packet)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
