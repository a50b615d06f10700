"""Salts, aborts, resets, adapters, preemption, other connectors beside it, several engines, failure policies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import models
from .conftest import MODELS, PATIENT, Engines, cached, tokens, transfer
from .damage import damage
from .harness import Engine, Node, Relay, counter

PROMPTS = [{"length": 512, "seed": 0}, {"length": 700, "seed": 1}, {"length": 1300, "seed": 2}]
HITS = [384, 640, 1280]
BLOCK = 512 << 10  # bytes of 128 tokens of the tiny llama


@pytest.fixture(scope="module")
def llama(model: Callable[..., Path]) -> dict[str, Any]:
    return {"model": model("llama"), "dtype": "float32"}  # sums do not depend on which requests share a step


@pytest.fixture(scope="module")
def expected(engines: Engines, llama: dict[str, Any]) -> list[Any]:
    return engines.reference(llama, {"prompts": PROMPTS})[0]


def again(engine: Engine, **call: Any) -> list[dict[str, Any]]:
    """The call once more, with all saved and the engine's own cache emptied."""
    engine.call("forget")
    outputs: list[dict[str, Any]] = engine.call("generate", **call)
    return outputs


def test_one_engine_with_salts_aborts_and_a_reset(
    engines: Engines, node: Node, llama: dict[str, Any], expected: list[Any]
) -> None:
    engine = engines.start(llama, transfer(node))
    hits = []
    for salt in (None, "u1", "u2", "u1", None):
        hits.append(cached(again(engine, prompts=[{"length": 512, "seed": 5, "salt": salt}]))[0])
    assert hits == [0, 0, 0, 384, 384], "salts never share"

    assert tokens(engine.call("generate", prompts=PROMPTS)) == expected
    for steps in (1, 2, 4):
        engine.call("forget")
        done = engine.call("abort", prompts=[PROMPTS[2], PROMPTS[0]], victim=0, after_steps=steps)
        survivors = [one for one in done if one["id"].startswith("r1")]
        assert [one["tokens"] for one in survivors] == [expected[0]]
    outputs = again(engine, prompts=PROMPTS)
    assert (tokens(outputs), cached(outputs)) == (expected, HITS)

    assert engine.call("reset", connector=True)
    outputs = engine.call("generate", prompts=PROMPTS)
    assert (tokens(outputs), cached(outputs)) == (expected, [0, 0, 0]), "a reset makes a new namespace"
    outputs = again(engine, prompts=PROMPTS)
    assert (tokens(outputs), cached(outputs)) == (expected, HITS), "which fills again"
    assert counter(engine.call("metrics"), "kvstore_hook_errors") == 0


def test_a_request_aborted_in_the_middle_of_its_load_hurts_nobody(
    engines: Engines, node: Node, llama: dict[str, Any], expected: list[Any], tmp_path: Path
) -> None:
    relay, gate, in_load = Relay(node.port), threading.Event(), tmp_path / "in-load"
    engine = engines.start(llama, transfer(node, tenant="abort", target=relay.target, stall_timeout_s=30.0))
    engine.call("generate", prompts=[PROMPTS[2]])
    engine.call("forget")

    def hold() -> None:
        in_load.touch()
        gate.wait(60)

    relay.arm(3 * BLOCK, hold, keep=True)
    done = engine.call("abort", prompts=[PROMPTS[2], PROMPTS[0]], victim=0, after_steps=1, when=str(in_load))
    assert relay.fired
    assert not gate.is_set()
    assert [one["tokens"] for one in done if one["id"].startswith("r1")] == [expected[0]]
    gate.set()
    outputs = again(engine, prompts=PROMPTS)
    relay.close()
    assert (tokens(outputs), cached(outputs)) == (expected, [384, 0, 1280])
    assert counter(engine.call("metrics"), "kvstore_hook_errors") == 0


