"""The only module that imports vLLM: KVConnectorBase_V1 in front of the two halves.

A hook never raises: whatever happens inside is caught, counted and answered with what means "no cache".
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from . import stats as counters
from .adapters import AdapterDigests
from .descriptor import RankFacts
from .engine import ask_for_amx, fresh_pages, make_pages, version_refusals
from .gather import Gatherer
from .hooks import hook
from .messages import StepPlan, WorkerReport
from .options import Options
from .pages import UnsupportedPages
from .scheduler_side import SchedulerSide
from .worker_side import WorkerSide, page_tables

LOG = logging.getLogger("vllm.kvstore")


@dataclass
class StepMetadata(KVConnectorMetadata):
    plan: StepPlan = field(default_factory=StepPlan)


@dataclass
class RankMetadata(KVConnectorHandshakeMetadata):
    facts: RankFacts


@dataclass
class ReportMetadata(KVConnectorWorkerMetadata):
    report: WorkerReport = field(default_factory=WorkerReport)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> ReportMetadata:
        return ReportMetadata(self.report.join(other.report)) if isinstance(other, ReportMetadata) else self


class KVStoreStats(KVConnectorStats):
    """Counters of :mod:`stats`, as vLLM passes them around."""

    data: dict[str, Any]

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVStoreStats:
        return KVStoreStats(counters.merge(self.data, other.data))

    def reduce(self) -> dict[str, Any]:
        return counters.summary(self.data)

    def is_empty(self) -> bool:
        return not self.data


class KVStoreMetrics(KVConnectorPromMetrics):
    """``vllm:kvstore_*`` on the engine's Prometheus endpoint."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine)
        self._metrics: dict[str, Any] = {}
        for names, make in (
            (counters.COUNTERS, self._counter_cls),
            (counters.GAUGES, self._gauge_cls),
            (counters.TIMES, functools.partial(self._histogram_cls, buckets=counters.BUCKETS)),
        ):
            for name, text in names.items():
                labels = labelnames + ([counters.LABELS[name]] if name in counters.LABELS else [])
                self._metrics[name] = make(name=f"vllm:kvstore_{name}", documentation=text, labelnames=labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for key, value in transfer_stats_data.items():
            name, _, label = key.partition(":")
            labels = [*self.per_engine_labelvalues[engine_idx], *([label] if name in counters.LABELS else [])]
            metric, how = self._metrics[name].labels(*labels), counters.kind(name)
            if how == "counter":
                metric.inc(value)
            elif how == "gauge":
                metric.set(value)
            else:
                for seconds in value:
                    metric.observe(seconds)


class KVStoreConnector(KVConnectorBase_V1, SupportsHMA):
    """See docs/vllm.md. Options: :class:`Options`, in ``kv_connector_extra_config``."""

    requires_kv_delivery = False  # a cache: a lost save is a later miss

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._options = Options.parse(self._kv_transfer_config.kv_connector_extra_config)
        self._stats = counters.Recorder()
        self._last_error = 0.0
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._start_scheduler(vllm_config)

    def _start_scheduler(self, vllm_config: Any) -> None:
        transfer = self._kv_transfer_config
        algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
        self._adapters = AdapterDigests(self._options)
        self._scheduler = SchedulerSide(
            self._options,
            loads=transfer.is_kv_consumer,
            saves=transfer.is_kv_producer,
            hash_algorithm=algorithm,
            probe=functools.partial(hash_probe, algorithm),
            stats=self._stats,
            refusals=version_refusals(vllm.__version__) + self._mode_refusals(),
        )
        if transfer.kv_load_failure_policy != "recompute":
            LOG.warning(
                "kvstore: kv_load_failure_policy is %r: a request whose blocks turn out to be unusable ends with an "
                'error. Set "kv_load_failure_policy": "recompute" in --kv-transfer-config',
                transfer.kv_load_failure_policy,
            )

    def _mode_refusals(self) -> tuple[str, ...]:
        if self._options.load_mode == "sync" and len(self._kv_cache_config.kv_cache_groups) > 1:
            return ("load_mode sync cannot report failures of models with several cache groups; use async",)
        return ()

    def _hook_failed(self, name: str, error: Exception) -> None:
        self._stats.add("hook_errors", 1, name)
        now = time.monotonic()
        if now - self._last_error > 10:
            self._last_error = now
            LOG.error("kvstore: error in %s; the request runs as without a cache", name, exc_info=error)

    # --- worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._register(kv_caches)

    @hook()
    def _register(self, kv_caches: dict[str, Any]) -> None:
        caches = {name: cache for name, cache in kv_caches.items() if not isinstance(cache, (list, tuple))}
        device = next(iter(caches.values())).device.type if caches else "none"
        config, kv = self._vllm_config, self._kv_cache_config
        gatherer = Gatherer(config, kv, self._options, vllm.__version__, hash_tokens(config, kv))
        if len(caches) < len(kv_caches):
            gatherer.refuse("layers with recurrent state are not supported")
        groups = {i: list(g.layer_names) for i, g in enumerate(kv.kv_cache_groups)}
        if device == "cpu":
            ask_for_amx()
        pages = None
        try:
            pages = make_pages(device, caches, page_tables(groups, caches), kv.num_blocks)
        except UnsupportedPages as error:
            gatherer.refuse(str(error))
        facts = gatherer.gather(caches, functools.partial(cpu_isa, config), device)
        self._worker = WorkerSide(self._options, facts, pages, self._stats)

    @hook()
    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return RankMetadata(self._worker.facts) if self._worker else None

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._bind(connector_metadata)

    @hook()
    def _bind(self, metadata: KVConnectorMetadata) -> None:
        if self._worker is not None and isinstance(metadata, StepMetadata):
            self._worker.bind(metadata.plan)

    @hook()
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        if self._worker is not None and isinstance(kv_connector_metadata, StepMetadata):
            self._worker.before_forward(kv_connector_metadata.plan)

    @hook()
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.start_loads()

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    @hook()
    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.save()

    @hook(KVConnectorTransferResults)
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        done, failed = self._worker.finished() if self._worker else (set(), set())
        return KVConnectorTransferResults(set(), done, failed)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self.get_transfer_results(finished_req_ids).finished_recving or None

    @hook(set)
    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.bad_pages() if self._worker else set()

    @hook()
    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        report = self._worker.report() if self._worker else None
        return ReportMetadata(report) if report is not None else None

    # --- scheduler

    @hook()
    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        if self._scheduler is not None:
            self._scheduler.add_ranks({key: m.facts for key, m in metadata.items() if isinstance(m, RankMetadata)})

    @hook()
    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self.set_xfer_handshake_metadata_pp_aware({(0, tp): m for tp, m in metadata.items()})

    @hook()
    def on_new_request(self, request: Any) -> None:
        if self._scheduler is not None:
            salt = self._adapters.salt(request.lora_request)
            images = bool(getattr(request, "mm_features", None)) and not self._options.multimodal
            self._scheduler.new_request(request, salt, cacheable=not images)

    @hook(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        found = self._scheduler.matched_tokens(request, num_computed_tokens)
        return found, bool(found) and self._options.load_mode == "async"

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._scheduler is None or num_external_tokens <= 0:
            return
        if not self._allocated(request, blocks, num_external_tokens):
            self._promise_broken(request, blocks)

    @hook(bool)
    def _allocated(self, request: Any, blocks: Any, external: int) -> bool:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks.get_block_ids(), external)
        return True

    @hook()
    def _promise_broken(self, request: Any, blocks: Any) -> None:
        """Tokens were promised and cannot be planned: the load must end as failed, or the request would wait."""
        assert self._scheduler is not None
        self._scheduler.refuse_load(str(request.request_id), blocks.get_block_ids())

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._scheduler is not None
        return StepMetadata(self._build_plan(scheduler_output) or self._scheduler.bare_plan())

    @hook()
    def _build_plan(self, output: Any) -> StepPlan:
        assert self._scheduler is not None
        cached = output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed.update({new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs})
        steps = [(name, computed.get(name, 0), count) for name, count in output.num_scheduled_tokens.items()]
        state = getattr(output, "kv_connector_block_state", None)
        return self._scheduler.plan(steps, state.get_block_ids if state else lambda name: None, fresh_pages(output))

    @hook()
    def update_connector_output(self, connector_output: Any) -> None:
        if self._scheduler is not None:
            meta = getattr(connector_output, "kv_connector_worker_meta", None)
            report = meta.report if isinstance(meta, ReportMetadata) else None
            self._scheduler.step_done(report, list(connector_output.finished_recving or ()))

    @hook(lambda: (False, None))
    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, self._scheduler.finished(request) if self._scheduler else None

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))  # type: ignore[no-any-return]

    def take_events(self) -> Iterable[Any]:
        return ()

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        return {HOST: num_external_tokens} if num_external_tokens and HOST is not None else {}

    @hook(bool)
    def reset_cache(self) -> bool:
        return self._scheduler.reset() if self._scheduler else True

    # --- both

    @hook()
    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        if self._scheduler is not None:
            self._scheduler.gauges()
        data = self._stats.take()
        return KVStoreStats(data) if data else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return KVStoreStats(data if data is not None else {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> KVConnectorPromMetrics | None:
        return KVStoreMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Heads outermost in a page when they are to be stored apart; else whatever is best for the engine."""
        extra = getattr(vllm_config.kv_transfer_config, "kv_connector_extra_config", None) or {}
        return "LBHNC" if extra.get("head_parts") else None

    @hook()
    def shutdown(self) -> None:
        for half in (self._worker, self._scheduler):
            if half is not None:
                half.shutdown()


HOST = getattr(getattr(base, "CacheHitSource", None), "HOST", None)


def cpu_isa(vllm_config: Any, spec: Any) -> str:
    """Instruction set of vLLM's CPU attention: it decides how K lies in a page."""
    if getattr(spec, "kv_cache_specs", None):
        spec = next(iter(spec.kv_cache_specs.values()))
    try:
        from vllm.platforms import current_platform

        if not current_platform.is_cpu():
            return ""
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        cache = vllm_config.cache_config
        return str(_get_attn_isa(vllm_config.model_config.dtype, spec.block_size, spec.head_size, cache.cache_dtype))
    except Exception as error:
        return f"unknown:{os.uname().machine}:{type(error).__name__}"


def hash_tokens(vllm_config: Any, kv_cache_config: Any) -> int:
    """Tokens of a block hash. vLLM 0.31 does not tell workers, who can work it out as its engine core does."""
    found = getattr(kv_cache_config, "hash_block_size", None)
    if not found:
        from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

        found = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)[1]
    return int(found)


def hash_probe(algorithm: str) -> str | None:
    """Digest of a fixed block under the engine's hashing: a change of seed or encoding is another namespace."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    if getattr(kv_cache_utils, "_NONE_HASH_SEED", None) is None:
        return None
    hasher = get_hash_fn_by_name(algorithm)
    return bytes(kv_cache_utils.hash_block_tokens(hasher, None, (1, 2, 3, 4), None)).hex()[:32]
