"""Golden vectors: prints the roots, keys and checksums of fixed inputs as JSON.

Run as a program by the tests in processes of their own, so that nothing of one process (its hash seed, its
import order) can be part of what is compared.
"""

from __future__ import annotations

import json

import numpy as np

from kvstore.core.checksum import chunk_sums, chunking, part_seed
from kvstore.core.keys import Keys, chain_keys, hashed_keys
from kvstore.core.namespace import NamespaceSpec, PartSpec

PLAIN = NamespaceSpec(model="llama-3-8b", block_tokens=16, block_bytes=2 << 20)
FULL = NamespaceSpec(
    model="modèle/日本",
    block_tokens=4,
    weights_generation="2026-11-01",
    kv_dtype="bfloat16",
    layout="NHD",
    tenant="acme",
    parts=(PartSpec("tp0", 300_000), PartSpec("tp1", 1 << 20, layers=4), PartSpec("swa", 4096, "swa", "window")),
    extra={"rope_theta": "500000", "attention": "flash"},
)


def data(length: int) -> memoryview:
    """Bytes that any language can make: byte i is (i * 131 + i // 256) mod 256."""
    index = np.arange(length, dtype=np.uint64)
    return memoryview(((index * 131 + index // 256) % 256).astype(np.uint8)).cast("B")


def vectors() -> dict[str, object]:
    plain = Keys(chain_keys(PLAIN.root, list(range(40)), PLAIN.block_tokens))
    full = Keys(chain_keys(FULL.root, [0, 1, 2, 3, 128_000, 0xFFFFFFFF, 7, 7], FULL.block_tokens))
    return {
        "plain.canonical": PLAIN.canonical().decode(),
        "plain.root": PLAIN.root.hex(),
        "full.root": FULL.root.hex(),
        "plain.keys": [key.hex() for key in plain],
        "full.keys": [key.hex() for key in full],
        "full.hashed_keys": hashed_keys(FULL.root, [b"engine hash 0", bytes(32)]).hex(),
        "full.checksums": {
            part.name: [f"{value:016x}" for value in checksums(full[0], index, part).tolist()]
            for index, part in enumerate(FULL.parts)
        },
    }


def checksums(key: bytes, index: int, part: PartSpec) -> np.ndarray:
    return chunk_sums(data(part.bytes), part_seed(key, index), chunking(part))


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=1, ensure_ascii=True))
