"""The namespaces of a node: which exist, their ids in slot headers, their records in the memory file."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from kvstore.core.checksum import Chunking, chunking
from kvstore.core.errors import Busy, NamespaceMismatch, NoSpace, UnknownNamespace
from kvstore.core.namespace import NamespaceSpec, differing_fields, parse_canonical
from kvstore.tiers.layout import DROPPING, FREE, LIVE, NAMESPACE, NAMESPACE_BYTES
from kvstore.tiers.memfile import MemoryFile
from kvstore.tiers.values import NamespaceView

_BODY = 64  # the canonical form starts here in a record
LAST_GENERATION = (1 << 32) - 1
Generation: TypeAlias = "tuple[int, int]"  # how often a namespace was rotated, and by which of the rotations


class Namespace:
    """One namespace. ``id`` stands in slot headers; ``handle`` is given to clients and never used again.

    ``cuts``: chunking by part. ``needed``: mask of the prefix parts. ``bytes``: of its READY parts. ``rows``: of the
    index, those only kept for a lease included. ``generation``: how often it was rotated, and ``rotation`` which of the
    rotations that led there it was: nodes that share blocks have both in common.
    """

    __slots__ = (
        "bytes", "canonical", "cuts", "dropping", "generation", "handle", "id", "needed", "root", "rotating",
        "rotation", "rows", "spec", "used",
    )  # fmt: skip

    def __init__(self, number: int, handle: int, spec: NamespaceSpec, canonical: bytes) -> None:
        self.id = number
        self.handle = handle
        self.spec = spec
        self.canonical = canonical
        self.root = spec.root
        self.cuts: tuple[Chunking, ...] = tuple(chunking(part) for part in spec.parts)
        self.needed = sum(1 << at for at, part in enumerate(spec.parts) if part.kind == "prefix")
        self.bytes = self.rows = self.generation = self.rotation = 0
        self.dropping = self.rotating = False
        self.used = time.time()

    def view(self) -> NamespaceView:
        """As others see it."""
        return NamespaceView(self.handle, self.root, self.spec, generation=self.generation, rotation=self.rotation)

    @property
    def void(self) -> bool:
        """None of its blocks can be found."""
        return self.dropping or self.rotating


class Namespaces:
    """All namespaces, in memory and in the file. The store's lock guards it."""

    def __init__(self, file: MemoryFile) -> None:
        self._file = file
        self._limit = file.layout.max_namespaces
        self._heads = file.array(NAMESPACE, file.layout.namespaces_at, self._limit, NAMESPACE_BYTES)
        self._by_id: dict[int, Namespace] = {}
        self._by_root: dict[bytes, Namespace] = {}
        self._by_handle: dict[int, Namespace] = {}
        self.fading: dict[int, bytes] = {}  # id and root of dropped ones that another tier may not have forgotten yet
        self.begins_at: Callable[[bytes], Generation] = lambda root: (0, 0)  # of a namespace that is new here
        self._next_handle = 1
        sparse = file.layout.sparse
        self._pages = [self._backed_pages(number) if sparse else 1 for number in range(self._limit)]  # of each record
        self._load()

    def __iter__(self) -> Iterator[Namespace]:
        """Those that are not being dropped."""
        return iter(list(self._by_root.values()))

    def __len__(self) -> int:
        return len(self._by_root)

    def by_id(self, number: int) -> Namespace | None:
        """Namespace of an id in a header, or None."""
        return self._by_id.get(number)

    def by_handle(self, handle: int) -> Namespace:
        """Raises UnknownNamespace."""
        found = self._by_handle.get(handle)
        if found is None:
            raise UnknownNamespace(
                f"no namespace has handle {handle}: it was dropped, or the node restarted; open it again", handle=handle
            )
        return found

    def at(self, root: bytes) -> Namespace | None:
        """The namespace of a root, or None."""
        return self._by_root.get(root)

    def by_root(self, root: bytes) -> Namespace:
        """Raises UnknownNamespace."""
        found = self._by_root.get(root)
        if found is None:
            raise UnknownNamespace(f"no namespace here has the root {root.hex()}", root=root.hex())
        return found

    def open(self, canonical: bytes, strict: bool) -> NamespaceView:
        """Finds or makes the namespace. Raises InvalidArgument, NamespaceMismatch (strict only), NoSpace or Busy."""
        spec = parse_canonical(canonical)
        found = self._by_root.get(spec.root)
        if found is not None and found.rotating:
            raise Busy("the namespace is being rotated; try again in a moment", bound="rotation")
        nearest = self._nearest(spec) if found is None else None
        differs = tuple(differing_fields(nearest.spec, spec)) if nearest else ()
        if strict and nearest:
            raise NamespaceMismatch(
                f"tenant {spec.tenant!r} has model {spec.model!r} here with other values of {', '.join(differs)}; "
                "make them agree, or open without strict",
                fields=",".join(differs),
            )
        created = found is None
        namespace = found or self._create(spec, canonical)
        self.touch(namespace)
        root = nearest.root if nearest else b""
        return NamespaceView(namespace.handle, namespace.root, namespace.spec, created, differs, root)

    def touch(self, namespace: Namespace) -> None:
        """It is being used now."""
        namespace.used = time.time()

    def save_use(self) -> None:
        """Writes the times of last use into the file (they stand outside the records' CRC)."""
        for namespace in self:
            self._heads["used"][namespace.id] = int(namespace.used)

    def start_rotation(self, namespace: Namespace, to: Generation) -> None:
        """From now on nobody finds a block of it, and nobody begins to write one. Raises Busy when somebody does it."""
        if namespace.rotating or namespace.dropping:
            raise Busy("the namespace is being rotated or dropped already", bound="rotation")
        namespace.rotating = True
        self._by_handle.pop(namespace.handle, None)
        namespace.generation, namespace.rotation = to

    def finish_rotation(self, namespace: Namespace, empty: bool = True) -> None:
        """It is in use again under its old handle. Only what is ``empty`` for good is of its new generation after a
        restart too."""
        namespace.rotating = False
        if empty:
            self._note_generation(namespace)
        if not namespace.dropping:
            self._by_handle[namespace.handle] = namespace

    def _note_generation(self, namespace: Namespace) -> None:
        self._heads["generation"][namespace.id] = namespace.generation
        self._heads["rotation"][namespace.id] = namespace.rotation

    def start_drop(self, namespace: Namespace) -> None:
        """From now on nobody finds it; after a restart its slots are dropped."""
        self._heads["state"][namespace.id] = DROPPING
        namespace.dropping = True
        self._by_root.pop(namespace.root, None)
        self._by_handle.pop(namespace.handle, None)

    def finish_drop(self, namespace: Namespace, keep: bool = False) -> None:
        """No slot refers to it any more: its record and id are free. ``keep``: not before ``forget``."""
        self._by_id.pop(namespace.id, None)
        self.fading[namespace.id] = namespace.root
        if not keep:
            self.forget(namespace.id)

    def forget(self, number: int) -> None:
        """Frees the record and id of a dropped namespace."""
        if self.fading.pop(number, None) is not None:
            self._heads["state"][number] = FREE

    def close(self) -> None:
        """Lets go of the file."""
        del self._heads

    def _nearest(self, spec: NamespaceSpec) -> Namespace | None:
        kin = [one for one in self if (one.spec.tenant, one.spec.model) == (spec.tenant, spec.model)]
        return min(kin, key=lambda one: len(differing_fields(one.spec, spec)), default=None)

    def _create(self, spec: NamespaceSpec, canonical: bytes) -> Namespace:
        number = next((at for at in range(self._limit) if at not in self._by_id and at not in self.fading), None)
        if number is None or not self._back(number, len(canonical)):
            raise NoSpace(
                f"the namespace table is full ({len(self._by_id)} of {self._limit}); drop namespaces that are not used "
                "any more (kvstore namespace list, drop)",
                limit=self._limit,
                table="namespaces",
            )
        self._write(number, spec.root, canonical)
        found = self._enter(number, spec, canonical)
        found.generation, found.rotation = self.begins_at(spec.root)
        self._note_generation(found)
        return found

    def _back(self, number: int, length: int) -> bool:
        """Memory for a record: the table is sparse, and has a page for each on average. False: there is none."""
        layout = self._file.layout
        if not layout.sparse:
            return True
        need = max(-(-(_BODY + length) // layout.page), self._pages[number])
        if (sum(self._pages) - self._pages[number] + need) * layout.page > layout.namespaces_backed:
            return False
        try:
            self._file.populate(layout.namespaces_at + number * NAMESPACE_BYTES, need * layout.page)
        except OSError:
            return False
        self._pages[number] = need
        return True

    def _backed_pages(self, number: int) -> int:
        layout = self._file.layout
        start, pages = layout.namespaces_at + number * NAMESPACE_BYTES, NAMESPACE_BYTES // layout.page
        return sum(self._file.is_backed(start + at * layout.page, layout.page) for at in range(pages))

    def _enter(self, number: int, spec: NamespaceSpec, canonical: bytes) -> Namespace:
        namespace = Namespace(number, self._next_handle, spec, canonical)
        self._next_handle += 1
        self._by_id[number] = self._by_root[namespace.root] = self._by_handle[namespace.handle] = namespace
        return namespace

    def _write(self, number: int, root: bytes, canonical: bytes) -> None:
        start = self._file.layout.namespaces_at + number * NAMESPACE_BYTES + _BODY
        self._file.map[start : start + len(canonical)] = canonical
        head = self._heads[number : number + 1]
        head["generation"] = head["rotation"] = 0
        head["length"], head["root"], head["used"] = len(canonical), np.void(root), int(time.time())
        head["crc"] = zlib.crc32(root + canonical)
        head["state"] = LIVE  # last: the record is complete

    def _load(self) -> None:
        """Sound records become namespaces; torn ones (their node died while making them) are cleared. Those that were
        being dropped stay until every tier has forgotten them."""
        for number in np.flatnonzero(self._pages).tolist():
            if int(self._heads["state"][number]) == FREE:
                continue
            head = self._heads[number]
            start = self._file.layout.namespaces_at + number * NAMESPACE_BYTES + _BODY
            canonical = bytes(self._file.map[start : start + min(int(head["length"]), NAMESPACE_BYTES - _BODY)])
            sound = zlib.crc32(bytes(head["root"]) + canonical) == int(head["crc"])
            if int(head["state"]) == LIVE and sound:
                found = self._enter(number, parse_canonical(canonical), canonical)
                found.used, found.generation = float(head["used"]), int(head["generation"])
                found.rotation = int(head["rotation"])
            elif int(head["state"]) == DROPPING and sound:
                self.fading[number] = bytes(head["root"])
            else:
                self._heads["state"][number] = FREE
