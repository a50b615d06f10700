"""Checks of what a request names, shared by the data path and the control plane. A refused request has no effect."""

from __future__ import annotations

import time

import numpy as np

from kvstore.core.errors import InvalidArgument, TooManyKeys
from kvstore.core.keys import KEY_BYTES, KeyArray, key_array
from kvstore.tiers.tier import TierKind, U16Array
from kvstore.tiers.values import ChainSlice
from kvstore.v1 import types_pb2 as types


def checked_keys(raw: bytes, most: int, *, empty_ok: bool = False) -> KeyArray:
    """Keys of a request, shape (n, 2). Raises BadKey, TooManyKeys or InvalidArgument."""
    keys = key_array(raw)
    if len(keys) > most:
        raise TooManyKeys(
            f"the request names {len(keys)} keys, this node accepts {most}; ask in several requests",
            got=len(keys),
            want=most,
        )
    if not len(keys) and not empty_ok:
        raise InvalidArgument("the request names no keys", field="keys")
    return keys


def checked_slice(chain: types.ChainSlice, most: int) -> ChainSlice:
    """A run of consecutive blocks of a chain. Raises BadKey, TooManyKeys or InvalidArgument."""
    keys = checked_keys(chain.keys, most)
    parent, first = chain.parent, chain.first_block
    if first == 0 and parent:
        raise InvalidArgument("block 0 has no parent: leave chain.parent empty, or set first_block", field="parent")
    if first > 0 and len(parent) != KEY_BYTES:
        raise InvalidArgument(
            f"chain.parent must be the {KEY_BYTES}-byte key of block {first - 1}, not {len(parent)} bytes",
            field="parent",
            got=len(parent),
        )
    if first + len(keys) > 1 << 31:
        raise InvalidArgument(f"block {first + len(keys)} is beyond what a chain may have", field="first_block")
    return ChainSlice(keys, parent, first)


def checked_before(raw: bytes, chain: ChainSlice, most: int) -> KeyArray:
    """Keys of all blocks before a run. Raises BadKey, TooManyKeys or InvalidArgument."""
    keys = checked_keys(raw, most)
    if len(keys) != chain.first_block or raw[-KEY_BYTES:] != chain.parent:
        raise InvalidArgument(
            f"`before` must name the {chain.first_block} blocks before the first one, the last of them its parent; it "
            f"names {len(keys)}",
            field="before",
            got=len(keys),
            want=chain.first_block,
        )
    return keys


def checked_tier(number: int) -> TierKind:
    """Tier of a number of ``kvstore.v1.TierKind``; DRAM for none. Raises InvalidArgument."""
    if not number:
        return TierKind.DRAM
    if number - 1 not in list(TierKind):
        raise InvalidArgument(f"there is no tier {number}", field="tier", got=number)
    return TierKind(number - 1)


def deadline_of(milliseconds: int) -> float | None:
    """On time.monotonic; None for 0."""
    return time.monotonic() + milliseconds / 1000 if milliseconds else None


def checked_importance(raw: bytes, count: int) -> U16Array | None:
    """One u16 a key, or None without any. Raises InvalidArgument."""
    if not raw:
        return None
    if len(raw) != 2 * count:
        raise InvalidArgument(
            f"importance of {count} keys takes {2 * count} bytes (one u16 a key), not {len(raw)}",
            field="importance",
            got=len(raw),
            want=2 * count,
        )
    return np.frombuffer(raw, dtype="<u2")


def checked_first(first_block: int, count: int) -> None:
    """Raises InvalidArgument when a request asks for blocks beyond its own keys."""
    if first_block > count:
        raise InvalidArgument(f"first_block {first_block} is beyond the {count} keys given", field="first_block")
