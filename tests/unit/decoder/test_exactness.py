"""Output with the service equals output without it, to the bit."""

from __future__ import annotations

import pytest
import torch

from kvstore.connector.decoder import Llama, Request, Sampling
from tests.unit.decoder.helpers import DictClient, Recorded, prompt, random_model, run_recorded


@pytest.fixture(scope="module")
def model() -> Llama:
    torch.set_num_threads(1)
    return random_model()


def assert_equal(warm: Recorded, cold: Recorded) -> None:
    assert [result.ids for result in warm.results] == [result.ids for result in cold.results]
    assert len(warm.scores) == len(cold.scores)
    assert all(torch.equal(a, b) for a, b in zip(warm.scores, cold.scores, strict=True))


@pytest.mark.parametrize(
    "length", [1, 15, 16, 17, 127, 128, 129, 143, 144, 145, 255, 256, 257, 300, 511, 512, 513, 700, 1024, 1500]
)
def test_the_same_prompt_gives_bitwise_equal_scores_computed_and_loaded(model: Llama, length: int) -> None:
    client, request = DictClient(), Request(prompt(length), max_new_tokens=6)
    cold = run_recorded(model, None, [request])
    first = run_recorded(model, client, [request])
    warm = run_recorded(model, client, [request])
    assert_equal(first, cold)
    assert_equal(warm, cold)
    assert first.results[0].found == 0
    assert warm.results[0].found == (length - 1) // 128 * 128
    assert warm.results[0].found + warm.results[0].computed == length


@pytest.mark.parametrize("shared", [16, 100, 128, 200, 384, 400, 640])
@pytest.mark.parametrize("tail", [1, 40, 130])
def test_a_shared_prefix_gives_bitwise_equal_scores(model: Llama, shared: int, tail: int) -> None:
    client, document = DictClient(), prompt(shared)
    run_recorded(model, client, [Request(document + prompt(57, seed=1), max_new_tokens=3)])
    other = Request(document + prompt(tail, seed=2), max_new_tokens=5)
    warm = run_recorded(model, client, [other])
    assert_equal(warm, run_recorded(model, None, [other]))
    assert warm.results[0].found >= (shared - 15) // 128 * 128 - (128 if tail == 1 else 0)


def test_blocks_of_one_chunk_stored_by_two_requests_fit_together(model: Llama) -> None:
    client, text = DictClient(), prompt(700)
    for length in (70, 110, 200, 330, 500):
        run_recorded(model, client, [Request(text[:length], max_new_tokens=1)])
    warm = run_recorded(model, client, [Request(text, max_new_tokens=4)])
    assert warm.results[0].found == 384
    assert_equal(warm, run_recorded(model, None, [Request(text, max_new_tokens=4)]))


def test_a_batch_gives_each_request_what_it_gets_alone(model: Llama) -> None:
    requests = [Request(prompt(length, seed=length), max_new_tokens=9) for length in (5, 130, 64, 300, 257, 33)]
    alone = [run_recorded(model, None, [request]).results[0].ids for request in requests]
    client = DictClient()
    for _ in range(2):
        batched = run_recorded(model, client, requests)
        assert [result.ids for result in batched.results] == alone


def test_sampled_output_with_a_seed_is_the_same_warm_and_cold(model: Llama) -> None:
    request = Request(
        prompt(300), max_new_tokens=20, sampling=Sampling(temperature=1.5, top_k=50, top_p=0.95, seed=3), samples=3
    )
    client = DictClient()
    cold, first, warm = (run_recorded(model, each, [request]) for each in (None, client, client))
    assert_equal(first, cold)
    assert_equal(warm, cold)
    assert len({tuple(ids) for ids in cold.results[0].ids}) == 3


@pytest.mark.parametrize("chunk", [16, 48, 256])
def test_other_chunk_sizes_are_exact_too(model: Llama, chunk: int) -> None:
    client, request = DictClient(), Request(prompt(600), max_new_tokens=4)
    cold = run_recorded(model, None, [request], chunk_tokens=chunk)
    run_recorded(model, client, [request], chunk_tokens=chunk)
    warm = run_recorded(model, client, [request], chunk_tokens=chunk)
    assert_equal(warm, cold)
    assert warm.results[0].found == 599 // chunk * chunk


def test_two_threads_are_exact_too(model: Llama) -> None:
    torch.set_num_threads(2)
    try:
        client, request = DictClient(), Request(prompt(1100), max_new_tokens=4)
        cold, _, warm = (run_recorded(model, each, [request]) for each in (None, client, client))
    finally:
        torch.set_num_threads(1)
    assert_equal(warm, cold)


def test_bfloat16_is_exact_too() -> None:
    torch.set_num_threads(1)
    small = random_model()
    weights = {name: value.bfloat16() for name, value in _weights(small).items()}
    model = Llama(small.config, weights, "random-bf16")
    client, request = DictClient(), Request(prompt(500), max_new_tokens=4)
    cold, _, warm = (run_recorded(model, each, [request]) for each in (None, client, client))
    assert_equal(warm, cold)
    assert warm.results[0].found == 384


def _weights(model: Llama) -> dict[str, torch.Tensor]:
    """The tensors of a model under their names in a checkpoint."""
    config, found = model.config, {"model.embed_tokens.weight": model._embedding, "model.norm.weight": model._norm}
    for index, layer in enumerate(model._layers):
        at, kv = f"model.layers.{index}.", config.kv_heads * config.head_dim
        query, key, value = layer.qkv[0].split((config.heads * config.head_dim, kv, kv))
        gate, up = layer.gate_up[0].chunk(2)
        for name, tensor in {
            "input_layernorm": layer.attention_norm, "self_attn.q_proj": query, "self_attn.k_proj": key,
            "self_attn.v_proj": value, "self_attn.o_proj": layer.output[0], "post_attention_layernorm": layer.mlp_norm,
            "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": layer.down[0],
        }.items():  # fmt: skip
            found[f"{at}{name}.weight"] = tensor
    return found
