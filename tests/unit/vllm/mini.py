"""Both halves driven as vLLM drives them, over paged memory that is compared byte for byte."""

from __future__ import annotations

import pickle
import time
from typing import Any

from kvstore.connector.vllm.descriptor import RankFacts
from kvstore.connector.vllm.messages import StepPlan, WorkerReport
from kvstore.connector.vllm.options import Options
from kvstore.connector.vllm.scheduler_side import SchedulerSide
from kvstore.connector.vllm.stats import Recorder
from kvstore.connector.vllm.worker_side import WorkerSide

from .fakes import FakePages, FakeStore, Request, hold, rank

WAIT_S = 10.0


class Mini:
    """An engine of one or more TP ranks. Pages are handed out in order, one table a group."""

    def __init__(self, store: FakeStore, ranks: list[RankFacts] | None = None, seed: int = 1, **options: Any) -> None:
        values = {"lookup_timeout_ms": 2000.0, "load": "always", "min_hit_tokens": 1, **options}
        self.options = Options.parse(values)
        self.ranks = ranks or [rank()]
        self.stats = Recorder()
        groups = self.ranks[0].groups
        self.pages = [
            FakePages({g.index: g.page_bytes for g in groups}, seed=seed + i) for i, _ in enumerate(self.ranks)
        ]
        self.workers = [
            WorkerSide(self.options, facts, pages, self.stats, store.client)
            for facts, pages in zip(self.ranks, self.pages, strict=True)
        ]
        self.scheduler = SchedulerSide(
            self.options, True, True, "sha256_cbor", lambda: "probe", self.stats, (), store.client, hold
        )
        self.tables: dict[str, list[list[int]]] = {}
        self.next_page = 1
        self.received: dict[str, set[int]] = {}
        self.failed: set[str] = set()
        self.bad: set[int] = set()
        self.total: dict[str, Any] = {}

    def start(self) -> Mini:
        self.scheduler.add_ranks({(r.pp_rank, r.tp_rank): r for r in self.ranks})
        end = time.monotonic() + WAIT_S
        while self.scheduler._spec is None and not self.scheduler.refused and time.monotonic() < end:
            time.sleep(0.001)
        return self

    def arrive(self, request: Request, **more: Any) -> None:
        self.scheduler.new_request(request, **more)

    def matched(self, request: Request, computed: int = 0) -> int:
        """Asks until there is an answer."""
        end = time.monotonic() + WAIT_S
        while (found := self.scheduler.matched_tokens(request, computed)) is None:
            assert time.monotonic() < end
            time.sleep(0.001)
        return found

    def allocate(self, request: Request, nulls: dict[int, int] | None = None) -> list[list[int]]:
        """One table a group; ``nulls[group]``: so many leading null pages."""
        tables = []
        for g in self.ranks[0].groups:
            count = -(-request.num_tokens // g.page_tokens)
            table = list(range(self.next_page, self.next_page + count))
            self.next_page += count
            hidden = (nulls or {}).get(g.index, 0)
            tables.append([0] * hidden + table[hidden:])
        self.tables[request.request_id] = tables
        return tables

    def promise(self, request: Request, external: int) -> None:
        self.scheduler.allocated(request, self.tables[request.request_id], external)

    def step(self, *scheduled: tuple[Request, int, int]) -> StepPlan:
        """One step of (request, computed before, tokens scheduled)."""
        steps = [(r.request_id, computed, count) for r, computed, count in scheduled]
        plan = self.scheduler.plan(steps, self.tables.get, set())
        reports: list[WorkerReport] = []
        for index, worker in enumerate(self.workers):
            copy: StepPlan = pickle.loads(pickle.dumps(plan))
            worker.before_forward(copy)
            worker.bind(copy)
            worker.start_loads()
            worker.save()
            done, failed = worker.finished()
            self.failed |= failed
            self.bad |= worker.bad_pages()
            for request in done:
                assert index not in self.received.setdefault(request, set()), "each end is reported once a rank"
                self.received[request].add(index)
            report = worker.report()
            if report is not None:
                reports.append(pickle.loads(pickle.dumps(report)))
        joined = reports[0] if reports else None
        for report in reports[1:]:
            joined = joined.join(report) if joined else report
        whole = [r for r, seen in self.received.items() if len(seen) == len(self.ranks)]
        self.scheduler.step_done(joined, whole)
        return plan

    def until_received(self, request: Request) -> None:
        end = time.monotonic() + WAIT_S
        while len(self.received.get(request.request_id, ())) < len(self.ranks):
            assert time.monotonic() < end, "the load did not end"
            self.step()
            time.sleep(0.001)

    def settle(self) -> None:
        """All saves are in the store and reported."""
        for worker in self.workers:
            if worker._saver is not None:
                assert worker._saver.drain(WAIT_S)
        self.step()

    def prefill(self, request: Request, nulls: dict[int, int] | None = None) -> None:
        """Arrives, is computed in one step, saved."""
        self.arrive(request)
        self.matched(request)
        self.allocate(request, nulls)
        self.step((request, 0, request.num_tokens))
        self.settle()

    def load(self, request: Request, nulls: dict[int, int] | None = None) -> int:
        """Arrives and is loaded as far as the store has it; the tokens promised."""
        self.arrive(request)
        tokens = self.matched(request)
        self.allocate(request, nulls)
        if tokens:
            self.promise(request, tokens)
            self.until_received(request)
        return tokens

    def content(self, request: Request, group: int = 0, rank_index: int = 0, partial: bool = False) -> list[bytes]:
        """The bytes of the request's full pages (or of all)."""
        memory = self.pages[rank_index].memory[group]
        table = self.tables[request.request_id][group]
        tokens = next(g.page_tokens for g in self.ranks[0].groups if g.index == group)
        return [memory[page].tobytes() for page in table[: None if partial else request.num_tokens // tokens]]

    def counts(self) -> dict[str, Any]:
        from kvstore.connector.vllm.stats import merge

        self.total = merge(self.total, self.stats.take() or {})
        return self.total

    def stop(self) -> None:
        for worker in self.workers:
            worker.shutdown()
        self.scheduler.shutdown()
