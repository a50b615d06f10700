"""The shape of a Llama-architecture model, read from a Hugging Face config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kvstore.core.errors import ConfigError

ARCHITECTURE = "LlamaForCausalLM"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. ``linear``: all by ``factor``; ``llama3``: the slow ones only."""

    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a model. ``eos`` may be several ids; ``head_dim`` need not be hidden / heads."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    eps: float
    rope_theta: float
    rope: RopeScaling = field(default_factory=RopeScaling)
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    bos: int | None = None
    eos: tuple[int, ...] = ()

    @classmethod
    def load(cls, directory: Path) -> ModelConfig:
        """Reads ``directory``/config.json. Raises ConfigError saying what is missing or not of this architecture."""
        path = directory / "config.json"
        try:
            raw = json.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"{directory} is no checkpoint directory: {error}") from None
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON: {error}") from None
        return cls.parse(raw, str(path))

    @classmethod
    def parse(cls, raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        """The config of an already parsed config.json; ``where`` is for messages."""
        _check_architecture(raw, where)
        try:
            heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
            config = cls(
                vocab=int(raw["vocab_size"]),
                hidden=hidden,
                intermediate=int(raw["intermediate_size"]),
                layers=int(raw["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_dim=int(raw.get("head_dim") or hidden // heads),
                max_positions=int(raw.get("max_position_embeddings", 2048)),
                eps=float(raw.get("rms_norm_eps", 1e-6)),
                rope_theta=_rope_theta(raw),
                rope=_rope_scaling(raw, where),
                tied=bool(raw.get("tie_word_embeddings", False)),
                attention_bias=bool(raw.get("attention_bias", False)),
                mlp_bias=bool(raw.get("mlp_bias", False)),
                bos=raw.get("bos_token_id"),
                eos=_ids(raw.get("eos_token_id")),
            )
        except KeyError as error:
            raise ConfigError(f"{where}: {error.args[0]} is missing", field=error.args[0]) from None
        if config.heads % config.kv_heads:
            raise ConfigError(f"{where}: {config.heads} heads cannot be shared by {config.kv_heads} key-value heads")
        return config


def _check_architecture(raw: Mapping[str, Any], where: str) -> None:
    named = raw.get("architectures") or [ARCHITECTURE if raw.get("model_type") == "llama" else "none"]
    if ARCHITECTURE not in named:
        raise ConfigError(f"{where}: architecture {', '.join(named)} is not supported, only {ARCHITECTURE}")
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(
            f"{where}: hidden_act {raw['hidden_act']!r} is not supported, only 'silu'", field="hidden_act"
        )
    if raw.get("quantization_config"):
        raise ConfigError(f"{where}: quantized weights are not supported; give a float checkpoint")


def _rope_section(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Newer files keep all of it in ``rope_parameters``, older ones in ``rope_scaling`` beside ``rope_theta``."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _rope_theta(raw: Mapping[str, Any]) -> float:
    return float(_rope_section(raw).get("rope_theta") or raw.get("rope_theta") or 10_000.0)


def _rope_scaling(raw: Mapping[str, Any], where: str) -> RopeScaling:
    section = _rope_section(raw)
    kind = section.get("rope_type") or section.get("type") or "default"
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", float(section["factor"]))
    if kind != "llama3":
        raise ConfigError(
            f"{where}: rope type {kind!r} is not supported, only default, linear and llama3", field="rope_type"
        )
    return RopeScaling(
        "llama3",
        float(section["factor"]),
        float(section["low_freq_factor"]),
        float(section["high_freq_factor"]),
        int(section["original_max_position_embeddings"]),
    )


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)
