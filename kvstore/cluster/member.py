"""What a node says of itself to the others of its cell."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

from kvstore.core.errors import InvalidArgument

ID_BYTES = 16
_LONGEST_TEXT = 255
_LONGEST_JSON = 8192  # bytes; ours are about 400, a later version may say more


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the cell. Raises InvalidArgument when a field cannot be right.

    ``node_id`` stays on the node's disk, ``boot_id`` is of one start of it. ``host`` names the machine: nodes that
    give the same one are on the same machine.
    """

    node_id: bytes
    boot_id: bytes
    data_address: str
    control_address: str
    host: str = ""
    zone: str = ""
    capacity_bytes: int = 0
    version: str = ""
    protocol: int = 0
    draining: bool = False

    def __post_init__(self) -> None:
        for name in ("node_id", "boot_id"):
            value = getattr(self, name)
            if type(value) is not bytes or len(value) != ID_BYTES:
                raise _bad(name, f"must be {ID_BYTES} bytes")
        for name in ("data_address", "control_address", "host", "zone", "version"):
            value = getattr(self, name)
            if type(value) is not str or len(value) > _LONGEST_TEXT:
                raise _bad(name, f"must be text of at most {_LONGEST_TEXT} characters")
        for name in ("capacity_bytes", "protocol"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise _bad(name, "must be a whole number from 0 up")
        if type(self.draining) is not bool:
            raise _bad("draining", "must be true or false")
        for name in ("data_address", "control_address"):
            split_address(getattr(self, name), name)

    def to_json(self) -> bytes:
        """One line; ids as hex digits."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(known, default=bytes.hex, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Member:
        """Fields that this version does not know are ignored, those of later versions may be missing."""
        if len(text) > _LONGEST_JSON:
            raise _bad("text", f"is {len(text)} bytes long, more than {_LONGEST_JSON}")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise _bad("text", "is not JSON") from None
        if not isinstance(found, dict):
            raise _bad("text", "is not a JSON object")
        known = {field.name: found[field.name] for field in fields(cls) if field.name in found}
        for name in ("node_id", "boot_id"):
            known[name] = _from_hex(name, known.get(name))
        for name in ("data_address", "control_address"):
            known.setdefault(name, "")
        return cls(**known)


def split_address(text: str, field: str = "address") -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port". Raises InvalidArgument that names the field."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    plain = bool(host) and not set(host) & set("[]/@, ") and (bracketed or ":" not in host)
    if not (colon and plain and port.isascii() and port.isdecimal() and 0 < int(port) < 65_536):
        raise _bad(field, f'must be like "10.0.0.1:7001" or "[::1]:7001", not {text!r}')
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The text that :func:`split_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _from_hex(name: str, value: object) -> bytes:
    try:
        return bytes.fromhex(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise _bad(name, f"must be {2 * ID_BYTES} hex digits") from None


def _bad(field: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"a member's {field} {why}", field=field)
