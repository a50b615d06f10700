"""Attention over the paged cache: a chunk of one sequence, or one token of each of several.

What makes results with and without the service equal to the bit: a chunk always starts at a multiple of its size,
always has that many rows (the last is padded) and always sees the blocks up to its own end, so the same kernels run
over the same shapes whether the blocks before it were computed or loaded; and no row depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from kvstore.connector.decoder.paged import BLOCK_TOKENS, BlockPool, BlockTable


class CausalMask:
    """Additive masks for chunks of ``rows`` tokens, all views of one buffer.

    Queries of the ``groups`` heads that share keys follow each other as further rows: the more rows, the faster.
    """

    def __init__(self, rows: int, groups: int, dtype: torch.dtype) -> None:
        self._rows, self._groups, self._dtype = rows, groups, dtype
        self._buffer = torch.empty(0, 0, dtype=dtype)

    def __call__(self, start: int) -> Tensor:
        """Token i of the chunk at ``start`` sees keys 0..start + i: shape (groups * rows, start + rows)."""
        wanted = start + self._rows
        if self._buffer.shape[1] < wanted:
            self._buffer = self._build(max(wanted, 2 * self._buffer.shape[1]))
        return self._buffer[:, self._buffer.shape[1] - wanted :]

    def _build(self, width: int) -> Tensor:
        hidden = torch.full((self._rows, width), float("-inf"), dtype=self._dtype)
        return hidden.triu_(width - self._rows + 1).repeat(self._groups, 1)


class ChunkAttention:
    """One prefill chunk. ``computed`` counts the real (not padding) tokens that went through layer 0."""

    def __init__(
        self, pool: BlockPool, table: BlockTable, start: int, count: int, mask: Tensor,
        ready: Callable[[int], None] = lambda layer: None, weigh: bool = False,
    ) -> None:  # fmt: skip
        """``count`` real tokens from ``start`` on. ``ready(layer)`` returns when earlier blocks of a layer are there.

        ``weigh``: also sum up how much attention the last real token pays to each block.
        """
        self._pool, self._count, self._mask, self._ready = pool, count, mask, ready
        self._places = table.places(start, count)
        self._rows = pool.rows(table.tensor(mask.shape[1] // BLOCK_TOKENS))
        self._last = start + count if weigh else 0
        self.mass = torch.zeros(mask.shape[1] // BLOCK_TOKENS)
        self.computed = 0

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self._ready(layer)
        self._pool.write(layer, self._places, keys[: self._count], values[: self._count])
        all_keys, all_values = self._pool.gather(layer, self._rows)
        seen = functional.scaled_dot_product_attention(
            _grouped(queries, len(all_keys)), all_keys[None], all_values[None], attn_mask=self._mask
        )
        self.computed += self._count if layer == 0 else 0
        if self._last:
            self._weigh(queries[self._count - 1], all_keys[:, : self._last])
        return _ungrouped(seen, len(queries))

    def _weigh(self, query: Tensor, keys: Tensor) -> None:
        grouped = query.view(len(keys), -1, query.shape[-1])
        shares = torch.softmax(grouped @ keys.transpose(1, 2) / query.shape[-1] ** 0.5, dim=-1).float().mean(dim=(0, 1))
        padded = functional.pad(shares, (0, self.mass.numel() * BLOCK_TOKENS - shares.numel()))
        self.mass += padded.view(-1, BLOCK_TOKENS).sum(dim=1) / self._pool.config.layers


def _grouped(queries: Tensor, kv_heads: int) -> Tensor:
    """Queries (n, heads, head_dim) as (1, kv_heads, groups * n, head_dim): heads that share keys side by side."""
    split = queries.view(len(queries), kv_heads, -1, queries.shape[-1])
    return split.permute(1, 2, 0, 3).reshape(1, kv_heads, -1, queries.shape[-1])


def _ungrouped(seen: Tensor, rows: int) -> Tensor:
    """The way back, all heads of a token together: (n, heads * head_dim)."""
    _, kv_heads, _, size = seen.shape
    return seen.view(kv_heads, -1, rows, size).permute(2, 0, 1, 3).reshape(rows, -1)


class StepAttention:
    """One new token of each of several sequences; rows past them are padding and see nothing."""

    def __init__(self, pool: BlockPool, tables: Sequence[BlockTable], positions: Sequence[int]) -> None:
        self._pool, self._lengths = pool, [position + 1 for position in positions]
        for table, position in zip(tables, positions, strict=True):
            table.make_writable(position)
        places = [table.places(position, 1) for table, position in zip(tables, positions, strict=True)]
        self._places = (torch.cat([block for block, _ in places]), torch.cat([offset for _, offset in places]))
        self._rows = [
            pool.rows(table.tensor(-(-n // BLOCK_TOKENS))) for table, n in zip(tables, self._lengths, strict=True)
        ]

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        count = len(self._lengths)
        self._pool.write(layer, self._places, keys[:count], values[:count])
        seen = torch.zeros(len(queries), queries[0].numel(), dtype=queries.dtype)
        for index in range(count):
            seen[index] = self._one(layer, index, queries[index])
        return seen

    def _one(self, layer: int, index: int, query: Tensor) -> Tensor:
        keys, values = self._pool.gather(layer, self._rows[index])
        length = self._lengths[index]
        seen = functional.scaled_dot_product_attention(
            query[None, :, None], keys[None, :, :length], values[None, :, :length], enable_gqa=True
        )
        return seen.flatten()
