"""What lies on the disk, format v1: the directory's format file, the index entry, the trailer of a slot.

All little-endian. A slot is the part's bytes padded to 4 KiB, then a trailer of 4 KiB or more that says whose bytes
these are and holds one checksum a chunk. It is written with the bytes, in one call, so that a read needs no index.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from kvstore.core.errors import ConfigError
from kvstore.tiers.tier import GRANULE, U64Array

FORMAT = 1
FORMAT_FILE = "format.json"
LOCK_FILE = "lock"
PROBE_FILE = "probe"
INDEX_DIRECTORY = "index"
EntryArray: TypeAlias = npt.NDArray[np.void]  # of dtype ENTRY

ENTRY = np.dtype(
    [
        ("slot", "<u4"),
        ("generation", "<u4"),
        ("key", "<u8", (2,)),
        ("parent", "<u8", (2,)),
        ("digest", "<u8"),  # of the chunk checksums
        ("block", "<u4"),
        ("length", "<u4"),
        ("stamp", "<u4"),  # seconds since the epoch
        ("namespace", "<u2"),
        ("importance", "<u2"),
        ("chunks", "<u2"),
        ("part", "u1"),
        ("reserved", "u1"),
        ("granules", "<u4"),  # that the slot takes, trailer included
        ("check", "<u8"),  # over all before it
    ]
)
ENTRY_BYTES = ENTRY.itemsize
_WORDS = ENTRY_BYTES // 8 - 1
_ODD = np.array([(0x9E3779B97F4A7C15 * (2 * i + 1)) & (2**64 - 1) for i in range(_WORDS)], dtype=np.uint64)


def _check(entries: EntryArray) -> U64Array:
    # an odd factor a word: any change within one word changes the sum, and the shifts spread it
    words = entries.view("<u8").reshape(len(entries), _WORDS + 1)[:, :_WORDS]
    total: U64Array = (words * _ODD).sum(axis=1, dtype=np.uint64) + np.uint64(FORMAT)
    total ^= total >> np.uint64(32)
    total *= np.uint64(0xD6E8FEB86659FD93)
    total ^= total >> np.uint64(32)
    return total


def seal(entries: EntryArray) -> EntryArray:
    """Fills the check word of each entry; returns the same array."""
    entries["check"] = _check(entries)
    return entries


def intact(entries: EntryArray) -> npt.NDArray[np.bool_]:
    """Which entries carry the right check word, shape (n,)."""
    good: npt.NDArray[np.bool_] = entries["check"] == _check(entries)
    return good


def digest(sums: U64Array, generation: int) -> int:
    """One number for a slot's chunk checksums: what the index entry keeps of them."""
    return xxhash.xxh3_64_intdigest(memoryview(sums).cast("B"), generation)


# --- trailer ---------------------------------------------------------------------------------------------------

_MAGIC = b"KVSSLOT1"
_TRAILER = struct.Struct("<8sQIIQII16s16s16sIHBx")  # 96 bytes, then the checksums
_SUMS_AT = 128


class Trailer(NamedTuple):
    """What a slot says about itself. ``length`` and ``chunk`` in bytes."""

    slot: int
    generation: int
    length: int
    chunk: int
    block: int
    root: bytes
    key: bytes
    parent: bytes
    importance: int
    part: int
    sums: U64Array


def round_up(value: int, unit: int = GRANULE) -> int:
    """The smallest multiple of ``unit`` that is not below ``value``."""
    return -(-value // unit) * unit


def trailer_bytes(chunks: int) -> int:
    """Size of the trailer of a slot with that many checksums."""
    return round_up(_SUMS_AT + 8 * chunks)


def stride_bytes(slot_bytes: int, chunks: int) -> int:
    """What a slot takes on disk."""
    return round_up(slot_bytes) + trailer_bytes(chunks)


def pack_trailer(into: memoryview, trailer: Trailer) -> None:
    """Writes a trailer over all of ``into`` (the rest is zero)."""
    t, count = trailer, len(trailer.sums)
    end = _SUMS_AT + 8 * count
    fields = (t.slot, t.generation, t.length, t.chunk, count, t.root, t.key, t.parent, t.block, t.importance, t.part)
    _TRAILER.pack_into(into, 0, _MAGIC, 0, *fields)
    into[_TRAILER.size : _SUMS_AT] = bytes(_SUMS_AT - _TRAILER.size)
    into[_SUMS_AT:end] = memoryview(t.sums).cast("B")
    into[end:] = bytes(len(into) - end)
    struct.pack_into("<Q", into, 8, xxhash.xxh3_64_intdigest(into[16:end]))


def read_trailer(data: memoryview) -> Trailer | None:
    """The trailer in ``data``, or None when there is none or it is damaged."""
    magic, check, slot, generation, length, chunk, count, root, key, parent, block, importance, part = (
        _TRAILER.unpack_from(data)
    )
    end = _SUMS_AT + 8 * count
    if magic != _MAGIC or end > len(data) or xxhash.xxh3_64_intdigest(data[16:end]) != check:
        return None
    sums: U64Array = np.frombuffer(data[_SUMS_AT:end], dtype="<u8").copy()
    return Trailer(slot, generation, length, chunk, block, root, key, parent, importance, part, sums)


# --- format file -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DirectoryFormat:
    """The directory's identity. ``instance`` tells a directory from a new one made in its place."""

    format: int
    node_id: str
    instance: str
    segment_bytes: int

    @classmethod
    def load(cls, directory: Path) -> DirectoryFormat | None:
        """What the format file says; None when there is none. Raises ConfigError when it is of no use."""
        path = directory / FORMAT_FILE
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise ConfigError(f"{path} is damaged; move the directory away to start an empty tier") from None
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            found = value.get("format") if isinstance(value, dict) else value
            raise ConfigError(
                f"{directory} has NVMe tier format {found!r}, this version reads {FORMAT}: use the version that wrote "
                "it, or move the directory away",
                got=found,
                want=FORMAT,
            )
        return cls(FORMAT, str(value["node_id"]), str(value["instance"]), int(value["segment_bytes"]))

    @classmethod
    def open(cls, directory: Path, node_id: str, segment_bytes: int) -> DirectoryFormat:
        """Loads or creates. Raises ConfigError when the directory belongs to another node."""
        found = cls.load(directory)
        if found is None:
            found = cls(FORMAT, node_id, uuid.uuid4().hex, segment_bytes)
            write_durably(directory / FORMAT_FILE, json.dumps(asdict(found)).encode())
        if node_id and found.node_id != node_id:
            raise ConfigError(
                f"{directory} belongs to node {found.node_id}, this is node {node_id}: give each node its own "
                "directory, or move this one away",
                got=found.node_id,
                want=node_id,
            )
        return found


def write_durably(path: Path, data: bytes) -> None:
    """Replaces a small file so that after a power loss either the old or the new one is there."""
    temporary = path.with_suffix(".new")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
