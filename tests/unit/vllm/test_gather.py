"""What a worker reads from vLLM's objects: every change of what it runs is a change of what it describes.

The objects are plain values with vLLM's names. That the names are vLLM's is shown on real engines (tests/vllm)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Values
from typing import Any

import pytest

from kvstore.connector.vllm.descriptor import Fields, Refused, build
from kvstore.connector.vllm.gather import Gatherer
from kvstore.connector.vllm.options import Options
from kvstore.core.namespace import NamespaceSpec, differing_fields

LAYER = "model.layers.0.self_attn.attn"


class FullAttentionSpec(Values):
    pass


class SlidingWindowSpec(Values):
    pass


class MambaSpec(Values):
    pass


class Backend:
    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"


class OtherBackend:
    @staticmethod
    def get_name() -> str:
        return "OTHER_ATTN"


def full(**changes: Any) -> FullAttentionSpec:
    values = {"block_size": 16, "num_heads": 4, "head_size": 32, "dtype": "torch.bfloat16", "page_size_bytes": 8192}
    return FullAttentionSpec(**{**values, **changes})


@dataclasses.dataclass
class Worker:
    """One worker's objects, to be changed before they are read."""

    text: dict[str, Any]
    whole: dict[str, Any]
    model: Values
    cache: Values
    parallel: Values
    kv: Values
    layer: Values
    config: Values
    version: str = "0.32.0"
    isa: str = "vec"
    device: str = "cpu"
    options: Options = dataclasses.field(default_factory=Options)

    def facts(self) -> Any:
        gatherer = Gatherer(self.config, self.kv, self.options, self.version, self.kv.hash_block_size)
        return gatherer.gather({LAYER: object()}, lambda spec: self.isa, self.device)

    def spec(self) -> NamespaceSpec:
        parallel = self.parallel
        ranks = {}
        for pp in range(parallel.pipeline_parallel_size):
            for tp in range(parallel.tensor_parallel_size):
                parallel.rank = pp * parallel.tensor_parallel_size + tp
                ranks[(pp, tp)] = self.facts()
        return build(ranks, Fields("sha256_cbor", "probe"))


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], Worker]:
    (tmp_path / "model.safetensors").write_bytes(b"weights")

    def worker() -> Worker:
        text: dict[str, Any] = {
            "num_hidden_layers": 1,
            "hidden_size": 128,
            "sliding_window": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        }
        whole = {"model_type": "llama"}
        layer = Values(attn_backend=Backend, isa="", _q_scale_float=1.0, _k_scale_float=1.0, _v_scale_float=1.0)
        model = Values(
            model=str(tmp_path), revision=None, code_revision=None, dtype="torch.bfloat16", quantization=None,
            architectures=["LlamaForCausalLM"], disable_sliding_window=False, max_model_len=2048,
            hf_text_config=Values(to_dict=lambda: dict(text)), hf_config=Values(to_dict=lambda: dict(whole)),
            get_total_num_kv_heads=lambda: 4,
        )  # fmt: skip
        cache = Values(cache_dtype="auto", calculate_kv_scales=False, kv_cache_layout="LBHNC", block_size=16)
        parallel = Values(tensor_parallel_size=1, pipeline_parallel_size=1, rank=0)
        group = Values(kv_cache_spec=full(), layer_names=[LAYER])
        kv = Values(kv_cache_groups=[group], kv_cache_layout="LBHNC", hash_block_size=16)
        config = Values(
            model_config=model, cache_config=cache, parallel_config=parallel, speculative_config=None,
            load_config=Values(load_format="auto"),
            compilation_config=Values(static_forward_context={LAYER: layer}),
        )  # fmt: skip
        options = Options(cache_dir=str(tmp_path / "cache"))
        return Worker(text, whole, model, cache, parallel, kv, layer, config, options=options)

    return worker


def spec_of(worker: Worker, **values: Any) -> None:
    vars(worker.kv.kv_cache_groups[0].kv_cache_spec).update(values)


def other_weights(worker: Worker) -> None:
    (Path(worker.model.model) / "model.safetensors").write_bytes(b"other weights")


def windowed(worker: Worker) -> None:
    worker.text["sliding_window"] = 256
    spec = worker.kv.kv_cache_groups[0].kv_cache_spec
    worker.kv.kv_cache_groups[0].kv_cache_spec = SlidingWindowSpec(**vars(spec), sliding_window=256)


def drafted(worker: Worker) -> None:
    worker.config.speculative_config = Values(method="eagle", model=worker.model.model, revision=None)


