"""Each field of the namespace changed alone: no hits, and one log line that names it.

Fields that CPUs have in one way only are changed in vLLM itself (patches.py). Not changed here, for vLLM on CPUs cannot
run it: device, PP size, interleave, draft layers; tests/unit/vllm/test_gather.py changes them where they are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .conftest import MODELS, PATIENT, Engines, cached, transfer
from .harness import Node

PROMPTS = [{"length": 700, "seed": 1}]


@dataclass(frozen=True)
class Mutation:
    """``field``: as the log line names it."""

    field: str
    llm: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    patch: str = ""


UNTOUCHED = {  # no layer is quantized, but vLLM runs as for a quantized model
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "ignore": ["re:.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}
WINDOWED = {"layer_types": ["sliding_attention"] * 4, "sliding_window": 256}
BY_LENGTH = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}

MUTATIONS = [
    Mutation("weights_generation", options={"weights_generation": "2"}),
    Mutation("extra.weights", seed=1),
    Mutation("extra.rope", config={"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}),
    Mutation("extra.max_length", config={"rope_parameters": BY_LENGTH}),
    Mutation("extra.window", config=WINDOWED),
    Mutation("extra.config", config={"rms_norm_eps": 1e-3}),
    Mutation("extra.quantization", config={"quantization_config": UNTOUCHED}),
    Mutation("extra.code_revision", llm={"code_revision": "other"}),
    Mutation("extra.vllm", patch="version"),
    Mutation("extra.isa", patch="isa"),
    Mutation("extra.backend", patch="backend"),
    Mutation("layout", patch="layout"),
    Mutation("extra.kv_scales", patch="kv_scales"),
    Mutation("extra.dtype", llm={"dtype": "float32"}),
    Mutation("kv_dtype", llm={"kv_cache_dtype": "fp8"}),
    Mutation("block_tokens", llm={"block_size": 64}),
    Mutation("hash_scheme", llm={"prefix_caching_hash_algo": "sha256_cbor"}),
    Mutation("extra.hash_probe", env={"PYTHONHASHSEED": "7"}),
    Mutation("extra.tp_size", llm={"tensor_parallel_size": 2}, env={"VLLM_CPU_OMP_THREADS_BIND": "0|1"}),
]


@pytest.fixture(scope="module")
def stored(engines: Engines, node: Node, model: Callable[..., Path]) -> None:
    """Blocks of the unchanged engine are in the store."""
    engine = engines.start({"model": model("llama")}, transfer(node))
    engine.call("generate", prompts=PROMPTS)
    engines.stop()


def changed_config(path: Path, changes: dict[str, Any]) -> Path:
    """A copy of the model with other configuration and the same weights."""
    target = MODELS / f"{path.name}-changed"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(path, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: str(mutation.field))
def test_a_changed_field_gives_no_hits_and_is_named(
    mutation: Mutation, engines: Engines, node: Node, model: Callable[..., Path]
) -> None:
    path = model("llama", mutation.seed)
    if mutation.config:
        path = changed_config(path, mutation.config)
    engine = engines.start(
        {"model": path, **mutation.llm},
        transfer(node, **PATIENT, **mutation.options),
        patch=mutation.patch,
        **mutation.env,
    )
    assert cached(engine.call("generate", prompts=PROMPTS)) == [0]
    said = [line.partition("differs in: ")[2] for line in engine.text().splitlines() if "differs in" in line]
    assert len(said) == 1, engine.text()[-2000:]
    assert mutation.field in said[0].partition(". Blocks")[0].split(", ")
