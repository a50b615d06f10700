"""A store in memory with the SDK's calls as the connector uses them, and paged memory as an engine has it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvstore.client.results import PutResult
from kvstore.connector.vllm.descriptor import GroupFacts, RankFacts
from kvstore.core.errors import KVStoreError
from kvstore.core.keys import KEY_BYTES, Keys
from kvstore.core.namespace import NamespaceSpec


@dataclass
class Held:
    blocks: int
    present: dict[int, list[bool]]
    leased: int = 0
    closed: bool = False

    def has(self, part: int, block: int) -> bool:
        return self.present[part][block] if part in self.present else block < self.blocks

    def close(self) -> None:
        self.closed = True


class FakeStore:
    """Blocks of all namespaces. ``error``: raised by every call; ``damaged``: keys whose bytes fail their check."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[bytes, int], bytes] = {}
        self.specs: dict[bytes, NamespaceSpec] = {}
        self.error: KVStoreError | None = None
        self.damaged: set[bytes] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.held: list[Held] = []
        self.calls: list[str] = []
        self.cold: set[bytes] = set()  # keys of blocks that are not in memory: leases end before them
        self.prefetched: list[bytes] = []

    def check(self, name: str) -> None:
        self.calls.append(name)
        self.gate.wait(10)
        if self.error is not None:
            raise self.error

    def client(self, options: Any) -> FakeClient:
        return FakeClient(self)


@dataclass
class FakeClient:
    store: FakeStore
    last_miss: str | None = None
    closed: bool = False

    def namespace(self, spec: NamespaceSpec) -> FakeNamespace:
        self.store.check("open")
        differs = () if spec.root in self.store.specs or not self.store.specs else ("extra.weights",)
        self.store.specs[spec.root] = spec
        return FakeNamespace(self, spec, differs)

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeNamespace:
    client: FakeClient
    spec: NamespaceSpec
    differs: tuple[str, ...] = ()
    nearest_root: bytes = b"r" * 16

    def _needed(self, parts: Sequence[int] | None) -> list[int]:
        return [i for i, p in enumerate(self.spec.parts) if p.kind == "prefix" and (parts is None or i in parts)]

    def hold(self, keys: Keys, request_id: int = 0, timeout: float | None = None) -> Held:
        store = self.client.store
        store.check("match")
        n = 0
        while n < len(keys) and all((keys[n], part) in store.blocks for part in self._needed(None)):
            n += 1
        windows = [i for i, p in enumerate(self.spec.parts) if p.kind != "prefix"]
        leased = next((i for i in range(n) if keys[i] in store.cold), n)
        held = Held(n, {part: [(key, part) in store.blocks for key in keys] for part in windows}, leased)
        store.held.append(held)
        return held

    def prefetch(self, keys: Keys, deadline: float, timeout: float) -> None:
        store = self.client.store
        store.check("prefetch")
        store.prefetched += [key for key in keys if key in store.cold]

    def get(
        self, keys: Keys, into: Sequence[memoryview], *, first: int, parts: Sequence[int], request_id: int,
        holes: set[tuple[int, int]], timeout: float,
    ) -> int:  # fmt: skip
        store = self.client.store
        store.check("get")
        for n in range(first, len(keys)):
            if any((keys[n], part) not in store.blocks for part in self._needed(parts)):
                self.client.last_miss = "absent"
                return n
            if keys[n] in store.damaged:
                self.client.last_miss = "checksum"
                for part in range(len(self.spec.parts)):
                    store.blocks.pop((keys[n], part), None)
                return n
            for at, part in enumerate(parts):
                data = store.blocks.get((keys[n], part))
                if data is None:
                    holes.add((n, at))
                else:
                    into[(n - first) * len(parts) + at][:] = data
        return len(keys)

    def put(
        self, keys: Keys, blocks: Sequence[memoryview], *, first: int, parts: Sequence[int], request_id: int,
        appended_tokens: int, timeout: float,
    ) -> PutResult:  # fmt: skip
        store = self.client.store
        store.check("put")
        stored = present = 0
        for n in range(first, len(keys)):
            if n and not any((keys[n - 1], part) in store.blocks for part in range(len(self.spec.parts))):
                return PutResult(stored, present, 0, len(keys) - n, {"parent_missing": len(keys) - n})
            fresh = False
            for at, part in enumerate(parts):
                if (keys[n], part) not in store.blocks:
                    fresh = True
                    data = blocks[(n - first) * len(parts) + at]
                    assert len(data) == self.spec.parts[part].bytes
                    store.blocks[keys[n], part] = bytes(data)
            stored, present = stored + fresh, present + (not fresh)
        return PutResult(stored, present)


