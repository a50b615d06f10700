"""Checkpoints that cannot be right are refused, naming what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kvstore.connector.decoder import Llama, ModelConfig, Sampling, Tokenizer, bundled_model
from kvstore.connector.decoder.requests import Sampler
from kvstore.core.errors import ConfigError, InvalidArgument
from tests.unit.decoder.helpers import save_model


def change(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"num_key_value_heads": 3}, "3 key-value heads"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"intermediate_size": 161}, "mlp.gate_proj"),
        ({"tie_word_embeddings": False, "num_hidden_layers": 4}, "layers.3"),
    ],
)
def test_a_checkpoint_that_is_not_supported_names_the_reason(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    save_model(tmp_path)
    change(tmp_path, **changes)
    with pytest.raises(ConfigError, match=named):
        Llama.load(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        Llama.load(tmp_path)
    save_model(tmp_path)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        Llama.load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part-1.safetensors"}}))
    with pytest.raises(ConfigError, match="part-1"):
        Llama.load(tmp_path)


def test_a_cut_off_weights_file_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cannot be read"):
        Llama.load(tmp_path)


def test_one_other_weight_is_another_model(tmp_path: Path) -> None:
    save_model(tmp_path)
    before = Llama.load(tmp_path).identity
    assert Llama.load(tmp_path).identity == before
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert Llama.load(tmp_path).identity != before


@pytest.mark.parametrize(
    ("section", "theta", "kind"),
    [
        ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}, 5e5, "linear"),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, "default"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, 7.0, "default"),
        ({}, 10_000.0, "default"),
    ],
)
def test_old_and_new_forms_of_the_rope_settings_are_read(section: dict[str, Any], theta: float, kind: str) -> None:
    base = {
        "model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }  # fmt: skip
    config = ModelConfig.parse(base | section)
    assert (config.rope_theta, config.rope.kind, config.kv_heads) == (theta, kind, 2)


def test_the_bundled_model_is_small_and_reads_far() -> None:
    size = sum(path.stat().st_size for path in bundled_model().iterdir())
    assert size < 10_000_000
    assert ModelConfig.load(bundled_model()).max_positions >= 16_384
    assert {path.name for path in bundled_model().iterdir()} >= {"PROVENANCE.md", "model.safetensors", "tokenizer.json"}


def test_top_k_and_top_p_keep_the_likely_ids_only() -> None:
    scores = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    for sampling, allowed in ((Sampling(1.0, top_k=2), {0, 1}), (Sampling(1.0, top_p=0.7), {0, 1}), (Sampling(), {0})):
        assert {Sampler(sampling, sample)(scores) for sample in range(60)} == allowed


@pytest.mark.parametrize("bad", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_sampling_out_of_range_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        Sampling(**bad)  # type: ignore[arg-type]