CHANGES: dict[str, tuple[Callable[[Worker], Any], set[str]]] = {
    "architecture": (lambda w: w.model.architectures.__setitem__(0, "Other"), {"model"}),
    "weights": (other_weights, {"extra.weights"}),
    "named weights": (
        lambda w: setattr(w, "options", dataclasses.replace(w.options, weights_id="w")),
        {"extra.weights"},
    ),
    "text configuration": (lambda w: w.text.update(rms_norm_eps=1e-3), {"extra.config"}),
    "whole configuration": (lambda w: w.whole.update(vision={"depth": 2}), {"extra.config"}),
    "rope": (lambda w: w.text["rope_parameters"].update(rope_theta=2e4), {"extra.rope", "extra.config"}),
    "quantization": (lambda w: setattr(w.model, "quantization", "awq"), {"extra.quantization"}),
    "code revision": (lambda w: setattr(w.model, "code_revision", "abc"), {"extra.code_revision"}),
    "window": (windowed, {"extra.window", "extra.config", "extra.groups"}),
    "window switched off": (lambda w: setattr(w.model, "disable_sliding_window", True), {"extra.window"}),
    "draft layers": (drafted, {"extra.speculative"}),
    "vLLM's minor version": (lambda w: setattr(w, "version", "0.33.1"), {"extra.vllm"}),
    "device": (lambda w: setattr(w, "device", "cuda"), {"extra.device"}),
    "attention backend": (lambda w: setattr(w.layer, "attn_backend", OtherBackend), {"extra.backend"}),
    "CPU instruction set": (lambda w: setattr(w, "isa", "amx"), {"extra.isa"}),
    "a layer's instruction set": (lambda w: setattr(w.layer, "isa", "vec16"), {"extra.isa"}),
    "dtype": (lambda w: setattr(w.model, "dtype", "torch.float16"), {"extra.dtype"}),
    "KV dtype": (lambda w: setattr(w.cache, "cache_dtype", "fp8"), {"kv_dtype"}),
    "KV dtype of a layer": (lambda w: spec_of(w, dtype="torch.float32"), {"kv_dtype", "extra.groups"}),
    "KV scales": (lambda w: setattr(w.layer, "_k_scale_float", 0.5), {"extra.kv_scales"}),
    "layout": (lambda w: setattr(w.kv, "kv_cache_layout", "BLHNC"), {"layout", "extra.groups"}),
    "block size": (
        lambda w: (spec_of(w, block_size=32), setattr(w.kv, "hash_block_size", 32)),
        {"block_tokens", "extra.groups"},
    ),
    "head size": (lambda w: spec_of(w, head_size=64), {"extra.groups"}),
    "page size": (lambda w: spec_of(w, page_size_bytes=4096), {"parts", "extra.groups"}),
    "TP size": (
        lambda w: setattr(w.parallel, "tensor_parallel_size", 2),
        {"extra.tp_size", "parts", "extra.groups"},
    ),
    "PP size": (
        lambda w: setattr(w.parallel, "pipeline_parallel_size", 2),
        {"extra.pp_size", "parts", "extra.groups"},
    ),
    "interleave": (lambda w: setattr(w.parallel, "cp_kv_cache_interleave_size", 2), {"extra.interleave"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_thing_that_runs_is_a_field_of_the_namespace(name: str, make: Callable[[], Worker]) -> None:
    plain = make().spec()
    change, fields = CHANGES[name]
    worker = make()
    change(worker)
    assert set(differing_fields(plain, worker.spec())) == fields


def test_every_fact_of_a_worker_is_changed_by_one_of_these_tests(make: Callable[[], Worker]) -> None:
    fixed = {"dcp_size", "pcp_size", "max_length"}  # refused past 1; the test of rope that depends on the length
    named = {field.removeprefix("extra.") for _, fields in CHANGES.values() for field in fields}
    assert set(make().facts().shared) - fixed <= named


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda w: setattr(w, "version", "0.32.7"), "a patch release of vLLM"),
        (lambda w: w.text.update(_name_or_path="/elsewhere"), "where the model lies"),
        (lambda w: setattr(w.model, "max_model_len", 4096), "the maximum length"),
        (lambda w: setattr(w.config, "speculative_config", Values(method="ngram", model=None)), "drafts of ngrams"),
    ],
)
def test_what_does_not_change_bytes_is_in_no_field(
    change: Callable[[Worker], Any], same: str, make: Callable[[], Worker]
) -> None:
    worker = make()
    change(worker)
    assert worker.spec() == make().spec(), same


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_where_rope_depends_on_the_maximum_length_it_is_a_field(kind: str, make: Callable[[], Worker]) -> None:
    short, long = make(), make()
    for worker, length in ((short, 2048), (long, 4096)):
        worker.text["rope_parameters"]["rope_type"] = kind
        worker.model.max_model_len = length
    assert differing_fields(short.spec(), long.spec()) == ["extra.max_length"]


def mamba(worker: Worker) -> None:
    group = worker.kv.kv_cache_groups[0]
    group.kv_cache_spec = MambaSpec(**vars(group.kv_cache_spec))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (mamba, "cache group 0 (MambaSpec) is of a kind that is not supported"),
        (lambda w: setattr(w.kv, "kv_cache_layout", "LHBNC"), "layout LHBNC is not supported"),
        (lambda w: setattr(w.cache, "calculate_kv_scales", True), "calculate_kv_scales"),
        (lambda w: setattr(w.parallel, "decode_context_parallel_size", 2), "decode_context_parallel_size=2"),
        (lambda w: setattr(w.parallel, "prefill_context_parallel_size", 2), "prefill_context_parallel_size=2"),
        (lambda w: setattr(w.config.load_config, "load_format", "dummy"), "set weights_id"),
        (lambda w: (Path(w.model.model) / "model.safetensors").unlink(), "set weights_id"),
        (lambda w: spec_of(w, tokens_per_state=4), "several tokens in one state"),
        (lambda w: spec_of(w, extra_retained_tokens=1), "retains tokens beyond its window"),
        (lambda w: spec_of(w, model_version="deepseek_v4"), "sparse attention kind"),
    ],
)
def test_what_cannot_be_described_is_refused_with_a_reason(
    change: Callable[[Worker], Any], text: str, make: Callable[[], Worker]
) -> None:
    worker = make()
    change(worker)
    with pytest.raises(Refused) as refused:
        worker.spec()
    assert text in str(refused.value)


def test_kv_heads_that_several_ranks_hold_are_replicas(make: Callable[[], Worker]) -> None:
    worker = make()
    worker.parallel.tensor_parallel_size = 8
    assert worker.facts().replicas == 2, "four KV heads on eight ranks"
    worker.parallel.tensor_parallel_size = 4
    assert worker.facts().replicas == 1
