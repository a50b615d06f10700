"""Small random models and a client that keeps blocks in a dict, for the decoder's tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from kvstore.connector.decoder import Engine, Llama, ModelConfig, Request, Result
from kvstore.core.errors import Unavailable
from kvstore.core.keys import Keys, chain_keys
from kvstore.core.namespace import NamespaceSpec

SMALL: dict[str, Any] = {
    "vocab_size": 259, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096, "tie_word_embeddings": True,
    "bos_token_id": 256, "eos_token_id": 257,
}  # fmt: skip


def save_model(directory: Path, **changes: Any) -> LlamaForCausalLM:
    """Writes a checkpoint with random weights, large enough that a wrong position or head shows in the scores."""
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**(SMALL | changes))).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 else 0.0, 0.2)
    model.save_pretrained(directory)
    return model


def random_model(**changes: Any) -> Llama:
    """A model with random weights that never was on disk."""
    reference = LlamaForCausalLM(LlamaConfig(**(SMALL | changes)))
    generator = torch.Generator().manual_seed(7)
    weights = {
        name: torch.ones_like(value) if value.ndim == 1 else torch.randn(value.shape, generator=generator) * 0.2
        for name, value in reference.state_dict().items()
    }
    return Llama(
        ModelConfig.parse(reference.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}), weights, "random"
    )


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


@dataclass
class PutResult:
    stored: int = 0
    present: int = 0
    pending: int = 0
    failed: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


class DictNamespace:
    """A namespace of :class:`DictClient`: blocks by key; faults can be put in front of each call."""

    def __init__(self, spec: NamespaceSpec) -> None:
        self.spec, self.blocks, self.importance = spec, dict[bytes, bytes](), dict[bytes, int]()
        self.calls: list[tuple[str, int]] = []
        self.before: Callable[[str], None] = lambda call: None
        self.lock = threading.Lock()

    def keys(self, tokens: Sequence[int]) -> Keys:
        return Keys(chain_keys(self.spec.root, tokens, self.spec.block_tokens))

    def match(self, keys: Keys, timeout: float | None = None) -> int:
        self.before("match")
        return self._prefix(keys)

    def _prefix(self, keys: Keys) -> int:
        with self.lock:
            return next((at for at, key in enumerate(keys) if key not in self.blocks), len(keys))

    def get(self, keys: Keys, into: Sequence[memoryview], *, range: tuple[int, int], request_id: int = 0) -> int:
        self.before("get")
        offset, length = range
        found = self._prefix(keys)
        for key, buffer in zip(list(keys)[:found], into, strict=False):
            buffer[:] = self.blocks[key][offset : offset + length]
        self.calls.append(("get", found))
        return found

    def put(
        self, keys: Keys, blocks: Sequence[memoryview], *, first: int = 0, request_id: int = 0,
        importance: Any = None, appended_tokens: int = 0,
    ) -> PutResult:  # fmt: skip
        self.before("put")
        result = PutResult()
        assert len(blocks) == len(keys) - first
        for at, (key, block) in enumerate(zip(list(keys)[first:], blocks, strict=True)):
            assert len(block) == self.spec.block_bytes
            with self.lock:
                result.present += key in self.blocks
                result.stored += key not in self.blocks
                self.blocks.setdefault(key, bytes(block))
                if importance is not None:
                    self.importance[key] = int(importance[at])
        self.calls.append(("put", result.stored))
        return result


class DictClient:
    """What the decoder uses of kvstore.Client, over a dict."""

    def __init__(self) -> None:
        self.spaces: dict[bytes, DictNamespace] = {}
        self.down = False

    def namespace(self, spec: NamespaceSpec, strict: bool = False) -> DictNamespace:
        if self.down:
            raise Unavailable("the node cannot be reached")
        return self.spaces.setdefault(spec.root, DictNamespace(spec))

    @property
    def only(self) -> DictNamespace:
        (space,) = self.spaces.values()
        return space


@dataclass
class Recorded:
    """Results of requests together with all scores that were computed for them, in order."""

    results: list[Result]
    scores: list[Tensor]


def run_recorded(model: Llama, client: DictClient | None, requests: Sequence[Request], **options: Any) -> Recorded:
    """Runs requests on a new engine, flushes it and closes it."""
    scores: list[Tensor] = []
    engine = Engine(model, client, **options)
    plain = model.logits

    def recorded(hidden: Tensor) -> Tensor:
        scores.append(plain(hidden))
        return scores[-1]

    try:
        model.logits = recorded  # type: ignore[method-assign]
        return Recorded(engine.run(requests), scores)
    finally:
        del model.logits
        engine.close()
        if engine.cache is not None:
            engine.cache.collect()
        assert engine.pool.free == engine.pool.blocks, "blocks of the pool were lost"