def test_a_slow_lookup_is_waited_for(engines: Engines, node: Node, llama: dict[str, Any], expected: list[Any]) -> None:
    relay = Relay(node.port)
    engine = engines.start(llama, transfer(node, tenant="slow", target=relay.target, stall_timeout_s=30.0))
    engine.call("generate", prompts=PROMPTS[:1])
    engine.call("forget")
    before = engine.call("metrics")
    relay.delay = 0.1
    outputs = engine.call("generate", prompts=PROMPTS[:1])
    engine.call("settle")
    after = engine.call("metrics")
    relay.close()
    assert (tokens(outputs), cached(outputs)) == (expected[:1], HITS[:1])
    took = [counter(one, "kvstore_lookup_seconds_sum") for one in (before, after)]
    assert took[1] - took[0] >= relay.delay, "the engine asked again and again until the answer was there"


def test_tensor_parallel_sizes_share_blocks_cut_by_heads(
    engines: Engines, node: Node, llama: dict[str, Any], expected: list[Any]
) -> None:
    kv = transfer(node, tenant="heads", head_parts=2, **PATIENT)
    engine = engines.start(llama, kv)
    assert tokens(engine.call("generate", prompts=PROMPTS)) == expected
    engine.call("settle")
    engine = engines.start({**llama, "tensor_parallel_size": 2}, kv, VLLM_CPU_OMP_THREADS_BIND="0|1")
    outputs = engine.call("generate", prompts=PROMPTS)
    assert (tokens(outputs), cached(outputs)) == (expected, HITS)
    assert counter(engine.call("metrics"), "kvstore_failed_tokens") == 0


def test_an_engine_that_is_killed_and_restarted_hits_once_the_node_is_there(
    engines: Engines, node: Node, llama: dict[str, Any], expected: list[Any]
) -> None:
    engine = engines.start(llama, transfer(node))
    engine.call("generate", prompts=PROMPTS)
    engine.call("settle")
    engines.kill()
    node.kill()
    engine = engines.start(llama, transfer(node))  # starts without its node
    assert tokens(engine.call("generate", prompts=PROMPTS)) == expected
    node.start()
    end = time.monotonic() + 240
    while sum(cached(outputs := again(engine, prompts=PROMPTS))) < sum(HITS):
        assert tokens(outputs) == expected
        assert time.monotonic() < end
    assert tokens(outputs) == expected


def test_two_engines_at_once_share_one_node(
    engines: Engines, node: Node, llama: dict[str, Any], expected: list[Any]
) -> None:
    first = engines.start(llama, transfer(node, tenant="two"))
    second = engines.start(llama, transfer(node, tenant="two"), keep=True)
    for _ in range(3):
        for engine in (first, second):
            engine.send("generate", prompts=PROMPTS)
        assert [tokens(engine.answer()) for engine in (first, second)] == [expected, expected]
        for engine in (first, second):
            engine.call("forget")
    outputs = second.call("generate", prompts=PROMPTS)
    assert (tokens(outputs), cached(outputs)) == (expected, HITS)


