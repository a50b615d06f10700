"""What a history is about: chains that fork off each other, and what each of their blocks holds.

A pure function of the seed. It knows nothing of keys: a block is (the chain that it was new in, its index), so a
store that mixes up two keys is found out. Independent of the store: no byte and no name of a block comes from it.
"""

from __future__ import annotations

import functools
import hashlib
import random
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from kvstore import NamespaceSpec

Block: TypeAlias = "tuple[int, int]"  # (chain that it was new in, index)
Version: TypeAlias = int  # of a namespace's weights: how often it was rotated

BLOCK_TOKENS = 16
BLOCK_BYTES = 16 << 10
TENANTS = ("blue", "green")
COLD = 3  # each third chain is read by audits alone, so that no reader's copy hides a loss
DROPPED = 8  # each eighth is evicted now and then


@dataclass(frozen=True)
class Chain:
    """``fork`` blocks are those of ``parent`` (-1: none), the rest are its own."""

    parent: int
    fork: int
    length: int


@dataclass(frozen=True)
class World:
    seed: int
    chains: int = 160

    @functools.cache  # noqa: B019 - a few of them, for as long as the process
    def chain(self, number: int) -> Chain:
        dice = random.Random(f"{self.seed}/chain/{number}")
        if number and dice.random() < 0.6:
            parent = dice.randrange(number)
            fork = dice.randint(1, min(16, self.chain(parent).length))
            return Chain(parent, fork, fork + dice.randint(1, 8))
        return Chain(-1, 0, dice.randint(3, 16))

    def cold(self, number: int) -> bool:
        return number % COLD == 0

    def dropped(self, number: int) -> bool:
        return number % DROPPED == 0 and not self.cold(number)

    @functools.cache  # noqa: B019
    def blocks(self, number: int) -> tuple[Block, ...]:
        """Of a chain, from block 0."""
        chain = self.chain(number)
        own = tuple((number, index) for index in range(chain.fork, chain.length))
        return self.blocks(chain.parent)[: chain.fork] + own if chain.fork else own

    def tokens(self, number: int) -> np.ndarray:
        """Of a whole chain."""
        return np.concatenate([self._tokens(block) for block in self.blocks(number)])

    def _tokens(self, block: Block) -> np.ndarray:
        dice = np.random.Generator(np.random.Philox(key=[self.seed << 32 | block[0], block[1]]))
        return dice.integers(0, 50_000, BLOCK_TOKENS).astype(np.uint32)

    def content(self, tenant: str, block: Block, version: Version) -> np.ndarray:
        """The bytes of a block."""
        where = 1 + TENANTS.index(tenant) << 40 | version << 20 | block[1]
        dice = np.random.Generator(np.random.Philox(key=[self.seed << 32 | block[0], where]))
        return dice.integers(0, 2**63, BLOCK_BYTES // 8, dtype=np.uint64).view(np.uint8)

    @functools.lru_cache(maxsize=1 << 16)  # noqa: B019
    def digest(self, tenant: str, block: Block, version: Version) -> str:
        return digest(self.content(tenant, block, version))


def digest(data: object) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()  # type: ignore[arg-type]


def spec(tenant: str) -> NamespaceSpec:
    return NamespaceSpec(model="history", block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, tenant=tenant)
