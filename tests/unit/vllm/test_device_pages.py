"""The arithmetic of copies on devices, with streams that do nothing: a machine with CUDA runs tests/gpu."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch

BLOCKS, LAYERS, HEADS, TOKENS, WIDTH = 8, 3, 2, 4, 8
PAGE = HEADS * TOKENS * WIDTH * 2


class Stream:
    """Everything is done at once."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record(self, stream: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.fixture(params=["LB", "BL", "two allocations"])
def made(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    from kvstore.connector.vllm.device_pages import DevicePages

    for name in ("Stream", "Event"):
        monkeypatch.setattr(torch.cuda, name, Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda value: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    size = BLOCKS * PAGE
    storages = [torch.randint(0, 255, (LAYERS * size,), dtype=torch.uint8) for _ in range(2)]
    if request.param == "BL":
        order = storages[0].view(torch.bfloat16).view(BLOCKS, LAYERS, HEADS, TOKENS, WIDTH).transpose(0, 1)
    else:
        order = storages[0].view(torch.bfloat16).view(LAYERS, BLOCKS, HEADS, TOKENS, WIDTH)
    layers = {f"l{i}": order[i] for i in range(LAYERS)}
    if request.param == "two allocations":
        layers["l1"] = storages[1].view(torch.bfloat16).view(LAYERS, BLOCKS, HEADS, TOKENS, WIDTH)[2]
    return DevicePages(layers, {0: list(layers)}, BLOCKS), layers


def content(layers: Any, page: int) -> bytes:
    return b"".join(layer[page].contiguous().view(torch.uint8).numpy().tobytes() for layer in layers.values())


def test_pages_are_gathered_and_written_back(made: Any) -> None:
    pages, layers = made
    assert pages.page_bytes(0) == LAYERS * PAGE
    out = np.zeros((2, LAYERS * PAGE), np.uint8)
    pages.gather(0, (0, 1), [5, 2], out).synchronize()
    assert [row.tobytes() for row in out] == [content(layers, 5), content(layers, 2)]
    null = content(layers, 0)
    pages.scatter(0, (0, 1), [0, 6], out).synchronize()
    assert content(layers, 6) == out[1].tobytes()
    assert content(layers, 0) == null


def test_head_ranges_go_there_and_back(made: Any) -> None:
    pages, layers = made
    halves = [np.zeros((1, LAYERS * PAGE // 2), np.uint8) for _ in range(2)]
    for index, out in enumerate(halves):
        pages.gather(0, (index, 2), [3], out)
    joined = np.concatenate([half.reshape(LAYERS, PAGE // 2) for half in halves], axis=1)
    assert joined.tobytes() == content(layers, 3)
    for index, source in enumerate(halves):
        pages.scatter(0, (index, 2), [4], source)
    assert content(layers, 4) == content(layers, 3)
