"""Targets: where the node is. ``auto``, ``unix://PATH``, ``kv://HOST[:PORT][,HOST[:PORT]]``, ``dns://NAME[:PORT]`` or
``etcd://HOST:PORT[,HOST:PORT]/CELL`` (``etcds://`` with TLS)."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvstore.client.locality import is_local
from kvstore.core.errors import InvalidArgument
from kvstore.transport.wire import Address, resolve

DATA_PORT = 7000


@dataclass(frozen=True, slots=True)
class Target:
    """``addresses`` are tried in order, those of this machine first; with ``name`` or ``etcd`` (its endpoints) they are
    what that says at each connect, in any order."""

    text: str
    addresses: tuple[Address, ...]
    name: str = ""
    port: int = DATA_PORT
    etcd: tuple[str, ...] = ()
    tls: bool = False
    cell: str = ""

    @property
    def routed(self) -> bool:
        """Whether the client is not bound to a node on its own machine."""
        return bool(self.name or self.etcd) or any(not address.local for address in self.addresses)

    def resolved(self, deadline: float) -> list[Address]:
        """Addresses to try. Raises Unavailable or DeadlineExceeded when a name cannot be resolved."""
        if self.etcd:
            from kvstore.client.etcd_target import data_addresses  # it needs grpc

            found = [address_of(text) for text in data_addresses(self.etcd, self.tls, self.cell, deadline)]
        elif self.name:
            found = [Address(host=str(host[0]), port=self.port) for host in _hosts(self.name, self.port, deadline)]
        else:
            return near_first(self.addresses)
        random.shuffle(found)  # else all clients had the same home node
        return near_first(found)


def near_first(addresses: Iterable[Address]) -> list[Address]:
    """Those of this machine come first."""
    return sorted(addresses, key=lambda address: not (address.local or is_local(address.host)))


def _hosts(name: str, port: int, deadline: float) -> list[tuple[str, ...]]:
    return [target for _, target in resolve(name, port, deadline)]  # type: ignore[misc]


def default_socket() -> Path:
    """Where a node of this user listens unless told otherwise."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) / "kvstore" if runtime else Path(tempfile.gettempdir()) / f"kvstore-{os.getuid()}"
    return base / "node.sock"


def client_target(text: str | None) -> Target:
    """The target of a client: without one (None, ``auto``) that of KVSTORE_TARGET, as for the commands."""
    named = os.environ.get("KVSTORE_TARGET", "") if text is None or text == "auto" else ""
    try:
        return parse_target(named or ("auto" if text is None else text))
    except InvalidArgument as error:
        raise InvalidArgument(f"KVSTORE_TARGET: {error}" if named else str(error), field="target") from None


def parse_target(text: str) -> Target:
    """Raises InvalidArgument that names the bad part and shows a good one."""
    if not isinstance(text, str):
        raise InvalidArgument(f"target must be text, not {type(text).__name__}", field="target")
    if text == "auto":
        return Target(text, (Address(path=str(default_socket())), Address(host="127.0.0.1", port=DATA_PORT)))
    scheme, found, rest = text.partition("://")
    if not found:
        raise _bad(text, "it has no scheme")
    if not rest:
        raise _bad(text, f"it names nothing behind {scheme}://")
    if scheme == "unix":
        return Target(text, (Address(path=rest),))
    if scheme == "kv":
        return Target(text, tuple(Address(host=host, port=port) for host, port in map(_endpoint, rest.split(","))))
    if scheme == "dns":
        name, port = _endpoint(rest)
        return Target(text, (), name, port)
    if scheme in ("etcd", "etcds"):
        endpoints, _, cell = rest.partition("/")
        if not cell or "/" in cell:
            raise _bad(text, "it names no cell, as in etcd://10.0.0.9:2379/CELL")
        for endpoint in endpoints.split(","):
            _endpoint(endpoint)
        return Target(text, (), etcd=tuple(endpoints.split(",")), tls=scheme == "etcds", cell=cell)
    raise _bad(text, f"the scheme {scheme!r} is unknown")


def address_of(text: str) -> Address:
    """The address of "host:port" or "[v6]:port". Raises InvalidArgument."""
    host, port = _endpoint(text)
    return Address(host=host, port=port)


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = (
        text.strip().rpartition(":") if text.strip().count(":") == 1 or "]:" in text else (text.strip(), "", "")
    )
    if port and not (port.isdecimal() and 0 < int(port) < 65_536):
        raise _bad(text, f"{port!r} is no port")
    host = host.strip("[]")
    if not host:
        raise _bad(text, "it names no host")
    return host, int(port) if port else DATA_PORT


def _bad(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"target {text!r}: {why}; use 'auto', 'unix:///run/kvstore/node.sock', 'kv://host:7000', 'dns://name:7000' or "
        "'etcd://host:2379/cell'",
        field="target",
    )
