"""Weights of a local Hugging Face checkpoint: one safetensors file, or shards with an index."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvstore.core.errors import ConfigError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint, sorted. Raises ConfigError when there is none or a shard is missing."""
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    if not (directory / INDEX).is_file():
        raise ConfigError(f"{directory} has neither {SINGLE} nor {INDEX}; only safetensors checkpoints are read")
    try:
        shards = sorted(set(json.loads((directory / INDEX).read_text())["weight_map"].values()))
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{directory / INDEX} is not an index of shards: {error!r}") from None
    missing = [name for name in shards if not (directory / name).is_file()]
    if missing:
        raise ConfigError(f"{directory} lacks the shards {', '.join(missing)} that its index names")
    return [directory / name for name in shards]


def read_weights(directory: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors by name, converted to ``dtype``. Raises ConfigError when a file is damaged."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(directory):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    weights[name] = file.get_tensor(name).to(dtype)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path} cannot be read as safetensors: {error}") from None
    return weights


def fingerprint(directory: Path) -> str:
    """blake2b-128 of config.json and all weights, hex: KV blocks of two models that differ in a bit never meet."""
    state = hashlib.blake2b(digest_size=16, person=b"kvstore.weights")
    for path in (directory / "config.json", *weight_files(directory)):
        state.update(path.stat().st_size.to_bytes(8, "little"))
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                state.update(piece)
    return state.hexdigest()
