"""The tier's own namespace table: number, root, canonical form. On disk, so that an empty memory file loses nothing."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from kvstore.core.checksum import Chunking, chunking
from kvstore.core.errors import InvalidArgument, KVStoreError
from kvstore.core.namespace import parse_canonical, root_of
from kvstore.tiers.tier import Entries

log = logging.getLogger(__name__)
MAX_NAMESPACES = 1024


@dataclass(frozen=True, slots=True)
class Known:
    """A namespace and how its parts are cut into chunks."""

    number: int
    root: bytes
    canonical: bytes
    cuts: tuple[Chunking, ...]


class NamespaceTable:
    """Thread-safe. Numbers are this tier's own and stay with a namespace until it is dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_root: dict[bytes, Known] = {}
        self._by_number: dict[int, Known] = {}

    def load(self, stored: dict[bytes, bytes]) -> None:
        """What the index holds: number (big-endian) to canonical form. A damaged one is left out."""
        for key, canonical in stored.items():
            try:
                self._add(int.from_bytes(key, "big"), canonical)
            except KVStoreError as error:
                log.error("NVMe namespace %s is damaged, its blocks are dropped: %s", key.hex(), error)

    def open(self, canonical: bytes) -> tuple[Known, bool]:
        """The namespace of a canonical form, and whether it is new here. Raises InvalidArgument, also when full."""
        root = root_of(canonical)
        with self._lock:
            if known := self._by_root.get(root):
                return known, False
            free = next((n for n in range(MAX_NAMESPACES) if n not in self._by_number), None)
            if free is None:
                raise InvalidArgument(f"the NVMe tier has {MAX_NAMESPACES} namespaces; drop unused ones")
            return self._add(free, canonical), True

    def retire(self, number: int) -> None:
        """Nobody opens it any more; its number is not given out before ``drop``."""
        with self._lock:
            known = self._by_number[number]
            if self._by_root.get(known.root) is known:
                del self._by_root[known.root]

    def retired(self, number: int) -> bool:
        """Nobody opens it any more."""
        known = self._by_number[number]
        return self._by_root.get(known.root) is not known

    def drop(self, number: int) -> None:
        """Its last slot was freed: the number may be given out again, after the removals in the queue."""
        self.retire(number)
        with self._lock:
            del self._by_number[number]

    def get(self, number: int) -> Known | None:
        return self._by_number.get(number)

    def all(self) -> dict[int, bytes]:
        """Canonical form of each number."""
        with self._lock:
            return {number: known.canonical for number, known in self._by_number.items()}

    def cut(self, number: int, part: int) -> tuple[Known, Chunking]:
        """A namespace and the chunking of one of its parts. Raises InvalidArgument when there is no such thing."""
        known = self._by_number.get(number)
        if known is None or part >= len(known.cuts):
            raise InvalidArgument(f"the NVMe tier knows no namespace {number} with a part {part}; open it first")
        return known, known.cuts[part]

    def check(self, entries: Entries) -> None:
        """Raises InvalidArgument unless every entry is of a part that its namespace has."""
        columns = (entries.namespaces, entries.parts, entries.lengths, entries.chunks)
        for number, part, length, chunks in set(zip(*(column.tolist() for column in columns), strict=True)):
            _, cut = self.cut(number, part)
            if (length, chunks) != (cut.length, cut.count):
                raise InvalidArgument(
                    f"part {part} of namespace {number} has {cut.length} bytes in {cut.count} chunks, "
                    f"not {length} in {chunks}"
                )

    def _add(self, number: int, canonical: bytes) -> Known:
        spec = parse_canonical(canonical)
        known = Known(number, root_of(canonical), canonical, tuple(map(chunking, spec.parts)))
        self._by_root[known.root] = self._by_number[number] = known
        return known
