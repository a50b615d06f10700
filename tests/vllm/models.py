"""Tiny random models, made locally: what matters of an architecture at a size that a CPU runs in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 1024


def make(kind: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Writes a model of this kind (llama, gemma2, window, mla) to ``folder / name`` and returns the path."""
    target = folder / "-".join([kind, str(seed), *(f"{k}{v}" for k, v in sorted(changes.items()))])
    if (target / "config.json").exists():
        return target
    import torch

    torch.manual_seed(seed)
    model = _MAKERS[kind](**changes).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)  # far enough from zero that outputs depend on the context
    model.save_pretrained(target)
    return target


def _llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    return LlamaForCausalLM(LlamaConfig(**{**values, **changes}))


def _gemma2(**changes: Any) -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 256,
        "max_position_embeddings": 4096,
    }
    return Gemma2ForCausalLM(Gemma2Config(**{**values, **changes}))


def _window(**changes: Any) -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "sliding_window": 256,
        "max_position_embeddings": 4096,
    }
    return MistralForCausalLM(MistralConfig(**{**values, **changes}))


def _mla(**changes: Any) -> Any:
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 2,
        "max_position_embeddings": 4096,
    }
    return DeepseekV2ForCausalLM(DeepseekV2Config(**{**values, **changes}))


def add_tokenizer(model: Path) -> None:
    """Words ``w0`` to ``w1023``, for servers that are spoken to in text."""
    if (model / "tokenizer.json").exists():
        return
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w1", eos_token="w2", unk_token="w0")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    fast.save_pretrained(model)


_MAKERS = {"llama": _llama, "gemma2": _gemma2, "window": _window, "mla": _mla}


def make_lora(model: Path, folder: Path, seed: int) -> Path:
    """A LoRA adapter for the llama model."""
    import torch
    from safetensors.torch import save_file

    target = folder / f"lora-{seed}"
    if (target / "adapter_config.json").exists():
        return target
    target.mkdir(parents=True)
    torch.manual_seed(seed)
    config = json.loads((model / "config.json").read_text())
    hidden, rank = config["hidden_size"], 8
    width = config["num_attention_heads"] * config["head_dim"]
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(rank, hidden) * 0.2
        tensors[f"{name}.lora_B.weight"] = torch.randn(width, rank) * 0.2
    save_file(tensors, str(target / "adapter_model.safetensors"))
    (target / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "base_model_name_or_path": str(model),
                "r": rank,
                "lora_alpha": 16,
                "target_modules": ["q_proj"],
                "bias": "none",
                "task_type": "CAUSAL_LM",
            }
        )
    )
    return target
