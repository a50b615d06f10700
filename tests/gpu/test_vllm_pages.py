"""Copies between CUDA pages and pinned staging. Needs a CUDA device and torch: python -m pytest tests/gpu."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kvstore.connector.vllm.device_pages import DevicePages

BLOCKS, LAYERS, HEADS, TOKENS, WIDTH = 32, 4, 2, 16, 64
PAGE = HEADS * TOKENS * WIDTH * 2


def caches(order: str) -> dict[str, torch.Tensor]:
    """Layers of one allocation, layer- or block-outermost, as vLLM registers them: (blocks, heads, tokens, values)."""
    whole = torch.randint(0, 255, (LAYERS * BLOCKS * PAGE,), dtype=torch.uint8, device="cuda").view(torch.bfloat16)
    shape = (LAYERS, BLOCKS, HEADS, TOKENS, WIDTH) if order == "LB" else (BLOCKS, LAYERS, HEADS, TOKENS, WIDTH)
    layered = whole.view(shape) if order == "LB" else whole.view(shape).transpose(0, 1)
    return {f"layer{i}": layered[i] for i in range(LAYERS)}


@pytest.fixture(params=["LB", "BL"])
def made(request: Any) -> tuple[DevicePages, dict[str, torch.Tensor]]:
    layers = caches(request.param)
    return DevicePages(layers, {0: list(layers)}, BLOCKS), layers


def expected(layers: dict[str, torch.Tensor], page: int) -> bytes:
    return b"".join(layer[page].contiguous().view(torch.uint8).cpu().numpy().tobytes() for layer in layers.values())


def test_pages_arrive_in_pinned_staging(made: tuple[DevicePages, dict[str, torch.Tensor]]) -> None:
    pages, layers = made
    out = pages.make_staging(3 * LAYERS * PAGE).reshape(3, LAYERS * PAGE)
    pages.gather(0, (0, 1), [5, 0, 31], out).synchronize()
    assert [row.tobytes() for row in out] == [expected(layers, page) for page in (5, 0, 31)]


def test_pages_are_written_back_and_page_0_is_left_alone(made: tuple[DevicePages, dict[str, torch.Tensor]]) -> None:
    pages, layers = made
    staging = pages.make_staging(3 * LAYERS * PAGE)
    staging[:] = np.random.default_rng(0).integers(0, 256, staging.size, np.uint8)
    rows, null = staging.reshape(3, LAYERS * PAGE), expected(layers, 0)
    pages.scatter(0, (0, 1), [7, 0, 9], rows).synchronize()
    assert expected(layers, 7) == rows[0].tobytes()
    assert expected(layers, 9) == rows[2].tobytes()
    assert expected(layers, 0) == null


def test_a_step_behind_the_fence_cannot_overtake_the_copy(made: tuple[DevicePages, dict[str, torch.Tensor]]) -> None:
    pages, layers = made
    before = [expected(layers, page) for page in range(1, 17)]
    out = pages.make_staging(16 * LAYERS * PAGE).reshape(16, LAYERS * PAGE)
    fence = pages.gather(0, (0, 1), range(1, 17), out)
    pages.fence()
    for layer in layers.values():
        layer[1:17].zero_()
    fence.synchronize()
    assert [row.tobytes() for row in out] == before


def test_head_ranges_are_columns(made: tuple[DevicePages, dict[str, torch.Tensor]]) -> None:
    pages, layers = made
    out = pages.make_staging(LAYERS * PAGE // 2).reshape(1, -1)
    pages.gather(0, (1, 2), [4], out).synchronize()
    half = PAGE // 2
    whole = np.frombuffer(expected(layers, 4), np.uint8).reshape(LAYERS, PAGE)
    assert out[0].tobytes() == whole[:, half:].tobytes()
