"""Sizes ("8GiB"), durations ("30s"), addresses ("127.0.0.1:7000"): how they are written, read and shown."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$", re.IGNORECASE)
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}ib": 1 << shift for prefix, shift in zip("kmgt", (10, 20, 30, 40), strict=True)},
    **{prefix: 1 << shift for prefix, shift in zip("kmgt", (10, 20, 30, 40), strict=True)},
    **{f"{prefix}b": 1000**power for prefix, power in zip("kmgt", (1, 2, 3, 4), strict=True)},
}
_CELL = r"[A-Za-z0-9._-]{1,64}"
_DURATION_UNITS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_size(value: object) -> int:
    """Bytes of "8GiB", "64 MiB", "4k" (powers of 1024), "8GB" (powers of 1000) or a number. Raises ValueError."""
    amount, unit = _amount(value, _SIZE_UNITS, 'a size such as "8GiB"')
    return int(amount * unit)


def parse_duration(value: object) -> float:
    """Seconds of "30s", "500ms", "5m", "1h" or a number of seconds. Raises ValueError."""
    amount, unit = _amount(value, _DURATION_UNITS, 'a duration such as "30s"')
    return amount * unit


def _amount(value: object, units: dict[str, int] | dict[str, float], wanted: str) -> tuple[float, float]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    found = _SIZE.match(value) if isinstance(value, str) else None
    if found is None or found[2].lower() not in units:
        raise ValueError(f"{value!r} is not {wanted}")
    return float(found[1]), units[found[2].lower()]


def show_size(count: int) -> str:
    """Bytes for people: exact when a power of two divides them ("64MiB"), else with one digit ("1.9 GiB")."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift:
            exact = count % (1 << shift) == 0
            return f"{count >> shift}{unit}" if exact else f"{count / (1 << shift):.1f} {unit}"
    return f"{count}B"


def show_duration(seconds: float) -> str:
    """Seconds for people and for a file: "30s", "500ms"."""
    return f"{seconds * 1000:g}ms" if seconds < 1 else f"{seconds:g}s"


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a listening socket; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d{1,3}){3}", self.host))


def parse_address(value: object) -> Address | None:
    """Address of "host:port" or "[v6]:port"; None for "off". Raises ValueError."""
    text = str(value).strip()
    if text.lower() == "off":
        return None
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f'{text!r} is not an address such as "127.0.0.1:7000" (or "off")')
    return Address(host, int(port))


@dataclass(frozen=True, slots=True)
class Discovery:
    """Where the other nodes are looked for. ``scheme``: static, dns, etcd, or etcds (etcd with TLS).

    ``addresses``: control planes of nodes, one name with its port, or etcd's servers. ``cell``: which one, in etcd.
    """

    scheme: str
    addresses: tuple[Address, ...]
    cell: str = ""

    def __str__(self) -> str:
        path = f"/{self.cell}" if self.cell else ""
        return f"{self.scheme}://{','.join(map(str, self.addresses))}{path}"


def parse_discovery(value: object) -> Discovery | None:
    """None for "off". Raises ValueError."""
    text = str(value).strip()
    if text.lower() == "off":
        return None
    scheme, _, rest = text.partition("://")
    listed, slash, cell = rest.partition("/")
    etcd = scheme in ("etcd", "etcds")
    fits = scheme in ("static", "dns") or etcd
    if not (fits and listed) or (slash and not etcd) or (slash and not re.fullmatch(_CELL, cell)):
        raise ValueError(
            f'{text!r} is none of "static://HOST:PORT,HOST:PORT", "dns://NAME:PORT", "etcd://HOST:PORT/CELL" and "off"'
        )
    addresses = tuple(address for part in listed.split(",") if (address := parse_address(part)) is not None)
    if len(addresses) < len(listed.split(",")) or not all(address.port for address in addresses):
        raise ValueError(f"{text!r} names an address without a port")
    if scheme == "dns" and len(addresses) > 1:
        raise ValueError(f"{text!r} has several names; dns:// takes one, of which all addresses are used")
    return Discovery(scheme, addresses, (cell or "default") if etcd else "")
