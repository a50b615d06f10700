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


class Contiguous:
    """Keys and values of the sequence in prefill without gaps, so that each chunk does not gather all blocks anew.

    A copy for speed: the pool has everything too. One sequence at a time, see :meth:`reset`.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._storage = torch.empty(0)
        self._filled: list[int] = []

    def reset(self, tokens: int) -> None:
        """Starts a sequence of at most ``tokens`` tokens, padding included."""
        config = self._pool.config
        if self._storage.ndim < 2 or self._storage.shape[3] < tokens:
            shape = (config.layers, 2, config.kv_heads, tokens, config.head_dim)
            self._storage = torch.empty(shape, dtype=self._pool.dtype)
        self._filled = [0] * config.layers

    def extend(self, layer: int, table: BlockTable, start: int, new: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer up to the end of the chunk at ``start`` whose own are ``new``.

        Tokens before ``start`` that are not here yet come from the pool. ``new``: each (n, kv_heads, head_dim);
        the result: each (kv_heads, start + n, head_dim).
        """
        if self._filled[layer] < start:
            loaded = self._pool.gather(layer, self._pool.rows(table.tensor(start // BLOCK_TOKENS)))
            self._put(layer, 0, loaded[0], loaded[1])
        self._put(layer, start, new[0].transpose(0, 1), new[1].transpose(0, 1))
        self._filled[layer] = end = start + len(new[0])
        return self._storage[layer, 0, :, :end], self._storage[layer, 1, :, :end]

    def _put(self, layer: int, at: int, keys: Tensor, values: Tensor) -> None:
        self._storage[layer, 0, :, at : at + keys.shape[1]] = keys
        self._storage[layer, 1, :, at : at + keys.shape[1]] = values


class ChunkAttention:
    """One prefill chunk. ``computed`` counts the real (not padding) tokens that went through layer 0."""

    def __init__(
        self, pool: BlockPool, table: BlockTable, earlier: Contiguous, start: int, count: int, mask: Tensor,
        ready: Callable[[int], None] = lambda layer: None, weigh: bool = False,
    ) -> None:  # fmt: skip
        """``count`` real tokens from ``start`` on. ``ready(layer)`` returns when earlier blocks of a layer are there.

        ``weigh``: also sum up how much attention the last real token pays to each block.
        """
        self._pool, self._table, self._earlier = pool, table, earlier
        self._start, self._count, self._mask, self._ready = start, count, mask, ready
        self._places = table.places(start, count)
        self._last = start + count if weigh else 0
        self.mass = torch.zeros(mask.shape[1] // BLOCK_TOKENS)
        self.computed = 0

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self._ready(layer)
        self._pool.write(layer, self._places, keys[: self._count], values[: self._count])
        all_keys, all_values = self._earlier.extend(layer, self._table, self._start, (keys, values))
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
