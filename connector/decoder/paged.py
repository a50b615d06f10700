"""The paged KV cache: a pool of reference-counted blocks, and the block table of each sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvstore.connector.decoder.config import ModelConfig
from kvstore.core.errors import NoSpace

BLOCK_TOKENS = 16
NULL_BLOCK = 0  # zeros, never given out: stands where a table has no block


class BlockPool:
    """KV memory of shape (blocks + 1, layers, 2, kv_heads, 16, head_dim).

    The bytes of a block are contiguous and are what the service keeps, so they move without a staging copy.
    Used by one thread; others may touch the bytes of blocks they were given a reference to.
    """

    def __init__(self, config: ModelConfig, blocks: int, dtype: torch.dtype = torch.float32) -> None:
        self.config, self.dtype, self.blocks = config, dtype, blocks
        shape = (blocks + 1, config.layers, 2, config.kv_heads, BLOCK_TOKENS, config.head_dim)
        self.storage = torch.zeros(shape, dtype=dtype)
        self._rows = self.storage.view(-1, BLOCK_TOKENS * config.head_dim)  # one row: 16 tokens of a head
        self._bytes = self.storage.view(blocks + 1, -1).view(torch.uint8).numpy()
        self._references = [0] * (blocks + 1)
        self._free = list(range(blocks, 0, -1))

    @property
    def free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    @property
    def block_bytes(self) -> int:
        return int(self._bytes.shape[1])

    def allocate(self) -> int:
        """A block with one reference. Raises NoSpace when none is free."""
        if not self._free:
            raise NoSpace(f"all {self.blocks} blocks of the pool are in use; give the engine a larger pool")
        block = self._free.pop()
        self._references[block] = 1
        return block

    def share(self, block: int) -> int:
        """Adds a reference and returns the block."""
        self._references[block] += 1
        return block

    def release(self, block: int) -> None:
        """Takes a reference away; the last one frees the block."""
        self._references[block] -= 1
        if not self._references[block]:
            self._free.append(block)

    def references(self, block: int) -> int:
        return self._references[block]

    def buffer(self, block: int, first_layer: int = 0, layers: int | None = None) -> memoryview:
        """The bytes of ``layers`` layers of a block, writable."""
        layer_bytes = self.block_bytes // self.config.layers
        end = self.config.layers if layers is None else first_layer + layers
        return memoryview(self._bytes[block, first_layer * layer_bytes : end * layer_bytes])

    def copy(self, block: int) -> int:
        """A new block with the same bytes."""
        twin = self.allocate()
        self.storage[twin] = self.storage[block]
        return twin

    def rows(self, table: Tensor) -> Tensor:
        """Row of each head's first layer for the blocks of ``table`` (n,), shape (kv_heads, n). See :meth:`gather`."""
        config = self.config
        return table * (config.layers * 2 * config.kv_heads) + torch.arange(config.kv_heads)[:, None]

    def gather(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, contiguous, each (kv_heads, n * 16, head_dim)."""
        heads = self.config.kv_heads
        shape = (heads, -1, self.config.head_dim)
        keys = self._rows.index_select(0, (rows + 2 * layer * heads).flatten())
        values = self._rows.index_select(0, (rows + (2 * layer + 1) * heads).flatten())
        return keys.view(shape), values.view(shape)

    def write(self, layer: int, at: tuple[Tensor, Tensor], keys: Tensor, values: Tensor) -> None:
        """Puts keys and values (n, kv_heads, head_dim) at ``at``: block (n,) and offset in it (n,)."""
        blocks, offsets = at
        self.storage[blocks, layer, 0, :, offsets] = keys
        self.storage[blocks, layer, 1, :, offsets] = values


class BlockTable:
    """The blocks of one sequence. Blocks may be shared with other tables; a shared one is copied before a write."""

    def __init__(self, pool: BlockPool, blocks: Sequence[int] = ()) -> None:
        self._pool = pool
        self.blocks = list(blocks)

    def grow(self, tokens: int) -> None:
        """Allocates until ``tokens`` tokens fit. Raises NoSpace."""
        while len(self.blocks) * BLOCK_TOKENS < tokens:
            self.blocks.append(self._pool.allocate())

    def fork(self) -> BlockTable:
        """A second table over the same blocks."""
        return BlockTable(self._pool, [self._pool.share(block) for block in self.blocks])

    def make_writable(self, position: int) -> None:
        """Makes the block of ``position`` exist and belong to this table alone: copy-on-write."""
        self.grow(position + 1)
        index = position // BLOCK_TOKENS
        block = self.blocks[index]
        if self._pool.references(block) > 1:
            self.blocks[index] = self._pool.copy(block)
            self._pool.release(block)

    def tensor(self, blocks: int) -> Tensor:
        """The first ``blocks`` blocks as int64 (blocks,), padded with the null block."""
        held = self.blocks[:blocks]
        return torch.tensor(held + [NULL_BLOCK] * (blocks - len(held)), dtype=torch.int64)

    def places(self, start: int, count: int) -> tuple[Tensor, Tensor]:
        """Block and offset of ``count`` positions from ``start`` on, each int64 (count,)."""
        positions = torch.arange(start, start + count)
        table = torch.tensor(self.blocks, dtype=torch.int64)
        return table[positions // BLOCK_TOKENS], positions % BLOCK_TOKENS

    def truncate(self, blocks: int) -> None:
        """Releases all blocks past the first ``blocks``."""
        for block in self.blocks[blocks:]:
            self._pool.release(block)
        del self.blocks[blocks:]

    def close(self) -> None:
        """Releases every block. May be called again."""
        self.truncate(0)
