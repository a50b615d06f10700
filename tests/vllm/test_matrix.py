"""Each way of running vLLM: outputs as without a connector, cold and loaded, and the hits that were to be expected.

In float32: the chunks in which a prompt is computed differ between a cold and a loaded run, and in bfloat16 that alone
can change the last bits of a sum. Nobody's blocks are found by another case: each has its tenant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .conftest import PATIENT, Engines, cached, tokens, transfer
from .harness import Node, counter

PROMPTS = ({"length": 512, "seed": 0}, {"length": 700, "seed": 1}, {"length": 1300, "seed": 2})
HITS = (384, 640, 1280)
ONLY_CACHING = ("enable_prefix_caching", "prefix_caching_hash_algo", "block_size")  # no part in what is computed


@dataclass(frozen=True)
class Case:
    """``hits``: cached tokens of each prompt once the engine's own cache is emptied."""

    name: str
    hits: tuple[int, ...] = HITS
    kind: str = "llama"
    llm: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    prompts: tuple[dict[str, Any], ...] = PROMPTS
    sampling: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


CASES = [
    Case("synchronous loads", options={"load_mode": "sync"}),
    Case("chunked prefill", llm={"max_num_batched_tokens": 200, "max_num_seqs": 4}),
    Case("no local prefix cache", llm={"enable_prefix_caching": False}),
    Case("sha256_cbor hashes", llm={"prefix_caching_hash_algo": "sha256_cbor"}),
    Case("smaller blocks", hits=(480, 672, 1280), llm={"block_size": 32}),
    Case("several outputs", sampling={"n": 3, "temperature": 0.7, "seed": 5}),
    Case("fp8 KV", llm={"kv_cache_dtype": "fp8", "dtype": "bfloat16"}),
    Case("sliding window", kind="window"),
    Case("hybrid of window and full attention", kind="gemma2"),
    Case(
        "speculative decoding",
        llm={"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
    ),
    Case(
        "two TP ranks",
        llm={"tensor_parallel_size": 2},
        options=PATIENT,
        env={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_saved_and_loaded_outputs_are_those_without_a_connector(
    case: Case, engines: Engines, node: Node, model: Callable[..., Path]
) -> None:
    llm = {"model": model(case.kind), "dtype": "float32", **case.llm}
    call = {"prompts": list(case.prompts), "sampling": case.sampling}
    plain = {key: value for key, value in llm.items() if key not in ONLY_CACHING}
    expected = engines.reference(plain, call, **case.env)[0]
    engine = engines.start(llm, transfer(node, tenant=case.name, **case.options), **case.env)
    cold = engine.call("generate", **call)
    assert tokens(cold) == expected
    engine.call("forget")
    loaded = engine.call("generate", **call)
    metrics = engine.call("metrics")
    assert tokens(loaded) == expected, engine.text()[-3000:]
    assert counter(metrics, "kvstore_failed_tokens") == 0
    assert counter(metrics, "kvstore_hook_errors") == 0
    assert cached(loaded) == list(case.hits)


def test_mla_outputs_are_those_of_vllms_own_connector(
    engines: Engines, node: Node, model: Callable[..., Path], tmp_path: Path
) -> None:
    """On CPUs vLLM 0.32 decodes MLA otherwise than it prefills: tokens computed one way or the other give other
    outputs, without any connector. So what is computed behind a loaded prefix is compared with what vLLM's own
    ExampleConnector loaded."""
    llm = {"model": model("mla"), "dtype": "float32"}
    call: dict[str, Any] = {"prompts": list(PROMPTS)}
    plain = engines.reference(llm, call)[0]
    files = {"shared_storage_path": str(tmp_path)}
    example = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_connector_extra_config": files}
    engine = engines.start(llm, example)
    assert tokens(engine.call("generate", **call)) == plain
    expected = engine.call("generate", **call)
    engine = engines.start(llm, transfer(node, tenant="MLA"))
    assert tokens(engine.call("generate", **call)) == plain
    engine.call("forget")
    loaded = engine.call("generate", **call)
    assert cached(loaded) == cached(expected) == [496, 688, 1296]
    assert tokens(loaded) == tokens(expected)
    assert counter(engine.call("metrics"), "kvstore_failed_tokens") == 0
