"""Namespaces: everything that must agree for two KV blocks to be interchangeable.

The canonical form is JSON with sorted keys; its blake2b-128 (personalised) is the root, the parent of the
first key of every chain. Two specs that differ in any field have different roots, so they can never meet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvstore.core.errors import InvalidArgument

FORMAT = 1  # of the canonical form and of the payload; part of every root
MAX_PARTS = 64  # the index keeps the parts of a block in one 64-bit mask
MAX_PART_BYTES = 1 << 40
MAX_CANONICAL_BYTES = 16_000
PartKind = Literal["prefix", "window", "state"]
_PERSON = b"kvstore.ns.v1"


@dataclass(frozen=True, slots=True)
class PartSpec:
    """What one engine rank contributes to a block.

    ``bytes``: size of the part. ``layers``: when set, the part is that many equal layers and each is one
    checksum chunk. ``kind``: ``prefix`` parts are needed for every block of a hit; ``window`` and ``state``
    parts may have holes.
    """

    name: str
    bytes: int
    group: str = "full"
    kind: PartKind = "prefix"
    layers: int | None = None


@dataclass(frozen=True, slots=True)
class NamespaceSpec:
    """Identity of a family of blocks. Raises :class:`InvalidArgument` naming the field that is wrong.

    ``block_bytes`` is a short form for one part called "0"; give either it or ``parts``.
    ``extra`` takes whatever else must agree (attention backend, rope configuration, TP and PP size ...).
    """

    model: str
    block_tokens: int
    block_bytes: int = 0
    weights_generation: str = ""
    kv_dtype: str = ""
    layout: str = ""
    tenant: str = "default"
    parts: tuple[PartSpec, ...] = ()
    hash_scheme: str = "kvstore-blake2b-128"
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = _row(self.parts)
        _must_be(int, {"block_tokens": self.block_tokens, "block_bytes": self.block_bytes})
        if not parts and not self.block_bytes:
            raise InvalidArgument("a namespace needs the size of its blocks: give block_bytes or parts", field="parts")
        object.__setattr__(self, "parts", parts or (PartSpec("0", self.block_bytes),))
        object.__setattr__(self, "extra", _texts(self.extra))
        _check_types(self)
        given, total = self.block_bytes, sum(part.bytes for part in self.parts)
        if given not in (0, total):
            raise InvalidArgument(
                f"block_bytes is {given}, but the parts have {total} bytes; give only one", field="block_bytes"
            )
        object.__setattr__(self, "block_bytes", total)
        self._check()

    def _check(self) -> None:
        for name in ("model", "tenant"):
            if not getattr(self, name):
                raise InvalidArgument(f"namespace field {name!r} is empty", field=name)
        if not 1 <= self.block_tokens <= 65_536:
            raise InvalidArgument(f"block_tokens must be 1 to 65536, not {self.block_tokens}", field="block_tokens")
        if len(self.parts) > MAX_PARTS:
            raise InvalidArgument(f"a namespace has at most {MAX_PARTS} parts, not {len(self.parts)}", field="parts")
        if len({part.name for part in self.parts}) != len(self.parts):
            raise InvalidArgument("part names must differ from each other", field="parts")
        for part in self.parts:
            _check_part(part)
        if not any(part.kind == "prefix" for part in self.parts):
            raise InvalidArgument("a namespace needs at least one part of kind 'prefix'", field="parts")
        if len(self.canonical()) > MAX_CANONICAL_BYTES:
            raise InvalidArgument(
                f"the canonical form takes {len(self.canonical())} bytes, at most {MAX_CANONICAL_BYTES} are kept; "
                "put a digest of the long field there instead",
                field="extra",
            )

    def canonical(self) -> bytes:
        """The canonical form: UTF-8 JSON, sorted keys, no spaces."""
        value = {
            "format": FORMAT,
            "model": self.model,
            "weights_generation": self.weights_generation,
            "block_tokens": self.block_tokens,
            "kv_dtype": self.kv_dtype,
            "layout": self.layout,
            "tenant": self.tenant,
            "hash_scheme": self.hash_scheme,
            "parts": [
                {"name": p.name, "bytes": p.bytes, "group": p.group, "kind": p.kind, "layers": p.layers}
                for p in self.parts
            ],
            "extra": dict(self.extra),
        }
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"a namespace field is not valid Unicode: {error}", field="canonical") from None

    @property
    def root(self) -> bytes:
        """The 16-byte root."""
        return root_of(self.canonical())


def root_of(canonical: bytes) -> bytes:
    """blake2b-128 of a canonical form."""
    return hashlib.blake2b(canonical, digest_size=16, person=_PERSON).digest()


def parse_canonical(canonical: bytes) -> NamespaceSpec:
    """The spec of a canonical form. Raises InvalidArgument unless it is exactly canonical."""
    if len(canonical) > MAX_CANONICAL_BYTES:
        raise InvalidArgument(
            f"a canonical form of {len(canonical)} bytes, at most {MAX_CANONICAL_BYTES} are kept", field="canonical"
        )
    try:
        value: dict[str, Any] = json.loads(canonical)
        if value.pop("format") != FORMAT:
            raise InvalidArgument(f"namespace format is not {FORMAT}; use the same kvstore version", field="format")
        parts = tuple(PartSpec(**part) for part in value.pop("parts"))
        spec = NamespaceSpec(parts=parts, **value)
    except InvalidArgument:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidArgument(f"not the canonical form of a namespace: {error}", field="canonical") from None
    if spec.canonical() != canonical:
        raise InvalidArgument("not the canonical form of a namespace: key order or spelling differs", field="canonical")
    return spec


def differing_fields(a: NamespaceSpec, b: NamespaceSpec) -> list[str]:
    """Names of the fields in which two specs differ; entries of ``extra`` as ``extra.NAME``."""
    names = ("model", "weights_generation", "block_tokens", "kv_dtype", "layout", "tenant", "hash_scheme", "parts")
    found = [name for name in names if getattr(a, name) != getattr(b, name)]
    for name in sorted({*a.extra, *b.extra}):
        if a.extra.get(name) != b.extra.get(name):
            found.append(f"extra.{name}")
    return found


def _row(parts: object) -> tuple[Any, ...]:
    if isinstance(parts, (list, tuple)):
        return tuple(parts)
    raise InvalidArgument(f"namespace field 'parts' takes PartSpecs, not {type(parts).__name__}", field="parts")


def _texts(extra: object) -> dict[str, str]:
    """``extra`` as a plain dict. Numbers and the like are refused: 1 and "1" must not be two spellings of one thing."""
    if not isinstance(extra, Mapping):
        raise InvalidArgument(
            f"namespace field 'extra' takes a mapping of str to str, not {type(extra).__name__}", field="extra"
        )
    for key, value in extra.items():
        if not isinstance(key, str) or not isinstance(value, str):
            wrong = value if isinstance(key, str) else key
            raise InvalidArgument(
                f"namespace field 'extra' takes str to str; at key {key!r} there is {type(wrong).__name__}",
                field=f"extra.{key}",
            )
    return dict(extra)


def _check_types(spec: NamespaceSpec) -> None:
    """A canonical form comes from the network: a float or a bool where a number belongs must not get further."""
    texts = ("model", "weights_generation", "kv_dtype", "layout", "tenant", "hash_scheme")
    _must_be(str, {name: getattr(spec, name) for name in texts})
    _must_be(int, {"block_tokens": spec.block_tokens, "block_bytes": spec.block_bytes})
    for part in spec.parts:
        _must_be(PartSpec, {"parts": part})
        _must_be(str, {"parts": part.name}, {"parts": part.group}, {"parts": part.kind})
        _must_be(int, {"parts": part.bytes}, {"parts": 1 if part.layers is None else part.layers})


def _must_be(kind: type, *values: Mapping[str, object]) -> None:
    for name, value in (item for group in values for item in group.items()):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InvalidArgument(
                f"namespace field {name!r} takes {kind.__name__}, not {type(value).__name__}", field=name
            )


def _check_part(part: PartSpec) -> None:
    if part.kind not in ("prefix", "window", "state"):
        raise InvalidArgument(
            f"part {part.name!r}: kind must be prefix, window or state, not {part.kind!r}", field="parts"
        )
    if not 0 < part.bytes <= MAX_PART_BYTES:
        raise InvalidArgument(
            f"part {part.name!r}: bytes must be 1 to {MAX_PART_BYTES}, not {part.bytes}", field="parts"
        )
    if part.layers is not None and (part.layers < 1 or part.bytes % part.layers):
        raise InvalidArgument(
            f"part {part.name!r}: {part.bytes} bytes cannot be cut into {part.layers} equal layers", field="parts"
        )
