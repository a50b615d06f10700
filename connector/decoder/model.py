"""The Llama architecture as plain tensors. Attention over the paged cache is the caller's, see attention.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from kvstore.connector.decoder.config import ModelConfig
from kvstore.connector.decoder.rope import frequencies, rotate, rotation
from kvstore.connector.decoder.weights import fingerprint, read_weights
from kvstore.core.errors import ConfigError

# (layer, queries (n, heads, head_dim), keys and values (n, kv_heads, head_dim)) → (n, heads * head_dim)
Attend: TypeAlias = "Callable[[int, Tensor, Tensor, Tensor], Tensor]"
Linear: TypeAlias = "tuple[Tensor, Tensor | None]"  # weight (out, in) and bias (out,)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; query, key and value, and gate and up, are one matrix each."""

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class Llama:
    """A model ready to compute. Holds no state between calls."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], identity: str) -> None:
        self.config, self.identity = config, identity
        take = _Taker(config, weights)
        self._embedding = take("model.embed_tokens.weight", config.vocab, config.hidden)
        self._layers = [take.layer(index) for index in range(config.layers)]
        self._norm = take("model.norm.weight", config.hidden)
        tied = config.tied or "lm_head.weight" not in weights
        self._head = self._embedding if tied else take("lm_head.weight", config.vocab, config.hidden)
        self._frequencies = frequencies(config)

    @classmethod
    def load(cls, directory: str | Path, dtype: torch.dtype = torch.float32) -> Llama:
        """Reads a local Hugging Face checkpoint. Raises ConfigError naming what is wrong with it."""
        path = Path(directory)
        return cls(ModelConfig.load(path), read_weights(path, dtype), fingerprint(path))

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Final hidden states (n, hidden) of tokens ``ids`` (n,) at ``positions`` (n,)."""
        turn = rotation(positions, self._frequencies, self.dtype)
        x = functional.embedding(ids, self._embedding)
        for index, layer in enumerate(self._layers):
            x = x + self._attention(index, layer, x, turn, attend)
            x = x + self._mlp(layer, x)
        return self._normed(x, self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, float32 (n, vocab)."""
        return functional.linear(hidden, self._head).float()

    def _attention(self, index: int, layer: Layer, x: Tensor, turn: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        config = self.config
        mixed = functional.linear(self._normed(x, layer.attention_norm), *layer.qkv).view(len(x), -1, config.head_dim)
        queries, keys, values = mixed.split((config.heads, config.kv_heads, config.kv_heads), dim=1)
        seen = attend(index, rotate(queries, *turn), rotate(keys, *turn), values)
        return functional.linear(seen, *layer.output)

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        gate, up = functional.linear(self._normed(x, layer.mlp_norm), *layer.gate_up).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, *layer.down)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.eps)
        return weight * scaled.to(x.dtype)


class _Taker:
    """Takes tensors out of a checkpoint and checks their shapes."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        self._config, self._weights = config, weights

    def __call__(self, name: str, *shape: int) -> Tensor:
        tensor = self._weights.get(name)
        if tensor is None:
            raise ConfigError(f"the checkpoint has no tensor {name!r}; is it a Llama model?", field=name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"tensor {name!r} is {tuple(tensor.shape)}, config.json says {shape}", field=name)
        return tensor

    def layer(self, index: int) -> Layer:
        config, at = self._config, f"model.layers.{index}."
        queries, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
        attention, mlp = config.attention_bias, config.mlp_bias
        outputs = {"self_attn.q_proj": queries, "self_attn.k_proj": shared, "self_attn.v_proj": shared}
        gates = {"mlp.gate_proj": config.intermediate, "mlp.up_proj": config.intermediate}
        return Layer(
            attention_norm=self(at + "input_layernorm.weight", config.hidden),
            qkv=self._linear(at, outputs, config.hidden, attention),
            output=self._linear(at, {"self_attn.o_proj": config.hidden}, queries, attention),
            mlp_norm=self(at + "post_attention_layernorm.weight", config.hidden),
            gate_up=self._linear(at, gates, config.hidden, mlp),
            down=self._linear(at, {"mlp.down_proj": config.hidden}, config.intermediate, mlp),
        )

    def _linear(self, at: str, outputs: Mapping[str, int], inputs: int, bias: bool) -> Linear:
        """Several matrices over the same input as one."""
        weight = torch.cat([self(f"{at}{name}.weight", size, inputs) for name, size in outputs.items()])
        if not bias:
            return weight, None
        return weight, torch.cat([self(f"{at}{name}.bias", size) for name, size in outputs.items()])
