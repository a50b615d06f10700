"""What a worker really runs, read from vLLM's objects (duck-typed: no vLLM imports, see adapter.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .descriptor import LAYOUTS, GroupFacts, RankFacts, digest
from .options import Options
from .weights import NoWeights, digest_dir

KIND_OF_SPEC = {"FullAttentionSpec": "full", "MLAAttentionSpec": "mla", "SlidingWindowSpec": "window"}
LENGTH_ROPES = ("longrope", "dynamic", "su")  # these depend on the maximum length the engine was started with
VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures", "_commit_hash")
PARALLEL = (
    ("dcp_size", "decode_context_parallel_size"),
    ("pcp_size", "prefill_context_parallel_size"),
)


class Gatherer:
    """Collects :class:`RankFacts`. Everything it cannot be sure of becomes a refusal with a clear text."""

    def __init__(
        self, vllm_config: Any, kv_cache_config: Any, options: Options, version: str, hash_tokens: int
    ) -> None:
        self.config, self.kv, self.options, self.version = vllm_config, kv_cache_config, options, version
        self.hash_tokens = hash_tokens
        self.refusals: list[str] = []

    def gather(self, caches: Mapping[str, Any], isa: Callable[[Any], str], device: str) -> RankFacts:
        """``caches``: what was registered. ``isa(spec)``: instruction set of the CPU kernels, "" elsewhere."""
        layout = self._layout()
        groups = tuple(self._group(i, group, layout, caches) for i, group in enumerate(self.kv.kv_cache_groups))
        shared = {**self._model(), **self._attention(groups, isa, device), **self._parallel(), "layout": layout}
        parallel = self.config.parallel_config
        tp, rank = int(parallel.tensor_parallel_size), int(getattr(parallel, "rank", 0))
        return RankFacts(
            tp_rank=rank % tp,
            tp_size=tp,
            pp_rank=rank // tp % int(parallel.pipeline_parallel_size),
            pp_size=int(parallel.pipeline_parallel_size),
            replicas=self._replicas(groups, tp),
            hash_tokens=self.hash_tokens,
            shared={name: str(value) for name, value in shared.items()},
            groups=groups,
            refusals=tuple(self.refusals),
        )

    def refuse(self, why: str) -> None:
        if why not in self.refusals:
            self.refusals.append(why)

    # --- layout and groups

    def _layout(self) -> str:
        found = getattr(self.kv, "kv_cache_layout", None) or getattr(self.config.cache_config, "kv_cache_layout", None)
        layout = str(getattr(found, "name", found))
        if layout not in LAYOUTS:
            self.refuse(f"the KV cache layout {layout} is not supported (supported: {', '.join(LAYOUTS)})")
        return layout

    def _group(self, index: int, group: Any, layout: str, caches: Mapping[str, Any]) -> GroupFacts:
        specs = dict(self._layer_specs(group))
        kinds = {KIND_OF_SPEC.get(type(spec).__name__, "") for spec in specs.values()}
        first = next(iter(specs.values()))
        kind = kinds.pop() if len(kinds) == 1 else ""
        if not kind or not getattr(group, "enable_kv_transfer", True) or not getattr(first, "prefix_cacheable", True):
            self.refuse(f"cache group {index} ({type(first).__name__}) is of a kind that is not supported")
        for spec in specs.values():
            self._check_spec(index, spec)
        present = {name: spec for name, spec in specs.items() if name in caches}
        page = sum(page_bytes(spec) for spec in present.values())
        window = int(first.sliding_window) if kind == "window" else None
        return GroupFacts(
            index=index,
            kind=kind,
            page_tokens=int(first.block_size),
            window=window,
            page_bytes=page,
            heads=self._heads(kind, layout, present),
            eagle=bool(getattr(group, "is_eagle_group", False)),
            detail=digest([[name, spec_identity(spec)] for name, spec in present.items()]),
        )

    @staticmethod
    def _layer_specs(group: Any) -> Iterator[tuple[str, Any]]:
        spec = group.kv_cache_spec
        per_layer = getattr(spec, "kv_cache_specs", None) or {}
        for name in group.layer_names:
            yield name, per_layer.get(name, spec)

    def _check_spec(self, index: int, spec: Any) -> None:
        if getattr(spec, "tokens_per_state", 1) != 1:
            self.refuse(f"cache group {index} keeps several tokens in one state, which is not supported")
        role = getattr(getattr(spec, "cache_role", None), "value", "sparse")
        if role != "sparse" or getattr(spec, "model_version", None) or getattr(spec, "is_index_group_leader", False):
            self.refuse(f"cache group {index} is of a sparse attention kind that is not supported")
        if getattr(spec, "extra_retained_tokens", 0):
            self.refuse(f"cache group {index} retains tokens beyond its window, which is not supported")

    @staticmethod
    def _heads(kind: str, layout: str, specs: Mapping[str, Any]) -> int:
        """KV heads when each is a byte range of the page."""
        if kind == "mla" or layout != "LBHNC" or not specs:
            return 0
        heads = {int(spec.num_heads) for spec in specs.values()}
        padded = any(getattr(spec, "page_size_padded", None) for spec in specs.values())
        quantized = any(getattr(getattr(s, "kv_quant_mode", None), "is_per_token_head", False) for s in specs.values())
        return heads.pop() if len(heads) == 1 and not padded and not quantized else 0

    def _replicas(self, groups: tuple[GroupFacts, ...], tp: int) -> int:
        if groups and all(group.kind == "mla" for group in groups):
            return tp
        found = int(getattr(self.kv, "kv_tp_replicas", 1) or 1)
        total = getattr(self.config.model_config, "get_total_num_kv_heads", None)
        if found == 1 and callable(total) and any(group.kind != "mla" for group in groups):
            heads = int(total())
            found = tp // heads if heads and tp > heads and tp % heads == 0 else 1
        return found if tp % found == 0 else 1

    # --- model

    def _model(self) -> dict[str, Any]:
        model, text = self.config.model_config, self.config.model_config.hf_text_config
        described = {k: v for k, v in config_dict(text).items() if k not in VOLATILE}
        whole = {k: v for k, v in config_dict(model.hf_config).items() if k not in VOLATILE}
        rope = {k: v for k, v in described.items() if "rope" in k}
        architecture = (list(getattr(model, "architectures", None) or []) or ["unknown"])[0]
        layers, hidden = described.get("num_hidden_layers", "?"), described.get("hidden_size", "?")
        return {
            "model": f"{architecture}-{layers}x{hidden}",
            "weights": self._weights(str(model.model), getattr(model, "revision", None)),
            "config": digest([described, whole]),
            "rope": digest(rope),
            "max_length": self._length(rope, model),
            "window": "off"
            if getattr(model, "disable_sliding_window", False)
            else str(described.get("sliding_window")),
            "quantization": getattr(model, "quantization", None) or "none",
            "code_revision": getattr(model, "code_revision", None) or "none",
            "speculative": self._speculative(),
        }

    @staticmethod
    def _length(rope: Mapping[str, Any], model: Any) -> str:
        text = str(rope).lower()
        return str(model.max_model_len) if any(kind in text for kind in LENGTH_ROPES) else "any"

    def _weights(self, model: str, revision: str | None) -> str:
        if self.options.weights_id:
            return f"id:{self.options.weights_id}"
        load_format = str(getattr(self.config.load_config, "load_format", "auto"))
        if load_format.rpartition(".")[2].lower() == "dummy":
            self.refuse("weights are random (load format dummy); set weights_id to cache them all the same")
            return "unknown"
        try:
            return digest_dir(local_files(model, revision), self.options.digest_dir)
        except (NoWeights, OSError) as error:
            self.refuse(f"the weights of {model} cannot be identified ({error}); set weights_id")
            return "unknown"

    def _speculative(self) -> str:
        spec = getattr(self.config, "speculative_config", None)
        if spec is None:
            return "none"
        method = str(getattr(spec, "method", "unknown"))
        draft = getattr(spec, "model", None)
        if method in ("ngram", "ngram_gpu", "suffix") or not draft:
            return "none"  # drafts without layers of their own leave nothing in the cache
        return f"{method}:{self._weights(str(draft), getattr(spec, 'revision', None))}"

    # --- attention and parallelism

    def _attention(self, groups: tuple[GroupFacts, ...], isa: Callable[[Any], str], device: str) -> dict[str, Any]:
        cache, model = self.config.cache_config, self.config.model_config
        if getattr(cache, "calculate_kv_scales", False):
            self.refuse("KV scales are calculated while running (calculate_kv_scales); give them with the checkpoint")
        layers = self._layers()
        backends = sorted({backend_name(layer) for layer in layers.values()})
        found = {isa(group.kv_cache_spec) for group in self.kv.kv_cache_groups}
        found |= {str(getattr(layer, "isa", "")) for layer in layers.values()}
        return {
            "vllm": ".".join(self.version.split(".")[:2]),
            "device": device,
            "backend": ",".join(backends) or "unknown",
            "isa": ",".join(sorted(found - {""})) or "none",
            "dtype": str(model.dtype).removeprefix("torch."),
            "kv_dtype": resolved_kv_dtype(cache, model, self.kv),
            "kv_scales": digest({name: scales(layer) for name, layer in sorted(layers.items())}),
        }

    def _layers(self) -> dict[str, Any]:
        context = getattr(self.config.compilation_config, "static_forward_context", {})
        names = [name for group in self.kv.kv_cache_groups for name in group.layer_names]
        return {name: context[name] for name in names if name in context}

    def _parallel(self) -> dict[str, Any]:
        parallel, out = self.config.parallel_config, {}
        for name, attribute in PARALLEL:
            size = int(getattr(parallel, attribute, 1) or 1)
            out[name] = size
            if size > 1:
                self.refuse(f"{attribute}={size} is not supported")
        out["interleave"] = int(getattr(parallel, "cp_kv_cache_interleave_size", 1) or 1)
        return out


def page_bytes(spec: Any) -> int:
    """Bytes of a page without padding."""
    for name in ("unpadded_page_size_bytes", "real_page_size_bytes", "page_size_bytes"):
        found = getattr(spec, name, None)
        if found is not None:
            return int(found)
    raise TypeError(f"{type(spec).__name__} has no page size")


def spec_identity(spec: Any) -> list[object]:
    """What must agree of a layer's spec, but for the number of heads of this rank (it is in the page size)."""
    names = ("block_size", "head_size", "head_size_v", "dtype", "kv_quant_mode", "sliding_window", "cache_dtype_str",
             "state_content_bytes", "alignment", "attention_chunk_size", "page_size_padded")  # fmt: skip
    return [type(spec).__name__, *(str(getattr(spec, name, None)) for name in names)]