def test_adapters_share_nothing_and_load_their_own(
    engines: Engines, node: Node, llama: dict[str, Any], model: Callable[..., Path]
) -> None:
    adapters = [
        {"name": f"ad{i}", "id": i, "path": str(models.make_lora(Path(llama["model"]), MODELS, i))} for i in (1, 2)
    ]
    llm = {**llama, "enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    calls = [{"prompts": [PROMPTS[0]], "lora": lora} for lora in (None, *adapters)]
    expected = engines.reference(llm, *calls)
    assert len({str(one) for one in expected}) == 3, "the adapters change the output"
    engine = engines.start(llm, transfer(node, tenant="lora"))
    for call, wanted in zip(calls, expected, strict=True):
        outputs = engine.call("generate", **call)
        assert (tokens(outputs), cached(outputs)) == (wanted, [0])
    for call, wanted in zip(calls, expected, strict=True):
        outputs = again(engine, **call)
        assert (tokens(outputs), cached(outputs)) == (wanted, [384])


def test_preempted_requests_are_right(engines: Engines, node: Node, llama: dict[str, Any]) -> None:
    llm = {**llama, "num_gpu_blocks_override": 14, "max_model_len": 512}
    prompts = [{"length": 200, "seed": 40 + i} for i in range(6)]
    call = {"prompts": prompts, "sampling": {"max_tokens": 150}, "together": True}
    expected = engines.reference(llama, call)[0]
    engine = engines.start(llm, transfer(node))
    assert tokens(engine.call("generate", **call)) == expected
    outputs = again(engine, **call)
    assert tokens(outputs) == expected
    metrics = engine.call("metrics")
    assert counter(metrics, "num_preemptions") > 0
    assert counter(metrics, "kvstore_loaded_tokens") > 0


def test_beside_another_connector(
    engines: Engines, node: Node, llama: dict[str, Any], expected: list[Any], tmp_path: Path
) -> None:
    ours = transfer(node, tenant="multi")
    theirs = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    ours.pop("kv_load_failure_policy")
    both = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [ours, theirs]},
    }
    engine = engines.start(llama, both)
    assert tokens(engine.call("generate", prompts=PROMPTS)) == expected
    outputs = again(engine, prompts=PROMPTS)
    assert tokens(outputs) == expected
    metrics = engine.call("metrics")
    assert counter(metrics, "kvstore_loaded_tokens") == sum(HITS)
    assert counter(metrics, "kvstore_hook_errors") == 0


def test_when_every_load_fails_requests_are_computed_or_end_as_the_policy_says(
    engines: Engines, node: Node, llama: dict[str, Any], expected: list[Any]
) -> None:
    engine = engines.start(llama, transfer(node, tenant="fail"))
    engine.call("generate", prompts=PROMPTS)
    engine.call("settle")
    damage(node, BLOCK)
    outputs = again(engine, prompts=PROMPTS)
    assert tokens(outputs) == expected
    assert [output["finish"] for output in outputs] == [["length"]] * 3
    assert counter(engine.call("metrics"), "kvstore_failed_tokens") == sum(HITS)
    engine = engines.start(llama, transfer(node, policy="fail", tenant="fail2"))
    engine.call("generate", prompts=PROMPTS)
    engine.call("settle")
    damage(node, BLOCK)
    outputs = again(engine, prompts=PROMPTS)
    assert [output["finish"] for output in outputs] == [["error"]] * 3, "which is why docs ask for recompute"
    assert 'Set "kv_load_failure_policy": "recompute"' in engine.text()


def test_prefill_and_decode_engines_hand_over_through_the_store(
    engines: Engines, node: Node, llama: dict[str, Any], expected: list[Any]
) -> None:
    prefill = engines.start(llama, transfer(node, role="kv_producer", tenant="pd"))
    decode = engines.start(llama, transfer(node, role="kv_consumer", tenant="pd"), keep=True)
    ask = {
        "extra_args": {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}},
        "max_tokens": 1,
    }
    announced = [output["params"] for output in prefill.call("generate", prompts=PROMPTS, sampling=ask)]
    assert [params["kvstore"]["blocks"] for params in announced] == [4, 5, 10]
    assert all(params["do_remote_prefill"] for params in announced)
    assert all(len(params["kvstore"]["node"].partition("@")[0]) == 32 for params in announced), "the node is named"
    sampling = [{"extra_args": {"kv_transfer_params": params}} for params in announced]
    outputs = decode.call("generate", prompts=PROMPTS, sampling=sampling)
    assert tokens(outputs) == expected
    assert counter(decode.call("metrics"), "external_prefix_cache_hits") == sum(HITS), "at most a block is computed"
    assert counter(decode.call("metrics"), "kvstore_saved_tokens") == 0
