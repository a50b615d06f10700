"""The caller's buffers as rows of bytes: anything with the buffer protocol, numpy arrays and torch CPU tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvstore.core.errors import InvalidArgument, WrongBlockSize
from kvstore.transport.mapping import Bytes
from kvstore.transport.plan import Plan


def rows(buffers: object, blocks: int, plan: Plan, *, writable: bool) -> list[Bytes]:
    """One array of bytes a piece, block-major, over the caller's memory.

    ``buffers``: a sequence with one buffer a piece or one a block (its pieces one after another), or a single
    buffer that holds all blocks. Raises WrongBlockSize, InvalidArgument.
    """
    pieces = len(plan.pieces)
    if not isinstance(buffers, (list, tuple)):
        return _cut(as_bytes(buffers, "for all blocks", writable), blocks, plan)
    if len(buffers) == blocks * pieces:
        return _pieces(buffers, plan, writable)
    if len(buffers) == blocks:
        return _blocks(buffers, plan, writable)
    wanted = f"{blocks}" if pieces == 1 else f"{blocks * pieces} (one a part) or {blocks} (one a block)"
    raise InvalidArgument(
        f"{len(buffers)} buffers were given, {wanted} are needed", got=len(buffers), want=blocks * pieces
    )


def _pieces(buffers: Sequence[object], plan: Plan, writable: bool) -> list[Bytes]:
    found: list[Bytes] = []
    pieces = len(plan.pieces)
    for index, buffer in enumerate(buffers):
        row = as_bytes(buffer, index, writable)
        want = plan.pieces[index % pieces].length
        if row.size != want:
            raise _wrong_size(index, row.size, want)
        found.append(row)
    return found


def _blocks(buffers: Sequence[object], plan: Plan, writable: bool) -> list[Bytes]:
    found: list[Bytes] = []
    for index, buffer in enumerate(buffers):
        row = as_bytes(buffer, index, writable)
        if row.size != plan.block_bytes:
            raise _wrong_size(index, row.size, plan.block_bytes)
        found.extend(_cut(row, 1, plan))
    return found


def _cut(row: Bytes, blocks: int, plan: Plan) -> list[Bytes]:
    if row.size != blocks * plan.block_bytes:
        raise _wrong_size("for all blocks", row.size, blocks * plan.block_bytes)
    found: list[Bytes] = []
    at = 0
    for _ in range(blocks):
        for piece in plan.pieces:
            found.append(row[at : at + piece.length])
            at += piece.length
    return found


def _wrong_size(index: int | str, got: int, want: int) -> WrongBlockSize:
    return WrongBlockSize(f"buffer {index} has {got} bytes, {want} are needed", index=index, got=got, want=want)


def as_bytes(buffer: Any, index: int | str, writable: bool) -> Bytes:
    """The bytes of one buffer, without a copy. Raises InvalidArgument."""
    if isinstance(buffer, np.ndarray):
        row = _from_numpy(buffer, index)
    elif type(buffer).__module__.partition(".")[0] == "torch" or _is_tensor(buffer):
        row = _from_torch(buffer, index)
    else:
        row = _from_buffer(buffer, index)
    if writable and not row.flags.writeable:
        raise InvalidArgument(
            f"buffer {index} ({type(buffer).__name__}) is read-only, it cannot be filled", index=index
        )
    return row


def _from_numpy(array: Any, index: int | str) -> Bytes:
    if not array.flags.c_contiguous:
        raise InvalidArgument(f"buffer {index}: the numpy array is not contiguous; pass a contiguous one", index=index)
    if array.dtype == np.uint8 and array.ndim == 1:
        return array  # type: ignore[no-any-return]
    if array.dtype.hasobject:
        raise InvalidArgument(f"buffer {index}: a numpy array of Python objects holds no bytes", index=index)
    return array.reshape(-1).view(np.uint8)  # type: ignore[no-any-return]


def _is_tensor(value: object) -> bool:
    """Whether it is an instance of a subclass of torch.Tensor; torch is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _from_torch(tensor: Any, index: int | str) -> Bytes:
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"buffer {index}: the tensor is on {tensor.device}, not in host memory", index=index)
    if tensor.layout is not torch.strided:
        raise InvalidArgument(f"buffer {index}: the tensor is sparse; pass tensor.to_dense()", index=index)
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgument(
            f"buffer {index}: the tensor is a conjugate or negated view; pass tensor.resolve_conj().resolve_neg()",
            index=index,
        )
    if not tensor.is_contiguous():
        raise InvalidArgument(f"buffer {index}: the tensor is not contiguous; pass tensor.contiguous()", index=index)
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()  # type: ignore[no-any-return]


def _from_buffer(buffer: object, index: int | str) -> Bytes:
    try:
        return np.frombuffer(buffer, dtype=np.uint8)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, BufferError, AttributeError) as error:
        if isinstance(buffer, (bytes, bytearray)):
            return np.empty(0, dtype=np.uint8)
        raise InvalidArgument(
            f"buffer {index} is {type(buffer).__name__}, not a contiguous buffer: {error}; "
            "pass bytes, bytearray, memoryview, a numpy array or a torch CPU tensor",
            index=index,
        ) from None
