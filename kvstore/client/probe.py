"""Whether a node that was away has come back: looked at cheaply, so that a back-off need not be waited for."""

from __future__ import annotations

import os
import socket
import time

from kvstore.transport.wire import Address

_CONNECT_SECONDS = 0.02  # a host that does not answer costs one call this, each half second


class Probe:
    """Of one address that could not be reached. A unix socket that was there when it failed has to be another one."""

    def __init__(self, address: Address, every: float) -> None:
        self._address = address
        self._every = every
        self._next = time.monotonic() + every
        self._failed_with = _identity(address.path)

    def answers(self) -> bool:
        """Looks now, unless it has just looked."""
        if self._address.local:
            there = _identity(self._address.path)
            if there is None or there == self._failed_with:
                return False
            self._failed_with = there  # seen: if it fails too, the back-off holds
            return True
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._every
        return _listens(self._address)


def _identity(path: str) -> tuple[int, int, int] | None:
    """What tells a socket file from its successor (an inode number may be used again)."""
    if not path:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _listens(address: Address) -> bool:
    """A literal address alone: names would have to be looked up, and that may take long."""
    host = "127.0.0.1" if address.host == "localhost" else address.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
    except OSError:
        return False
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        return not probe.connect_ex((host, address.port))
