"""KV pages in CUDA memory: batched copies on streams of their own, events instead of synchronization.

A save gathers all pages of a batch with one kernel a run of layers, on a low-priority stream behind the step's
compute, into pinned staging; the saving thread waits for its event. A load goes the other way and ends when its
event has passed, so that what is reported as received is there for every later step, in graphs or not.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .pages import Bytes, Place, UnsupportedPages, place, runs


class DevicePages:
    """The same interface as :class:`~.pages.HostPages`, with fences. Works on any torch device with streams."""

    fenced = True

    def __init__(self, caches: Mapping[str, Any], layers: Mapping[int, Sequence[str]], num_blocks: int) -> None:
        self._keep = dict(caches)
        self.device = next(iter(caches.values())).device
        self._views: dict[int, list[torch.Tensor]] = {}
        for group, names in layers.items():
            found = runs([place(caches[name], num_blocks) for name in names])
            self._views[group] = [self._view(*run, num_blocks) for run in found]
        self._save = torch.cuda.Stream(self.device, priority=0)  # 0 is the least
        self._load = torch.cuda.Stream(self.device, priority=0)
        self._last_save: torch.cuda.Event | None = None
        self._lock = threading.Lock()

    def _view(self, at: Place, count: int, step: int, num_blocks: int) -> torch.Tensor:
        """Shape (blocks, layers, bytes of a page)."""
        owner = next(c for c in self._keep.values() if c.untyped_storage().data_ptr() == at.storage)
        whole = torch.empty(0, dtype=torch.uint8, device=self.device).set_(owner.untyped_storage())
        end = at.offset + (num_blocks - 1) * at.stride + (count - 1) * step + at.page_bytes
        if end > at.storage_bytes:
            raise UnsupportedPages(f"pages end at byte {end} of a storage of {at.storage_bytes}")
        return whole.as_strided((num_blocks, count, at.page_bytes), (at.stride, step or at.page_bytes, 1), at.offset)

    def page_bytes(self, group: int) -> int:
        return sum(int(view.shape[1] * view.shape[2]) for view in self._views[group])

    @staticmethod
    def make_staging(size: int) -> Bytes:
        """Pinned host memory, as an array that keeps it alive."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()

    def fence(self) -> None:
        """The stream of the step waits for the copies out of pages that may be overwritten now; the host does not."""
        if self._last_save is not None:
            torch.cuda.current_stream(self.device).wait_event(self._last_save)

    def after_compute(self) -> torch.cuda.Event:
        """An event behind everything that was launched so far."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def gather(self, group: int, part: tuple[int, int], pages: Sequence[int], out: Bytes) -> torch.cuda.Event:
        """Starts the copy of pages into pinned ``out``; returns the event at its end."""
        self._save.wait_event(self.after_compute())
        with torch.cuda.stream(self._save):
            rows = self._rows(pages)
            picked = [columns.index_select(0, rows).flatten(1) for columns in self._columns(group, part)]
            whole = picked[0] if len(picked) == 1 else torch.cat(picked, dim=1)
            torch.from_numpy(out).copy_(whole, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._save)
        self._last_save = event
        return event

    def scatter(self, group: int, part: tuple[int, int], pages: Sequence[int], source: Bytes) -> torch.cuda.Event:
        """The way back, from a loading thread. Page 0 is skipped."""
        with self._lock, torch.cuda.device(self.device), torch.cuda.stream(self._load):
            wanted = self._rows([row for row, page in enumerate(pages) if page])
            rows = self._rows([page for page in pages if page])
            whole, at = torch.from_numpy(source).to(self.device, non_blocking=True).index_select(0, wanted), 0
            for columns in self._columns(group, part):
                count, width = int(columns.shape[1]), int(columns.shape[2])
                columns.index_copy_(0, rows, whole[:, at : at + count * width].reshape(-1, count, width))
                at += count * width
            event = torch.cuda.Event()
            event.record(self._load)
        return event

    def _rows(self, rows: Sequence[int]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.int64).pin_memory().to(self.device, non_blocking=True)

    def _columns(self, group: int, part: tuple[int, int]) -> list[torch.Tensor]:
        """The head range of every page, shape (blocks, layers, bytes), a run of layers each."""
        index, of = part
        widths = [(view, int(view.shape[2]) // of) for view in self._views[group]]
        return [view[:, :, index * width : (index + 1) * width] for view, width in widths]
