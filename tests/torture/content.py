"""What every block of the torture runs must hold: a pure function of its chain and index.

It is the independent record of the readers: no byte of it comes from the store.
"""

from __future__ import annotations

import numpy as np

from kvstore import NamespaceSpec

BLOCK_TOKENS = 16


def spec(block_bytes: int, tenant: str = "torture") -> NamespaceSpec:
    return NamespaceSpec(model="torture", block_tokens=BLOCK_TOKENS, block_bytes=block_bytes, tenant=tenant)


def tokens(seed: int, chain: int, blocks: int) -> np.ndarray:
    """Token ids of a chain. Chains with the same ``chain // 4`` share their first quarter, as prompts do."""
    own = np.random.Generator(np.random.Philox(key=[seed, chain])).integers(0, 50_000, blocks * BLOCK_TOKENS)
    shared = np.random.Generator(np.random.Philox(key=[seed, 1_000_000 + chain // 4])).integers(0, 50_000, own.size)
    own[: own.size // 4] = shared[: own.size // 4]
    return own.astype(np.uint32)


def expected(key: bytes, block_bytes: int) -> np.ndarray:
    """Bytes of the block under ``key``, shape (block_bytes,), uint8."""
    low, high = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    words = np.random.Generator(np.random.Philox(key=[low, high])).integers(0, 2**63, block_bytes // 8, dtype=np.uint64)
    return words.view(np.uint8)
