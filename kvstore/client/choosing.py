"""Which transport a session uses: what the caller wants, what both sides have, best first."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from kvstore.core.errors import InvalidArgument, KVStoreError, Unavailable, Unsupported
from kvstore.transport.base import Transport
from kvstore.transport.fabric.affinity import Host, fabric_devices, near, read_tree
from kvstore.transport.fabric.library import installed
from kvstore.transport.shm import ShmTransport
from kvstore.transport.tcp import TcpTransport
from kvstore.transport.wire import Address

TransportName: TypeAlias = Literal["auto", "shm", "nixl", "ucx", "tcp"]
NAMES: tuple[str, ...] = get_args(TransportName)
Warn: TypeAlias = Callable[[str, str], None]


def checked(kind: str) -> str:
    """Raises InvalidArgument."""
    if kind not in NAMES:
        raise InvalidArgument(f"transport must be one of {', '.join(NAMES)}, not {kind!r}", field="transport")
    return kind


def order(kind: str, local: bool) -> tuple[str, ...]:
    """What is tried at an address, in order."""
    if kind != "auto":
        return (kind,)
    return ("shm", "tcp") if local else ("tcp",)


def better(offered: Collection[str], rdma_there: bool, have: Collection[str], rdma_here: bool) -> str:
    """What ``auto`` takes instead of tcp; empty: nothing. Without RDMA the fabric libraries are slower."""
    if not (rdma_here and rdma_there):
        return ""
    return next((kind for kind in ("nixl", "ucx") if kind in offered and kind in have), "")


def same_host(address: Address) -> bool:
    """Whether an address can only be of this host."""
    if address.local or address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def open_transport(kind: str, address: Address, deadline: float, wires: int, warn: Warn) -> Transport:
    """A session. Raises NotServed, ProtocolError, Unsupported."""
    names = order(kind, address.local)
    for name in names[:-1]:
        try:
            return make(name, address, deadline, wires)
        except (Unsupported, OSError) as error:
            warn(name, f"{address}: memory cannot be shared ({error}); bytes go over the socket")
    try:
        transport = make(names[-1], address, deadline, wires)
    except OSError as error:
        raise Unavailable(str(error)) from error
    return _improved(transport, deadline, wires, warn) if kind == "auto" and not address.local else transport


def _improved(transport: Transport, deadline: float, wires: int, warn: Warn) -> Transport:
    hello = transport.hello
    have = [kind for kind in ("nixl", "ucx") if installed(kind)]
    kind = better(hello.transports, hello.rdma, have, bool(_host().rdma))
    if not kind:
        return transport
    try:
        found = make(kind, transport.address, deadline, wires)
    except KVStoreError as error:
        warn(kind, f"{transport.address}: {kind} does not work ({error}); bytes go over TCP")
        return transport
    transport.close()
    return found


def make(name: str, address: Address, deadline: float, wires: int) -> Transport:
    """A session of one transport."""
    client = f"kvstore-python pid {os.getpid()}"
    if name == "shm":
        return ShmTransport(address, deadline, max_wires=wires, client=client)
    if name == "tcp":
        return TcpTransport(address, deadline, max_wires=wires, client=client)
    devices = fabric_devices(same_host(address), near(_host()))
    if name == "nixl":
        from kvstore.transport.nixl import NixlTransport

        return NixlTransport(address, deadline, max_wires=wires, client=client, devices=devices)
    from kvstore.transport.ucx import UcxTransport

    return UcxTransport(address, deadline, max_wires=wires, client=client, devices=devices)


@lru_cache(maxsize=1)
def _host() -> Host:
    return read_tree(Path("/sys"))
