"""What CI shows on each change: saved by one process and loaded by another, damaged blocks, a node that is killed
while blocks are loaded, another namespace. Outputs are those of an engine without connector, to the last token.

In float32: behind a loaded prompt the last token is computed alone, in the reference together with all others, and in
bfloat16 sums of other shapes differ in their last bits, which now and then decides between two tokens."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import PATIENT, Engines, cached, tokens, transfer
from .damage import damage
from .harness import Engine, Node, Relay, counter

PROMPTS = [{"length": 512, "seed": 0}, {"length": 700, "seed": 1}, {"length": 1300, "seed": 2}]
HITS = [384, 640, 1280]
LIKE_A_SERVER = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}  # engine core and worker in processes of their own
BLOCK = 512 << 10  # bytes of 128 tokens of the tiny llama


@pytest.fixture(scope="module")
def llama(model: Any) -> dict[str, Any]:
    return {"model": model("llama"), "dtype": "float32"}


@pytest.fixture(scope="module")
def expected(engines: Engines, node: Node, llama: dict[str, Any]) -> list[Any]:
    """What an engine without connector answers; one with connector, started beside it, answers and saves the same."""
    plain = engines.start(llama, wait=False)
    first = engines.start(llama, transfer(node), keep=True, wait=False)
    wanted = tokens(plain.call("generate", prompts=PROMPTS))
    outputs = first.call("generate", prompts=PROMPTS)
    assert tokens(outputs) == wanted
    assert cached(outputs) == [0, 0, 0]
    first.call("settle")
    engines.stop()
    return wanted


@pytest.fixture(scope="module")
def warm(engines: Engines, node: Node, llama: dict[str, Any], expected: list[Any]) -> Engine:
    """An engine that finds what another process has saved."""
    return engines.start(llama, transfer(node), **LIKE_A_SERVER)


def forget_locally(engine: Engine) -> None:
    """All is saved, then the engine's own prefix cache is emptied; the store is not."""
    engine.call("forget")


def test_a_second_process_loads_what_the_first_saved(warm: Engine, expected: list[Any]) -> None:
    outputs = warm.call("generate", prompts=PROMPTS)
    assert tokens(outputs) == expected
    assert cached(outputs) == HITS
    metrics = warm.call("metrics")
    assert counter(metrics, "external_prefix_cache_hits") == sum(HITS)
    assert counter(metrics, "kvstore_loaded_tokens") == sum(HITS)
    assert counter(metrics, "kvstore_failed_tokens") == 0
    assert counter(metrics, "kvstore_hook_errors") == 0


def test_damaged_blocks_are_found_and_computed_again(warm: Engine, node: Node, expected: list[Any]) -> None:
    forget_locally(warm)
    assert damage(node, BLOCK, every=3) >= 6
    before = counter(warm.call("metrics"), "kvstore_failed_tokens")
    outputs = warm.call("generate", prompts=PROMPTS)
    assert tokens(outputs) == expected
    assert [output["finish"] for output in outputs] == [["length"]] * 3
    assert counter(warm.call("metrics"), "kvstore_failed_tokens") > before
    forget_locally(warm)
    assert tokens(warm.call("generate", prompts=PROMPTS)) == expected, "and stored again, or computed"


@pytest.mark.parametrize("delay_ms", [0, 20])
def test_a_node_killed_while_blocks_are_loaded_costs_a_recomputation(
    warm: Engine, node: Node, expected: list[Any], delay_ms: int
) -> None:
    forget_locally(warm)
    warm.send("generate", prompts=PROMPTS)
    time.sleep(delay_ms / 1000)
    node.kill()
    outputs = warm.answer()
    assert tokens(outputs) == expected
    node.start()


def test_a_node_that_came_back_is_used_again(warm: Engine, node: Node, expected: list[Any]) -> None:
    end = time.monotonic() + 240
    while True:
        forget_locally(warm)
        outputs = warm.call("generate", prompts=PROMPTS)
        assert tokens(outputs) == expected
        if sum(cached(outputs)) > 0:
            break
        assert time.monotonic() < end, "no hit since the node is back"
        time.sleep(1)


def test_a_node_that_hangs_holds_no_request_for_long(warm: Engine, node: Node, expected: list[Any]) -> None:
    forget_locally(warm)
    opened = counter(warm.call("metrics"), "kvstore_breaker_opened")
    rescue = threading.Timer(120, node.signal, [signal.SIGCONT])
    rescue.start()
    node.signal(signal.SIGSTOP)
    outputs = warm.call("generate", prompts=PROMPTS)
    in_time = rescue.is_alive()
    rescue.cancel()
    node.signal(signal.SIGCONT)
    assert in_time, "requests waited for the node"
    assert tokens(outputs) == expected
    assert cached(outputs) == [0, 0, 0]
    assert counter(warm.call("metrics"), "kvstore_breaker_opened") > opened


def test_over_tcp_a_node_killed_in_the_middle_of_a_load_costs_a_recomputation(
    engines: Engines, node: Node, llama: dict[str, Any], expected: list[Any]
) -> None:
    relay = Relay(node.port)
    engine = engines.start(llama, transfer(node, target=relay.target, load_threads=1, **PATIENT))
    outputs = engine.call("generate", prompts=PROMPTS)
    assert tokens(outputs) == expected
    assert cached(outputs) == HITS
    forget_locally(engine)
    relay.arm(BLOCK * 10 + BLOCK // 2, node.kill)  # 3 and 5 blocks, then 2 of 10
    try:
        outputs = engine.call("generate", prompts=PROMPTS)
        assert relay.fired
    finally:
        relay.close()
        node.kill()
        node.start()
    assert tokens(outputs) == expected
    assert counter(engine.call("metrics"), "kvstore_failed_tokens") > 0


def test_another_namespace_gets_no_hits_and_says_which_field_differs(
    engines: Engines, node: Node, llama: dict[str, Any], warm: Engine
) -> None:
    other = {**llama, "dtype": "bfloat16"}
    engine = engines.start(other, transfer(node))
    outputs = engine.call("generate", prompts=PROMPTS)
    assert cached(outputs) == [0, 0, 0]
    assert "differs in:" in engine.text()
    assert "extra.dtype" in Path(engine.log).read_text().partition("differs in:")[2][:200]