def hold(namespace: FakeNamespace, keys: Keys, **options: Any) -> Held:
    return namespace.hold(keys, **options)


class FakePages:
    """Pages of groups as arrays of shape (pages, bytes)."""

    fenced = False

    def __init__(self, sizes: dict[int, int], count: int = 64, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        self.memory = {g: random.integers(0, 256, (count, size), np.uint8) for g, size in sizes.items()}

    def page_bytes(self, group: int) -> int:
        return int(self.memory[group].shape[1])

    def _columns(self, group: int, part: tuple[int, int]) -> slice:
        index, of = part
        width = self.page_bytes(group) // of
        return slice(index * width, (index + 1) * width)

    def gather(self, group: int, part: tuple[int, int], pages: Sequence[int], out: Any) -> None:
        out[:] = self.memory[group][list(pages), self._columns(group, part)]

    def scatter(self, group: int, part: tuple[int, int], pages: Sequence[int], source: Any) -> None:
        for row, page in enumerate(pages):
            if page:
                self.memory[group][page, self._columns(group, part)] = source[row]


SHARED = {
    "model": "LlamaForCausalLM-4x256", "weights": "w", "config": "c", "rope": "r", "max_length": "any",
    "window": "None", "quantization": "none", "code_revision": "none", "speculative": "none",
    "vllm": "0.32", "device": "cpu", "backend": "CPU_ATTN", "isa": "vec", "dtype": "bfloat16",
    "kv_dtype": "bfloat16", "kv_scales": "s",
    "layout": "LBHNC", "dcp_size": "1", "pcp_size": "1", "interleave": "1",
}  # fmt: skip


def group(
    index: int = 0, kind: str = "full", page_tokens: int = 16, window: int | None = None, **more: Any
) -> GroupFacts:
    values = {"page_bytes": 256, "heads": 4, "eagle": False, "detail": "d", **more}
    return GroupFacts(index, kind, page_tokens, window, **values)


def rank(tp_rank: int = 0, tp_size: int = 1, groups: tuple[GroupFacts, ...] | None = None, **more: Any) -> RankFacts:
    values: dict[str, Any] = {
        "pp_rank": 0, "pp_size": 1, "replicas": 1, "hash_tokens": 16, "shared": dict(SHARED), "refusals": (), **more,
    }  # fmt: skip
    return RankFacts(tp_rank, tp_size, groups=groups or (group(),), **values)


@dataclass
class Request:
    """The fields of vLLM's request that the connector reads. Hashes are those of (seed, block)."""

    request_id: str
    tokens: int
    seed: int = 0
    hash_tokens: int = 16
    kv_transfer_params: dict[str, Any] | None = None
    skip_reading_prefix_cache: bool = False
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.tokens

    @property
    def num_tokens(self) -> int:
        return self.tokens

    @property
    def block_hashes(self) -> list[bytes]:
        return [f"{self.seed}/{i}".encode().ljust(32, b".") for i in range(self.tokens // self.hash_tokens)]


def raw(keys: Keys) -> list[bytes]:
    return [keys.raw[i : i + KEY_BYTES] for i in range(0, len(keys.raw), KEY_BYTES)]
