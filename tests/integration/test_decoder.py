"""The decoder over a real node: the same output to the bit, and hits that survive what they should survive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvstore import Client
from kvstore.connector.decoder import Engine, Llama, Request, Sampling
from tests.integration.nodes import NodeProcess, node, wait_for
from tests.unit.decoder.helpers import Recorded, prompt, random_model, run_recorded

REQUEST = Request(prompt(1000), max_new_tokens=5)


@pytest.fixture(scope="module")
def model() -> Llama:
    torch.set_num_threads(1)
    return random_model()


@pytest.fixture(scope="module")
def cold(model: Llama) -> Recorded:
    return run_recorded(model, None, [REQUEST])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[NodeProcess]:
    with node(tmp_path / "node") as process:
        yield process


def run(model: Llama, target: str, request: Request = REQUEST, transport: Any = "auto", **options: Any) -> Recorded:
    """One request on an engine and a client of its own."""
    with Client(target, transport=transport, timeout=10) as client:
        return run_recorded(model, client, [request], **options)  # type: ignore[arg-type]


def assert_equal(warm: Recorded, cold: Recorded) -> None:
    assert [result.ids for result in warm.results] == [result.ids for result in cold.results]
    assert all(torch.equal(a, b) for a, b in zip(warm.scores, cold.scores, strict=True))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_loaded_blocks_give_bitwise_equal_scores(
    model: Llama, cold: Recorded, running: NodeProcess, transport: str
) -> None:
    target = running.target if transport == "shm" else f"kv://{running.data}"
    first, warm = (run(model, target, transport=transport) for _ in range(2))
    assert_equal(first, cold)
    assert_equal(warm, cold)
    assert (first.results[0].found, warm.results[0].found) == (0, 896)


def test_blocks_loaded_a_layer_at_a_time_are_the_same(
    model: Llama, cold: Recorded, running: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(model, running.target)
    monkeypatch.setattr("kvstore.connector.decoder.service.LOAD_BYTES", 1)
    warm = run(model, running.target)
    assert_equal(warm, cold)
    assert warm.results[0].found == 896


def test_what_was_stored_is_found_after_the_node_was_killed(model: Llama, cold: Recorded, running: NodeProcess) -> None:
    with Client(running.target, timeout=10) as client:
        run_recorded(model, client, [REQUEST])  # type: ignore[arg-type]
        running.kill()
        running.start()
        warm = run_recorded(model, client, [REQUEST])  # type: ignore[arg-type]
    assert_equal(warm, cold)
    assert warm.results[0].found == 896


def test_a_node_that_dies_during_a_batch_changes_no_output(model: Llama, running: NodeProcess) -> None:
    requests = [Request(prompt(700, seed=seed), max_new_tokens=6) for seed in range(6)]
    want = [result.ids for result in run_recorded(model, None, requests).results]
    run(model, running.target, requests[0])
    with Client(running.target, timeout=2) as client:
        engine = Engine(model, client)
        results = [engine.submit(request)[1] for request in requests]
        for _ in range(4):
            engine.step()
        running.kill()
        while not engine.idle:
            engine.step()
        engine.close()
    assert [result.ids for result in results] == want


def test_an_engine_without_its_node_computes_and_uses_it_once_it_is_there(
    model: Llama, cold: Recorded, running: NodeProcess
) -> None:
    running.kill()
    with Client(running.target, timeout=2) as client:
        engine = Engine(model, client)
        assert engine.run([REQUEST])[0].ids == cold.results[0].ids
        running.start()
        assert engine.cache is not None
        cache = engine.cache

        def stored() -> bool:
            engine.run([Request(REQUEST.tokens, max_new_tokens=1)])
            cache.flush()
            return cache.outcome.stored > 0

        wait_for(stored, "a store after the node's start")
        (result,) = engine.run([REQUEST])
        engine.close()
    assert result.found == 896
    assert result.ids == cold.results[0].ids


def test_two_engines_at_once_share_what_they_store(model: Llama, running: NodeProcess) -> None:
    requests = [Request(prompt(600) + prompt(90, seed=seed), max_new_tokens=4) for seed in range(6)]
    want = [result.ids for result in run_recorded(model, None, requests).results]
    got: dict[int, list[list[int]]] = {}

    def work(offset: int) -> None:
        with Client(running.target, timeout=10) as client:
            engine = Engine(model, client)
            for index in range(offset, len(requests), 2):
                got[index] = engine.run([requests[index]])[0].ids
            engine.close()

    threads = [threading.Thread(target=work, args=(offset,)) for offset in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[index] for index in range(len(requests))] == want
    assert run(model, running.target, requests[0]).results[0].found >= 512


def test_samples_and_importance_travel_with_a_real_node(model: Llama, running: NodeProcess) -> None:
    request = Request(prompt(500), max_new_tokens=6, sampling=Sampling(temperature=1.2, seed=5), samples=3)
    want = run_recorded(model, None, [request])
    for found in (0, 384):
        got = run(model, running.target, request, importance=True)
        assert_equal(got, want)
        assert got.results[0].found == found
