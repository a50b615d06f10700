"""The KV size formula against published sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli import main
from kvstore.cli.size import element_bytes, shape_of
from kvstore.core.errors import InvalidArgument

LLAMA_8B = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_70B = {**LLAMA_8B, "num_hidden_layers": 80, "num_attention_heads": 64, "hidden_size": 8192}
DEEPSEEK = {
    "num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "hidden_size": 7168, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA2 = {
    "model_type": "gemma2", "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 256, "sliding_window": 4096,
}  # fmt: skip


def test_llama_8b_takes_128_kib_a_token_and_2_mib_a_block() -> None:
    shape = shape_of(LLAMA_8B)
    assert shape.token_bytes(2) == 128 << 10
    assert shape.token_bytes(2) * 16 == 2 << 20
    assert shape.token_bytes(element_bytes(shape, "fp8")) == 64 << 10


def test_a_context_of_131072_tokens_of_a_70b_model_takes_43_gb() -> None:
    assert round(shape_of(LLAMA_70B).context_bytes(131_072, 2) / 1e9) == 43


def test_mla_keeps_one_latent_for_all_heads() -> None:
    shape = shape_of(DEEPSEEK)
    assert (shape.kind, shape.values) == ("mla", 576)


def test_window_layers_keep_their_window_in_the_engine_and_every_block_in_the_store() -> None:
    shape = shape_of(GEMMA2)
    assert (shape.full, shape.window) == (21, 21)
    one = shape.values * 2
    assert shape.context_bytes(10_000, 2) == 21 * one * (10_000 + 4096)
    assert shape.token_bytes(2) == 42 * one


@pytest.mark.parametrize(
    ("more", "window"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"] * 16}, 16),
        ({"sliding_window_pattern": 4}, 24),
        ({"use_sliding_window": False}, 0),
        ({}, 32),
    ],
)
def test_which_layers_have_a_window(more: dict[str, Any], window: int) -> None:
    assert shape_of({**LLAMA_8B, "sliding_window": 1024, **more}).window == window


def test_the_text_part_of_a_multimodal_config_counts() -> None:
    assert shape_of({"text_config": LLAMA_8B, "vision_config": {}}) == shape_of(LLAMA_8B)


def test_a_config_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="num_hidden_layers"):
        shape_of({"a": 1})
    with pytest.raises(InvalidArgument, match="kv dtype"):
        element_bytes(shape_of(LLAMA_8B), "int3")


def test_the_command_prints_the_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert main(["size", "--model", str(tmp_path), "--context", "1000", "--contexts", "3", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["block_bytes"] == 2 << 20
    assert value["store_bytes"] == 62 * (2 << 20) * 3
    assert main(["size", "--model", str(tmp_path), "--tp", "4"]) == 0
    assert "512KiB" in capsys.readouterr().out
    assert main(["size", "--model", str(tmp_path / "no.json")]) == 2
