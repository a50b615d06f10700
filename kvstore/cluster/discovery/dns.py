"""All addresses of one DNS name, such as a headless service of Kubernetes, looked up again and again."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Callable, Iterable

from kvstore.cluster.discovery.base import Discovery, OnChange, Report, Seed
from kvstore.cluster.member import Member, join_address, split_address

_log = logging.getLogger(__name__)
_SPREAD = 0.2  # of the period, so that a cell does not ask all at once


def addresses_of(name: str) -> set[str]:
    """IPv4 and IPv6 addresses of a name. Raises OSError. Can take as long as the C library likes."""
    return {str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}


class DnsDiscovery(Discovery):
    """``name`` is "host:port" of the nodes' control planes. A lookup that finds nothing changes nothing."""

    def __init__(self, name: str, every: float = 5.0, resolve: Callable[[str], Iterable[str]] = addresses_of) -> None:
        """Raises InvalidArgument for a name without a port."""
        self._name, self._port = split_address(name, "DNS name")
        self._every = every
        self._resolve = resolve
        self._stopped = threading.Event()
        self._problem = ""

    @property
    def problem(self) -> str:
        return self._problem

    def start(self, announce: Member, on_change: OnChange) -> None:
        self._report = Report(on_change, announce.control_address)
        # Nobody waits for this thread: a resolver that hangs would keep the node from stopping.
        threading.Thread(target=self._run, name="kvstore-dns", daemon=True).start()

    def update(self, announce: Member) -> None:
        """DNS knows addresses alone."""

    def stop(self) -> None:
        self._stopped.set()
        self._report.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._look()
            self._stopped.wait(self._every * random.uniform(1.0 - _SPREAD, 1.0 + _SPREAD))

    def _look(self) -> None:
        try:
            found = set(self._resolve(self._name))
        except (OSError, UnicodeError) as error:
            return self._failed(f"cannot resolve {self._name}: {error}")
        if not found:
            return self._failed(f"{self._name} has no addresses")
        if self._problem:
            _log.info("%s is resolved again", self._name)
        self._problem = ""
        return self._report.tell(frozenset(Seed(join_address(host, self._port)) for host in found))

    def _failed(self, problem: str) -> None:
        if not self._problem:
            _log.warning("%s; the nodes that are known stay so", problem)
        self._problem = problem
