"""Keys: 16 bytes a block, chained, so that a key names a block together with everything before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import BadKey, InvalidArgument

KEY_BYTES = 16
Tokens: TypeAlias = "Sequence[int] | npt.NDArray[np.integer]"
KeyArray: TypeAlias = npt.NDArray[np.uint64]  # shape (n, 2): low and high half of each key, little-endian


def token_array(tokens: Tokens) -> npt.NDArray[np.uint32]:
    """Token ids as little-endian uint32, shape (n,). Raises InvalidArgument on negative or too large ids."""
    try:
        array = np.asarray(tokens)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"token ids must be one row of integers: {error}", field="token_ids") from None
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise InvalidArgument(f"token ids must be one row of integers, not {array.dtype} of shape {array.shape}")
    if array.dtype != np.uint32 and array.size and (int(array.min()) < 0 or int(array.max()) > 0xFFFFFFFF):
        bad = int(np.argmax((array < 0) | (array > 0xFFFFFFFF)))
        raise InvalidArgument(f"token id {int(array[bad])} at position {bad} is not 0 to 4294967295", field="token_ids")
    return np.ascontiguousarray(array, dtype="<u4")


def chain_keys(root: bytes, tokens: Tokens, block_tokens: int) -> bytes:
    """Keys of the full blocks of ``tokens``, concatenated. key = blake2b-128(parent key || ids as LE u32)."""
    data = memoryview(token_array(tokens)).cast("B")
    step = 4 * block_tokens
    out = bytearray(len(data) // step * KEY_BYTES)
    parent, blake2b = root, hashlib.blake2b
    for index in range(len(data) // step):
        state = blake2b(parent, digest_size=KEY_BYTES)
        state.update(data[index * step : (index + 1) * step])
        parent = state.digest()
        out[index * KEY_BYTES : (index + 1) * KEY_BYTES] = parent
    return bytes(out)


def hashed_keys(root: bytes, hashes: Iterable[bytes]) -> bytes:
    """Keys for blocks that an engine hashed itself: blake2b-128(root || engine hash)."""
    blake2b, hashes = hashlib.blake2b, list(hashes)
    for index, value in enumerate(hashes):
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidArgument(f"hash {index} is {type(value).__name__}, not bytes", field="hashes")
    return b"".join(blake2b(root + value, digest_size=KEY_BYTES).digest() for value in hashes)


def key_array(keys: bytes | bytearray | memoryview) -> KeyArray:
    """Concatenated keys as an array of shape (n, 2). Raises BadKey unless whole keys."""
    if len(keys) % KEY_BYTES:
        raise BadKey(f"{len(keys)} bytes of keys are not a whole number of {KEY_BYTES}-byte keys", got=len(keys))
    return np.frombuffer(keys, dtype="<u8").reshape(-1, 2)


class Keys(Sequence[bytes]):
    """Keys of consecutive blocks of one chain, from block 0. Immutable; slices are Keys again."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        if len(raw) % KEY_BYTES:
            raise BadKey(f"{len(raw)} bytes of keys are not a whole number of {KEY_BYTES}-byte keys", got=len(raw))
        self.raw = raw

    @classmethod
    def of(cls, keys: Keys | bytes | Iterable[bytes]) -> Keys:
        """Takes Keys, concatenated keys or a sequence of single keys. Raises BadKey naming the bad one."""
        if isinstance(keys, Keys):
            return keys
        if isinstance(keys, (bytes, bytearray, memoryview)):
            return cls(bytes(keys))
        given: object = keys
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise BadKey(f"keys must be Keys, bytes or a sequence of 16-byte keys, not {type(given).__name__}")
        single = list(keys)
        for index, key in enumerate(single):
            if not isinstance(key, (bytes, bytearray)) or len(key) != KEY_BYTES:
                shown = f"{len(key)} bytes" if isinstance(key, (bytes, bytearray)) else type(key).__name__
                raise BadKey(f"key {index} is {shown}, not {KEY_BYTES} bytes", index=index)
        return cls(b"".join(single))

    def __len__(self) -> int:
        return len(self.raw) // KEY_BYTES

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Keys: ...
    def __getitem__(self, index: int | slice) -> bytes | Keys:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise BadKey("keys of one chain can only be cut into consecutive runs")
            return Keys(self.raw[start * KEY_BYTES : max(start, stop) * KEY_BYTES])
        at = range(len(self))[index]
        return self.raw[at * KEY_BYTES : (at + 1) * KEY_BYTES]

    def __iter__(self) -> Iterator[bytes]:
        return (self.raw[at : at + KEY_BYTES] for at in range(0, len(self.raw), KEY_BYTES))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"Keys({len(self)} blocks)"
