"""The decoder and the service: whatever goes wrong there, the output stays and the pool loses nothing."""

from __future__ import annotations

import threading

import pytest

from kvstore.connector.decoder import Engine, Llama, Request
from kvstore.connector.decoder.service import Load, namespace_spec
from kvstore.core.errors import ChecksumMismatch, Unavailable
from kvstore.core.namespace import differing_fields
from tests.unit.decoder.helpers import DictClient, prompt, random_model, run_recorded

REQUEST = Request(prompt(700), max_new_tokens=4)


@pytest.fixture(scope="module")
def model() -> Llama:
    return random_model()


@pytest.fixture(scope="module")
def ids(model: Llama) -> list[list[int]]:
    return run_recorded(model, None, [REQUEST]).results[0].ids


@pytest.fixture
def client(model: Llama) -> DictClient:
    """A client whose node has the blocks of REQUEST."""
    client = DictClient()
    run_recorded(model, client, [REQUEST])
    assert len(client.only.blocks) == 700 // 16
    return client


def fail_on(client: DictClient, call: str, error: Exception, after: int = 0) -> None:
    """The ``after``-th and later calls raise."""
    seen = []

    def before(name: str) -> None:
        seen.append(name)
        if name == call and seen.count(call) > after:
            raise error

    client.only.before = before


@pytest.mark.parametrize("call", ["match", "get", "put"])
@pytest.mark.parametrize("error", [Unavailable("node down"), ChecksumMismatch("bad chunk"), RuntimeError("a bug")])
def test_a_failing_call_means_computing(
    model: Llama, ids: list[list[int]], client: DictClient, call: str, error: Exception
) -> None:
    fail_on(client, call, error)
    result = run_recorded(model, client, [REQUEST]).results[0]
    assert result.ids == ids
    assert (result.found == 0) == (call != "put")
    assert result.found + result.computed == 700


def test_a_node_that_cannot_be_reached_means_computing(model: Llama, ids: list[list[int]]) -> None:
    client = DictClient()
    client.down = True
    engine = Engine(model, client)
    assert engine.run([REQUEST])[0].ids == ids
    client.down = False
    assert engine.run([REQUEST])[0].ids == ids, "it is asked again once it is back"
    assert engine.cache is not None
    assert engine.cache.flush()
    assert len(client.only.blocks) == 43
    engine.close()


def test_blocks_that_vanish_between_two_layers_are_computed(
    model: Llama, ids: list[list[int]], client: DictClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.connector.decoder.service.LOAD_BYTES", 1)
    space = client.only
    gone = space.keys(REQUEST.tokens)[20]

    def before(call: str) -> None:
        if call == "get" and any(name == "get" for name, _ in space.calls):
            space.blocks.pop(gone, None)

    space.calls.clear()
    space.before = before
    result = run_recorded(model, client, [REQUEST]).results[0]
    assert result.ids == ids
    assert result.found == 256, "what is left of the prefix in every layer, whole chunks"
    assert gone in space.blocks, "what was computed is stored again"


def test_a_damaged_namespace_of_another_model_is_never_met(model: Llama) -> None:
    engine = Engine(model)
    base = namespace_spec(model, engine.pool, 128)
    other = Llama(model.config, _weights_of(model), "another fingerprint")
    assert differing_fields(base, namespace_spec(other, engine.pool, 128)) == ["model"]
    assert differing_fields(base, namespace_spec(model, engine.pool, 64)) == ["extra.chunk_tokens"]


def _weights_of(model: Llama) -> dict[str, object]:
    from tests.unit.decoder.test_exactness import _weights

    return dict(_weights(model))


def test_layers_are_loaded_while_earlier_ones_are_used() -> None:
    load = Load([(0, 1), (1, 1), (2, 2)], wanted=5)
    load.arrived(0, 5)
    load.wait(0)
    passed = threading.Event()
    waiter = threading.Thread(target=lambda: (load.wait(1), passed.set()))
    waiter.start()
    assert not passed.wait(0.05), "layer 1 has not arrived"
    load.arrived(1, 5)
    waiter.join(5)
    assert passed.is_set()
    load.arrived(2, 5)
    assert load.finish() == 5


def test_each_layer_is_one_call_when_it_is_large_enough(
    model: Llama, client: DictClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.only.calls.clear()
    run_recorded(model, client, [REQUEST])
    assert [call for call, _ in client.only.calls].count("get") == 1
    monkeypatch.setattr("kvstore.connector.decoder.service.LOAD_BYTES", 1)
    client.only.calls.clear()
    run_recorded(model, client, [REQUEST])
    assert [call for call, _ in client.only.calls].count("get") == 3


def test_a_slow_node_drops_stores_instead_of_holding_the_engine_up(model: Llama, ids: list[list[int]]) -> None:
    client, gate = DictClient(), threading.Event()
    engine = Engine(model, client, pool_tokens=1024)
    assert engine.cache is not None
    client.namespace(engine.cache.spec).before = lambda call: None if call != "put" else (gate.wait(20), None)[1]
    (result,) = engine.run([REQUEST])
    assert result.ids == ids
    gate.set()
    engine.close()
    engine.cache.collect()
    assert engine.pool.free == engine.pool.blocks
    assert engine.cache.outcome.stored == len(client.only.blocks) <= 32
    assert engine.cache.outcome.dropped == 43 - len(client.only.blocks) > 0
    keys = list(client.only.keys(REQUEST.tokens))
    assert all(key in client.only.blocks for key in keys[: len(client.only.blocks)]), "no block without its parent"


def test_only_new_blocks_are_sent(model: Llama, client: DictClient) -> None:
    client.only.calls.clear()
    longer = Request(REQUEST.tokens + prompt(100, seed=9), max_new_tokens=1)
    run_recorded(model, client, [longer])
    assert sum(stored for call, stored in client.only.calls if call == "put") == 800 // 16 - 700 // 16


def test_attention_mass_is_sent_as_importance(model: Llama) -> None:
    client = DictClient()
    run_recorded(model, client, [REQUEST], importance=True)
    hints = list(client.only.importance.values())
    assert len(hints) == 43
    assert all(1 <= hint <= 65_535 for hint in hints)
    assert len(set(hints)) > 20
    client_without = DictClient()
    run_recorded(model, client_without, [REQUEST])
    assert not client_without.only.importance
    assert client.only.blocks == client_without.only.blocks, "the hint changes no byte"
