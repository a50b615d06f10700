"""Weights by content, pages, and what moves between them and staging."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvstore.connector.vllm.adapters import AdapterDigests
from kvstore.connector.vllm.descriptor import OwnPart
from kvstore.connector.vllm.mover import Mover, Span, spans_of_loads
from kvstore.connector.vllm.options import Options
from kvstore.connector.vllm.pages import HostPages, UnsupportedPages, place, runs
from kvstore.connector.vllm.planner import LoadRun
from kvstore.connector.vllm.weights import NoWeights, digest_dir

# --- weights


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_weights_are_known_by_content_not_by_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name / "model.safetensors", b"weights")
        write(tmp_path / name / "config.json", name.encode())
    cache = str(tmp_path / "cache")
    same = digest_dir(str(tmp_path / "a"), cache)
    assert digest_dir(str(tmp_path / "b"), cache) == same
    write(tmp_path / "b" / "model.safetensors", b"weightz")
    os.utime(tmp_path / "b" / "model.safetensors", ns=(1, 1))
    assert digest_dir(str(tmp_path / "b"), cache) != same
    write(tmp_path / "a" / "more.safetensors", b"")
    assert digest_dir(str(tmp_path / "a"), cache) != same


def test_a_digest_is_taken_once_per_file(tmp_path: Path) -> None:
    file = tmp_path / "m" / "model.safetensors"
    write(file, b"weights")
    first = digest_dir(str(tmp_path / "m"), str(tmp_path / "cache"))
    stat = file.stat()
    file.write_bytes(b"changed")  # same size; with the old times nobody could tell
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert digest_dir(str(tmp_path / "m"), str(tmp_path / "cache")) == first
    assert digest_dir(str(tmp_path / "m"), str(tmp_path / "other")) != first


def test_files_of_a_hub_are_known_by_their_names(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / ("ab" * 32)
    write(blob, b"x")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(blob)
    before = digest_dir(str(tmp_path / "snapshot"), str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists(), "nothing had to be read"
    assert before


def test_a_place_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoWeights, match="holds no weight files"):
        digest_dir(str(tmp_path), str(tmp_path / "cache"))


def test_an_adapter_is_known_by_its_content(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        write(tmp_path / name / "adapter_model.safetensors", content)

    def lora(name: str, number: int, **more: Any) -> Any:
        return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=str(tmp_path / name), **more)

    digests = AdapterDigests(Options.parse({"cache_dir": str(tmp_path / "cache")}))
    a, b, c = (digests.salt(lora(name, i)) for i, name in enumerate("abc"))
    assert a == b != c
    assert digests.salt(None) == b""
    assert digests.salt(lora("gone", 9)) is None
    assert "'gone' are not cached" in caplog.text
    assert digests.salt(lora("a", 0, load_inplace=True)) is None
    assert digests.salt(lora("a", 0)) is None, "its content may have changed since"
    assert AdapterDigests(Options.parse({"lora": "refuse"})).salt(lora("a", 0)) is None
    assert AdapterDigests(Options.parse({"lora": "trust-name"})).salt(lora("gone", 1))


# --- pages


class Tensor:
    """The few methods of a torch tensor that pages use, over numpy."""

    def __init__(
        self, storage: np.ndarray[Any, Any], shape: tuple[int, ...], strides: tuple[int, ...], at: int
    ) -> None:
        self.storage, self.shape, self._strides, self._at = storage, shape, strides, at

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return 2

    def data_ptr(self) -> int:
        return int(self.storage.ctypes.data) + self._at

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=lambda: int(self.storage.ctypes.data), nbytes=lambda: self.storage.nbytes)


def layers(order: str, blocks: int = 6, count: int = 3) -> tuple[np.ndarray[Any, Any], dict[str, Tensor]]:
    """Layers of pages of (2 heads, 4 tokens, 8 values), layer- or block-outermost."""
    page = 2 * 4 * 8
    storage = np.random.default_rng(0).integers(0, 1 << 16, blocks * count * page, dtype=np.uint16).view(np.uint8)
    block = page if order == "LB" else page * count
    layer = page * blocks if order == "LB" else page
    made = {f"l{i}": Tensor(storage, (blocks, 2, 4, 8), (block, 32, 8, 1), 2 * layer * i) for i in range(count)}
    return storage, made


@pytest.mark.parametrize("order", ["LB", "BL"])
def test_pages_are_gathered_layer_by_layer_and_scattered_back(order: str) -> None:
    storage, caches = layers(order)
    pages = HostPages(caches, {0: list(caches)}, 6)
    assert pages.page_bytes(0) == 3 * 128
    out = np.zeros((2, 384), np.uint8)
    pages.gather(0, (0, 1), [4, 2], out)
    for row, page in enumerate((4, 2)):
        for layer, tensor in enumerate(caches.values()):
            start = tensor._at + 2 * page * tensor.stride()[0]
            assert out[row, layer * 128 : (layer + 1) * 128].tobytes() == storage[start : start + 128].tobytes()
    before = storage.copy()
    pages.scatter(0, (0, 1), [1, 0], out)
    again = np.zeros((1, 384), np.uint8)
    pages.gather(0, (0, 1), [1], again)
    assert again[0].tobytes() == out[0].tobytes()
    first = caches["l0"]
    assert storage[first._at : first._at + 128].tobytes() == before[first._at : first._at + 128].tobytes(), (
        "page 0 is null"
    )


def test_head_ranges_of_a_page_are_its_columns() -> None:
    _, caches = layers("LB")
    pages = HostPages(caches, {0: list(caches)}, 6)
    whole, halves = np.zeros((1, 384), np.uint8), [np.zeros((1, 192), np.uint8) for _ in range(2)]
    pages.gather(0, (0, 1), [3], whole)
    for index in range(2):
        pages.gather(0, (index, 2), [3], halves[index])
    joined = np.concatenate([h.reshape(3, 64) for h in halves], axis=1)
    assert joined.tobytes() == whole.tobytes()


def test_kernel_blocks_of_a_block_are_one_page() -> None:
    storage = np.arange(4 * 2 * 32, dtype=np.uint16).view(np.uint8)
    found = place(Tensor(storage, (8, 1, 4, 8), (32, 32, 8, 1), 0), 4)
    assert (found.stride, found.page_bytes) == (128, 128)


def test_pages_in_pieces_are_refused() -> None:
    storage = np.zeros(4096, np.uint8)
    with pytest.raises(UnsupportedPages, match="not contiguous"):
        place(Tensor(storage, (4, 2, 4, 8), (32, 512, 8, 1), 0), 4)
    with pytest.raises(UnsupportedPages, match="kernel blocks"):
        place(Tensor(storage, (5, 2, 4, 8), (64, 32, 8, 1), 0), 4)


def test_layers_at_one_distance_are_one_run() -> None:
    _, caches = layers("BL")
    places = [place(tensor, 6) for tensor in caches.values()]
    assert [(count, step) for _, count, step in runs(places)] == [(3, 128)]
    assert [count for _, count, _ in runs([places[0], places[2], places[1]])] == [2, 1]


def test_spans_are_cut_into_pieces_that_fit_and_name_buffers_block_major() -> None:
    pages: Any = SimpleNamespace(page_bytes=lambda group: 100 * (group + 1))
    mover = Mover(pages, [OwnPart(0, 0, 0, 1), OwnPart(3, 1, 0, 2)], {0: 1, 1: 2})
    assert mover.block_bytes == 100 + 200
    span = Span(5, 4, {0: (1, 2, 3, 4), 1: (1, 2, 3, 4, 5, 6, 7, 8)})
    cut = mover.batches(span, 650)
    assert [(c.first, c.count, c.pages[1]) for c in cut] == [(5, 2, (1, 2, 3, 4)), (7, 2, (5, 6, 7, 8))]
    buffers = mover.buffers(cut[0], np.zeros(1000, np.uint8))
    assert [len(buffer) for buffer in buffers] == [100, 200, 100, 200]


def test_groups_with_one_range_are_fetched_together() -> None:
    spans = spans_of_loads([LoadRun(0, 0, 2, (1, 2)), LoadRun(1, 1, 1, (3,)), LoadRun(2, 0, 2, (4, 5))])
    assert [(s.first, s.count, s.groups) for s in spans] == [(0, 2, (0, 2)), (1, 1, (1,))]
