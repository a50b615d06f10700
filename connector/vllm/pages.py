"""KV pages in host memory: copies between paged memory and contiguous parts.

The bytes of a part are opaque: for each page of the block, for each layer of the group (in group order), the
page's bytes. A head range is the same with a column range of each page.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class UnsupportedPages(Exception):
    """A layer's pages are not each one run of bytes."""


@dataclass(frozen=True)
class Place:
    """Where the pages of one layer lie: page b starts at ``offset + b * stride`` of the storage at ``storage``."""

    storage: int
    storage_bytes: int
    offset: int
    stride: int
    page_bytes: int


def place(tensor: Any, num_blocks: int) -> Place:
    """Place of a registered cache view of shape (num_blocks * ratio, ...). Raises UnsupportedPages."""
    size = int(tensor.element_size())
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if not shape or shape[0] % num_blocks:
        raise UnsupportedPages(f"a cache of shape {shape} is not a whole number of kernel blocks per block")
    ratio = shape[0] // num_blocks
    inner = 1
    for length, step in sorted(zip(shape[1:], strides[1:], strict=True), key=lambda pair: pair[1]):
        if length == 1:
            continue
        if step != inner:
            raise UnsupportedPages(f"pages of shape {shape[1:]} with strides {strides[1:]} are not contiguous")
        inner *= length
    if ratio > 1 and strides[0] != inner:
        raise UnsupportedPages(f"{ratio} kernel blocks of a block are {strides[0]} elements apart, not {inner}")
    storage = tensor.untyped_storage()
    base = int(storage.data_ptr())
    offset = int(tensor.data_ptr()) - base
    return Place(base, int(storage.nbytes()), offset, strides[0] * ratio * size, inner * ratio * size)


def runs(places: Sequence[Place]) -> list[tuple[Place, int, int]]:
    """Consecutive layers at a constant distance: (first place, layers, distance in bytes)."""
    out: list[tuple[Place, int, int]] = []
    for at in places:
        if out:
            first, count, step = out[-1]
            distance = at.offset - (first.offset + (count - 1) * step)
            alike = (at.storage, at.stride, at.page_bytes) == (first.storage, first.stride, first.page_bytes)
            if alike and distance > 0 and (count == 1 or distance == step):
                out[-1] = (first, count + 1, distance if count == 1 else step)
                continue
        out.append((at, 1, 0))
    return out


class HostPages:
    """Copies for CPU engines. Thread-safe as far as the pages copied are disjoint."""

    fenced = False  # copies are done when the call returns

    def __init__(self, caches: Mapping[str, Any], layers: Mapping[int, Sequence[str]], num_blocks: int) -> None:
        self._keep = dict(caches)  # the views below do not own the memory
        self._raw: dict[int, Bytes] = {}
        self._views: dict[int, list[Bytes]] = {}
        for group, names in layers.items():
            found = [place(caches[name], num_blocks) for name in names]
            self._views[group] = [self._view(*run, num_blocks) for run in runs(found)]

    def _view(self, at: Place, layers: int, step: int, num_blocks: int) -> Bytes:
        raw = self._raw.get(at.storage)
        if raw is None:
            buffer = (ctypes.c_uint8 * at.storage_bytes).from_address(at.storage)
            raw = self._raw[at.storage] = np.frombuffer(buffer, dtype=np.uint8)
        shape, strides = (num_blocks, layers, at.page_bytes), (at.stride, step, 1)
        end = at.offset + (num_blocks - 1) * at.stride + (layers - 1) * step + at.page_bytes
        if end > at.storage_bytes:
            raise UnsupportedPages(f"pages end at byte {end} of a storage of {at.storage_bytes}")
        return np.lib.stride_tricks.as_strided(raw[at.offset :], shape, strides)

    def page_bytes(self, group: int) -> int:
        """Bytes of one page of the group, all layers."""
        return sum(view.shape[1] * view.shape[2] for view in self._views[group])

    def gather(self, group: int, part: tuple[int, int], pages: Sequence[int], out: Bytes) -> None:
        """Copies pages into ``out``, shape (len(pages), part bytes of a page). ``part``: (head range, of how many)."""
        for paged, packed in self._pairs(group, part, out):
            for row, page in enumerate(pages):
                packed[row] = paged[page]

    def scatter(self, group: int, part: tuple[int, int], pages: Sequence[int], source: Bytes) -> None:
        """The way back. Page 0 is skipped."""
        for paged, packed in self._pairs(group, part, source):
            for row, page in enumerate(pages):
                if page:
                    paged[page] = packed[row]

    def _pairs(self, group: int, part: tuple[int, int], packed: Bytes) -> list[tuple[Bytes, Bytes]]:
        index, of = part
        out, at = [], 0
        for view in self._views[group]:
            layers, width = view.shape[1], view.shape[2] // of
            columns = view[:, :, index * width : (index + 1) * width]
            out.append((columns, packed[:, at : at + layers * width].reshape(-1, layers, width)))
            at += layers * width
        return out
