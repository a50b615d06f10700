"""The decoder computes what transformers' LlamaForCausalLM computes on the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from kvstore.connector.decoder import Engine, Llama, Request, Tokenizer, bundled_model
from tests.unit.decoder.helpers import prompt, run_recorded, save_model

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped heads, tied": {},
    "untied": {"tie_word_embeddings": False},
    "one key-value head": {"num_key_value_heads": 1},
    "a key-value head for each head": {"num_key_value_heads": 4},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head size of its own": {"head_dim": 32},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_match_transformers(tmp_path: Path, variant: str) -> None:
    reference = save_model(tmp_path, **VARIANTS[variant])
    ids = prompt(333)
    with torch.inference_mode():
        want = reference(input_ids=torch.tensor([ids]), logits_to_keep=1).logits[0, -1]
    scores = run_recorded(Llama.load(tmp_path), None, [Request(ids, max_new_tokens=1)]).scores
    torch.testing.assert_close(scores[0][0], want, rtol=1e-4, atol=1e-3 * float(want.abs().max()))


@pytest.mark.parametrize("variant", ["grouped heads, tied", "llama3 rope"])
def test_greedy_continuation_matches_transformers(tmp_path: Path, variant: str) -> None:
    reference = save_model(tmp_path, **VARIANTS[variant])
    ids = prompt(200)
    with torch.inference_mode():
        want = reference.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False, eos_token_id=None)[0, 200:]
    (result,) = Engine(Llama.load(tmp_path)).run([Request(ids, max_new_tokens=12)])
    assert result.ids[0] == want.tolist()


def test_a_sharded_checkpoint_loads_like_a_single_file(tmp_path: Path) -> None:
    reference = save_model(tmp_path / "single")
    reference.save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    one, many = (run_recorded(Llama.load(tmp_path / d), None, [Request(prompt(60), 3)]) for d in ("single", "sharded"))
    assert all(torch.equal(a, b) for a, b in zip(one.scores, many.scores, strict=True))


def test_the_bundled_model_matches_transformers_at_thousands_of_tokens() -> None:
    text = (bundled_model() / "jonah.txt").read_text()
    ids = tuple(Tokenizer(bundled_model()).encode(text))[:4100]
    reference = LlamaForCausalLM.from_pretrained(bundled_model(), dtype=torch.float32).eval()
    with torch.inference_mode():
        want = reference(input_ids=torch.tensor([ids]), logits_to_keep=1).logits[0, -1]
    scores = run_recorded(Llama.load(bundled_model()), None, [Request(ids, max_new_tokens=1)]).scores
    torch.testing.assert_close(scores[0][0], want, rtol=1e-3, atol=1e-3)


def test_the_bundled_tokenizer_is_the_one_transformers_reads() -> None:
    text = 'And he said, "Who art thou?" – ¿é?\n\t'
    ours, theirs = Tokenizer(bundled_model()), AutoTokenizer.from_pretrained(bundled_model())
    assert ours.encode(text) == theirs(text)["input_ids"] == [256, *text.encode()]
    assert ours.decode([*ours.encode(text), 257]) == text
