"""The half that runs in each worker: knows pages and parts, moves bytes. No vLLM imports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kvstore.core.keys import KEY_BYTES, Keys
from kvstore.core.namespace import NamespaceSpec, parse_canonical

from .breaker import Breaker
from .descriptor import RankFacts, geometry, own_parts
from .link import Link
from .loader import Load, Loader
from .messages import LoadOp, SaveOp, StepPlan, WorkerReport
from .mover import Mover, span_of_save
from .options import Options
from .saver import Saver
from .staging import Staging
from .stats import Recorder

DRAIN_S = 2.0  # how long a clean shutdown waits for saves on their way


class WorkerSide:
    """Driven by the adapter, one call a hook. Raises nothing that matters: a failed load is reported as one."""

    def __init__(
        self,
        options: Options,
        facts: RankFacts,
        pages: Any,
        stats: Recorder,
        make_client: Callable[[Options], Any] | None = None,
    ) -> None:
        self.options, self.facts, self.stats = options, facts, stats
        self._pages = pages
        self._geometry = geometry(facts)
        self._log = logging.getLogger("vllm.kvstore")
        self._breaker = Breaker("worker", options.breaker_seconds, log=self._log)
        self._link = Link(options, self._breaker, self._log, make_client)
        self._link.prepare()
        self._chains: dict[str, bytearray] = {}
        self._acknowledged = False
        self._lost_namespace = False
        self._saver: Saver | None = None
        self._loader: Loader | None = None
        self._sync_bad: set[int] = set()
        self._async_bad: set[int] = set()
        self._ends: list[Load] = []
        self._plan: StepPlan | None = None
        self._queued: list[LoadOp] = []

    def bind(self, plan: StepPlan) -> None:
        """A step begins."""
        self._plan = plan
        self._acknowledged = self._acknowledged or plan.acknowledged
        if plan.namespace is not None:
            self._open(plan.namespace)
        for request, first, keys in plan.chains:
            self._extend(request, first, keys)

    def before_forward(self, plan: StepPlan) -> None:
        """Pages may be overwritten from now on: whatever is still being copied out must be ahead of it."""
        if plan.fence and self._pages is not None and self._pages.fenced:
            self._pages.fence()

    def start_loads(self) -> None:
        for op in self._plan.loads if self._plan else ():
            try:
                self._start_load(op)
            except Exception:  # the request waits for this load: it must end
                self._log.exception("kvstore: a load could not be started")
                self._fail(op, "error")

    def save(self) -> None:
        """The step's forward pass is done (or in the stream): copy out what it filled."""
        if self._plan is not None and self._saver is not None:
            for op in self._plan.saves:
                self._save(op)
        self._forget()

    def finished(self) -> tuple[set[str], set[str]]:
        """Requests whose load ended, and those of them that failed as a whole."""
        done: set[str] = set()
        failed: set[str] = set()
        for load in self._loader.take() if self._loader else ():
            self._ends.append(load)
            done.add(load.op.request)
            if load.reason:
                whole = len(self.facts.groups) > 1 or bool(load.op.refused) or not load.op.runs
                if whole:
                    failed.add(load.op.request)
                else:
                    self._async_bad |= load.bad_pages()
        done |= {op.request for op in self._queued}
        failed |= {op.request for op in self._queued}
        self._queued.clear()
        return done, failed

    def bad_pages(self) -> set[int]:
        """Pages that vLLM takes for loaded and that are not. To be asked after ``finished``."""
        bad = self._sync_bad | self._async_bad
        self._sync_bad, self._async_bad = set(), set()
        return bad

    def report(self) -> WorkerReport | None:
        ends, self._ends = self._ends, []
        dropped, copied = self._saver.take() if self._saver else ([], [])
        ranks = {} if self._acknowledged else {(self.facts.pp_rank, self.facts.tp_rank): self.facts}
        lost, self._lost_namespace = self._lost_namespace, False
        report = WorkerReport(ranks, [load.end() for load in ends], dropped, copied, lost)
        self._gauges()
        return None if report.empty else report

    def shutdown(self) -> None:
        if self._saver is not None:
            self._saver.close(DRAIN_S)
        if self._loader is not None:
            self._loader.close()
        self._link.close()

    # --- inside

    def _gauges(self) -> None:
        self.stats.gauge("breaker_state", self._breaker.level, "worker")
        self.stats.total("breaker_opened", self._breaker.opened, "worker")
        self.stats.gauge("namespace_open", int(self._link.namespace is not None), "worker")

    def _open(self, canonical: bytes) -> None:
        self._chains.clear()
        if not canonical:
            self._link.open(None)
            return
        spec = parse_canonical(canonical)
        self._start_movers(spec)
        self._link.open(spec)

    def _start_movers(self, spec: NamespaceSpec) -> None:
        """The parts depend on the namespace's shape only, which a new generation does not change."""
        if self._saver is not None or self._pages is None:
            return
        own = own_parts(spec, self.facts, self.options.head_parts)
        per_block = {group.index: self._geometry.pages(group) for group in self._geometry.groups}
        mover = Mover(self._pages, own, per_block)
        options, total = self.options, self.options.staging_mib << 20
        make = getattr(self._pages, "make_staging", None)
        more = {"make": make} if make else {}
        unit = self._geometry.unit
        self._saver = Saver(
            self._link, self._breaker, mover, Staging(total, mover.block_bytes, **more), self.stats, unit,
            options.stall_timeout_s,
        )  # fmt: skip
        self._loader = Loader(
            self._link, self._breaker, mover, Staging(total, mover.block_bytes, **more), self.stats, unit,
            options.load_timeout_s, options.stall_timeout_s, options.load_threads,
        )  # fmt: skip

    def _extend(self, request: str, first: int, keys: bytes) -> None:
        chain = self._chains.setdefault(request, bytearray())
        if first * KEY_BYTES > len(chain):
            self._lost_namespace = True
            return
        del chain[first * KEY_BYTES :]
        chain += keys

    def _keys(self, request: str, end: int) -> Keys | None:
        chain = self._chains.get(request, b"")
        return Keys(bytes(chain[: end * KEY_BYTES])) if len(chain) >= end * KEY_BYTES else None

    def _start_load(self, op: LoadOp) -> None:
        keys = self._keys(op.request, op.end)
        if self._loader is None or (keys is None and not op.refused):
            self._lost_namespace = True
            self._fail(op, "no_namespace")
            return
        if op.sync:
            load = self._loader.run_now(op, keys or Keys(b""))
            self._ends.append(load)
            if load.reason:
                self._sync_bad |= load.bad_pages()
            return
        after = self._pages.after_compute() if self._pages.fenced else None
        self._loader.submit(op, keys or Keys(b""), after)

    def _fail(self, op: LoadOp, reason: str) -> None:
        op.refused = op.refused or reason
        self.stats.add("failed_tokens", 1, reason)
        load = Load(op, Keys(b""), 1.0)
        self._ends.append(load)
        if op.sync:
            self._sync_bad |= load.bad_pages()
        else:
            self._queued.append(op)

    def _save(self, op: SaveOp) -> None:
        keys = self._keys(op.request, op.run.first + op.run.count)
        if keys is None:
            self._lost_namespace = True
        elif self.facts.saves and self._saver is not None:
            self._saver.submit(keys, span_of_save(op.run), op.tag, op.appended_tokens)

    def _forget(self) -> None:
        for request in self._plan.forget if self._plan else ():
            self._chains.pop(request, None)


def page_tables(layers: Mapping[int, list[str]], caches: Mapping[str, Any]) -> dict[int, list[str]]:
    """Layers of each group that this worker registered (others are on other pipeline stages)."""
    return {group: [name for name in names if name in caches] for group, names in layers.items()}