def resolved_kv_dtype(cache: Any, model: Any, kv: Any) -> str:
    """The dtype that ``auto`` became, of all layers."""
    found = set()
    for group in kv.kv_cache_groups:
        specs = getattr(group.kv_cache_spec, "kv_cache_specs", None) or {"": group.kv_cache_spec}
        found |= {str(getattr(spec, "dtype", model.dtype)).removeprefix("torch.") for spec in specs.values()}
    return f"{cache.cache_dtype}:{','.join(sorted(found))}" if cache.cache_dtype != "auto" else ",".join(sorted(found))


def backend_name(layer: Any) -> str:
    backend = getattr(layer, "attn_backend", None) or getattr(layer, "backend", None)
    getter = getattr(layer, "get_attn_backend", None)
    if backend is None and callable(getter):
        backend = getter()
    name = getattr(backend, "get_name", None)
    return str(name()) if callable(name) else str(getattr(backend, "__name__", backend))


def scales(layer: Any) -> list[str]:
    return [repr(getattr(layer, name, None)) for name in ("_q_scale_float", "_k_scale_float", "_v_scale_float")]


def config_dict(config: Any) -> dict[str, Any]:
    to_dict = getattr(config, "to_dict", None)
    return dict(to_dict()) if callable(to_dict) else dict(vars(config))


def local_files(model: str, revision: str | None) -> str:
    """Directory (or file) of the weights: the path itself, or the hub's snapshot of a name. Raises OSError."""
    if os.path.exists(model):
        return model
    try:
        from huggingface_hub import snapshot_download

        return str(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception as error:
        raise OSError(f"no local files: {error}") from None
