"""The half that runs in the scheduler: knows requests and keys, decides what is loaded and saved. No vLLM imports."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvstore.core.keys import KEY_BYTES
from kvstore.core.namespace import NamespaceSpec

from .breaker import Breaker
from .descriptor import RankFacts, window_parts
from .identity import Identity
from .link import Link
from .lookup import DONE, Lookup, Lookups
from .memory import Copying, FailureMemory, SaveMemory
from .messages import LoadEnd, LoadOp, SaveOp, StepPlan, WorkerReport
from .options import Options
from .planner import LoadRun, full_blocks, hit_limit, plan_load, plan_saves, usable_hit
from .rates import Rates
from .stats import Recorder
from .track import Track, announcement, handoff_of, tag_of

BAD_BLOCK = ("checksum",)  # reasons that say that the block itself is bad
OUTAGE = ("unavailable", "deadline", "session", "backoff")  # reasons that say that the node is


class SchedulerSide:
    """Driven by the adapter, one call a hook. ``probe`` gives the digest of a fixed block once hashing is set up."""

    def __init__(
        self,
        options: Options,
        loads: bool,
        saves: bool,
        hash_algorithm: str,
        probe: Callable[[], str | None],
        stats: Recorder,
        refusals: Sequence[str] = (),
        make_client: Callable[[Options], Any] | None = None,
        hold: Callable[..., Any] | None = None,
    ) -> None:
        self.options, self.stats = options, stats
        self._loads = loads and options.load != "never"
        self._saves = saves and options.save != "none"
        self._log = logging.getLogger("vllm.kvstore")
        self._breaker = Breaker("scheduler", options.breaker_seconds, log=self._log)
        self._link = Link(options, self._breaker, self._log, make_client)
        self._identity = Identity(options, hash_algorithm, probe, refusals, stats, self._link.open)
        self._lookups = Lookups(
            self._link, self._breaker, options.max_lookups, options.stall_timeout_s, window_parts, 2, hold
        )
        self._tracks: dict[str, Track] = {}
        self._pending: list[LoadOp] = []
        self._forget: list[str] = []
        self._failures, self._saved_keys = FailureMemory(), SaveMemory()
        self.rates = Rates()
        self._copying = Copying()
        self._fresh: set[int] = set()
        self._step: tuple[float, int] | None = None  # (start, prompt tokens) of the step in flight

    def add_ranks(self, ranks: Mapping[tuple[int, int], RankFacts]) -> None:
        """Descriptions of workers, by handshake or report."""
        self._identity.add_ranks(ranks)

    @property
    def refused(self) -> str:
        """Why caching is off for this engine; empty when it is not."""
        return self._identity.refused

    @property
    def _spec(self) -> NamespaceSpec | None:
        return self._identity.spec

    @property
    def _geometry(self) -> Any:
        return self._identity.geometry

    # --- requests

    def new_request(self, request: Any, salt: bytes | None = b"", cacheable: bool = True) -> None:
        """A request arrived. ``salt``: content of its LoRA adapter, None when that is unknown."""
        if self.refused:
            return
        params = getattr(request, "kv_transfer_params", None)
        handoff = handoff_of(params)
        usable = cacheable and salt is not None
        reads = usable and self._loads and not getattr(request, "skip_reading_prefix_cache", False)
        track = Track(request, tag_of(str(request.request_id)), reads, usable and self._saves, salt or b"", handoff)
        self._tracks[track.id] = track
        if reads:
            self._start_lookup(track)

    def _start_lookup(self, track: Track) -> None:
        spec, geometry = self._spec, self._geometry
        if spec is None or geometry is None:
            return
        limit, blocks = hit_limit(geometry, track.request.num_tokens), track.request.num_tokens // geometry.unit
        if limit * geometry.unit < self.options.min_hit_tokens:
            return
        if self._breaker.blocked or self._link.failing:
            self.stats.add("lookup_misses", 1, "breaker" if self._breaker.blocked else "no_namespace")
            track.may_load = False
            return
        wait = self.options.lookup_timeout_ms / 1000
        wanted = 0
        if track.handoff is not None and self._identity.same(track.handoff.namespace):
            wait, wanted = max(wait, self.options.handoff_timeout_s), min(track.handoff.blocks, limit)
        track.drop_lookup()
        track.lookup = Lookup(track.hashes(geometry, 0, blocks), spec, track.tag, wait, wanted)
        track.deadline_passed = False
        self._lookups.submit(track.lookup)

    def matched_tokens(self, request: Any, computed: int) -> int | None:
        """Tokens beyond ``computed`` that can be loaded; None: ask again. Cheap, and without side effects in vLLM."""
        track = self._tracks.get(str(request.request_id))
        geometry = self._geometry
        if track is None or geometry is None or not track.may_load or track.failed or self.refused:
            return 0
        limit: int = hit_limit(geometry, request.num_tokens)
        if limit * geometry.unit - computed < self.options.min_hit_tokens:
            return 0
        lookup = track.lookup
        if lookup is None or self._outdated(track, lookup, limit):
            self._start_lookup(track)
            lookup = track.lookup
            if lookup is None:
                return 0
        if lookup.state != DONE:
            return self._waiting(track, lookup)
        return self._answer(track, lookup, computed, limit)

    def _outdated(self, track: Track, lookup: Lookup, limit: int) -> bool:
        if lookup.state != DONE:
            return False
        too_old = time.monotonic() - lookup.finished_at > self.options.lookup_valid_s
        grown = lookup.blocks < limit and not track.new  # resumed after preemption with more tokens
        return too_old or grown or lookup.spec is not self._spec

    def _waiting(self, track: Track, lookup: Lookup) -> int | None:
        if time.monotonic() < lookup.deadline:
            return None
        if not track.deadline_passed:
            track.deadline_passed = True
            self.stats.add("lookup_misses", 1, "deadline")
            self._breaker.failure("lookups are slow", soft=True)
        return 0

    def _answer(self, track: Track, lookup: Lookup, computed: int, limit: int) -> int:
        geometry = self._geometry
        self._adopt(track, lookup)
        if lookup.reason:
            self._count_query(track, lookup, computed, 0, lookup.reason)
            return 0
        now = time.monotonic()
        matched = self._failures.cut(track.key_list(0, lookup.matched), lookup.matched, now)
        end = usable_hit(geometry, matched, lookup.present, limit)
        tokens: int = max(0, end * geometry.unit - computed)
        if tokens < self.options.min_hit_tokens or not self._worth(track, tokens):
            tokens = 0
        self._count_query(track, lookup, computed, tokens, "" if tokens else "absent")
        track.answered = (computed, end) if tokens else None
        return tokens

    def _worth(self, track: Track, tokens: int) -> bool:
        """Decided once a request: the answer must not change while it waits for room."""
        if self.options.load != "auto" or track.handoff is not None:
            return True
        if track.worth is None:
            track.worth = self.rates.worth_loading(tokens)
            if not track.worth:
                self.stats.add("recomputed_tokens", tokens)
        return track.worth

    def _adopt(self, track: Track, lookup: Lookup) -> None:
        """Takes over keys and what the store had."""
        if track.adopted is lookup:
            return
        track.adopted = lookup
        self.stats.time("lookup_seconds", lookup.finished_at - lookup.started)
        if lookup.spec is not self._spec or not lookup.keys:
            return
        if len(lookup.keys) > len(track.keys):
            track.keys = lookup.keys
        if not lookup.reason:
            track.found = lookup.matched
            track.saved = max(track.saved, lookup.matched)
            self._saved_keys.absent(track.key_list(lookup.matched, lookup.blocks))

    def _count_query(self, track: Track, lookup: Lookup, computed: int, tokens: int, miss: str) -> None:
        if track.counted:
            return
        track.counted = True
        self.stats.add("queries")
        self.stats.add("query_tokens", max(0, track.request.num_tokens - computed))
        if tokens:
            self.stats.add("hits")
            self.stats.add("hit_tokens", tokens)
        else:
            self.stats.add("lookup_misses", 1, miss)

    def allocated(self, request: Any, tables: Sequence[Sequence[int]], external: int) -> None:
        """vLLM reserved pages for what was promised: plan the load."""
        track = self._tracks.get(str(request.request_id))
        if external <= 0:
            return
        if track is None or track.answered is None:
            self.refuse_load(str(request.request_id), tables)
            return
        computed, _ = track.answered
        track.answered = None
        unit = self._geometry.unit
        end = -(-(computed + external) // unit)
        runs = plan_load(self._geometry, computed, external, tables)
        track.extend(self._geometry, self._identity.root, end)
        op = LoadOp(track.id, end, runs, track.tag, self.options.load_mode == "sync")
        self._pending.append(op)
        track.saved = max(track.saved, end)
        self._fresh.update(page for run in runs for page in run.pages)

    def refuse_load(self, request_id: str, tables: Sequence[Sequence[int]]) -> None:
        """A promise that cannot be kept: every page is reported as not loaded."""
        pages = tuple(page for page in tables[0] if page) if tables else ()
        runs = (LoadRun(0, 0, len(pages), pages),) if pages else ()
        sync = self.options.load_mode == "sync"
        self._pending.append(LoadOp(request_id, len(pages), runs, 0, sync, refused="planning"))
        track = self._tracks.get(request_id)
        if track is not None:
            track.failed = True

    # --- steps

    def plan(self, steps: Sequence[tuple[str, int, int]], tables: Callable[[str], Any], fresh: set[int]) -> StepPlan:
        """What the workers do in this step.

        ``steps``: (request, tokens computed before, tokens scheduled). ``tables(request)``: its block tables after
        allocation. ``fresh``: pages given out in this step.
        """
        plan = StepPlan(acknowledged=self._identity.known, loads=list(self._pending), forget=list(self._forget))
        if self._identity.untold and self._spec is not None:
            plan.namespace, self._identity.untold = self._spec.canonical(), False
        for op in plan.loads:
            self._send_keys(plan, op.request, op.end)
        prompt = 0
        for request_id, computed, scheduled in steps:
            track = self._tracks.get(request_id)
            if track is not None:
                track.new = False
                prompt += scheduled if computed < track.request.num_prompt_tokens else 0
                self._plan_saves(plan, track, computed, scheduled, tables)
        self._step = (time.monotonic(), prompt)
        plan.fence = self._copying.touched_by(fresh | self._fresh)
        self._fresh = set()
        if self._identity.on_device:
            self._copying.begin(page for op in plan.saves for pages in op.run.pages for page in pages)
        self._pending.clear()  # only now: after an error they are told in a bare plan
        self._forget.clear()
        return plan

    def bare_plan(self) -> StepPlan:
        """After an error: requests that were promised a load must not wait for ever, so it ends as failed."""
        loads, self._pending = self._pending, []
        for op in loads:
            op.refused = op.refused or "planning"
        return StepPlan(loads=loads)

    def _send_keys(self, plan: StepPlan, request_id: str, end: int) -> None:
        track = self._tracks.get(request_id)
        if track is None or end <= track.sent:
            return
        keys = track.keys[track.sent * KEY_BYTES : end * KEY_BYTES]
        plan.chains.append((request_id, track.sent, keys))
        track.sent += len(keys) // KEY_BYTES

    def _plan_saves(self, plan: StepPlan, track: Track, computed: int, scheduled: int, tables: Any) -> None:
        geometry, request = self._geometry, track.request
        if not track.may_save or track.gap or geometry is None or self._spec is None or self.refused:
            return
        known = request.num_tokens if self.options.save == "all" else request.num_prompt_tokens
        end = full_blocks(geometry, computed, scheduled, min(known, request.num_tokens), len(request.block_hashes))
        if track.lookup is not None and track.lookup.state == DONE:
            self._adopt(track, track.lookup)
        if end <= track.saved or self._breaker.blocked:
            return
        found = tables(track.id)
        if found is None:
            return
        track.extend(geometry, self._identity.root, end)
        first = track.saved
        if first and self._saved_keys.gap(track.key(first - 1)):
            track.gap = True
            self.stats.add("offered_tokens", (end - first) * geometry.unit)
            self.stats.add("dropped_tokens", (end - first) * geometry.unit, "gap")
            return
        runs, planned = plan_saves(
            geometry, first, end, found, lambda block: self._saved_keys.sent(track.key(block)), self._identity.needed
        )
        track.gap = planned < end
        track.saved = planned
        for run in runs:
            last = run.first + run.count
            self._saved_keys.send(track.key_list(run.first, last))
            self._send_keys(plan, track.id, last)
            plan.saves.append(SaveOp(track.id, run, track.tag, (last - track.found) * geometry.unit))

    def step_done(self, report: WorkerReport | None, received: Sequence[str]) -> None:
        """Outputs of a step arrived."""
        self._measure()
        for request_id in received:
            track = self._tracks.get(request_id)
            if track is not None:
                track.drop_lookup()
        if report is None:
            return
        if report.ranks:
            self.add_ranks(report.ranks)
        self._identity.untold = self._identity.untold or report.lost_namespace
        if report.lost_namespace:
            for track in self._tracks.values():
                track.sent = 0
        self._copying.end(report.copied)
        self._saved_keys.dropped(report.dropped)
        for end in report.loads:
            self._load_ended(end)

    def _measure(self) -> None:
        if self._step is not None:
            began, prompt = self._step
            self._step = None
            self.rates.prefilled(prompt, time.monotonic() - began)

    def _load_ended(self, end: LoadEnd) -> None:
        if not end.reason:
            self.rates.loaded(end.tokens, end.transfer_s, end.total_s)
            return
        track = self._tracks.get(end.request)
        if end.reason in OUTAGE:
            self._breaker.failure(f"loads fail: {end.reason}")
        if track is None:
            return
        track.failed = True
        track.saved = min(track.saved, end.good)
        keys = track.key_list(end.good, end.good + 1)
        self._saved_keys.absent(track.key_list(end.good, len(track.keys)))
        if end.reason in BAD_BLOCK:
            self._failures.failed(keys, time.monotonic())
        self._log.warning(
            "kvstore: %s: blocks from %d on could not be loaded (%s); they are computed",
            end.request,
            end.good,
            end.reason,
        )

    def finished(self, request: Any) -> dict[str, Any] | None:
        """The request ended (or was aborted). Returns its ``kv_transfer_params`` when it was a prefill for others."""
        track = self._tracks.pop(str(request.request_id), None)
        if track is None:
            return None
        track.drop_lookup()
        if track.sent:
            self._forget.append(track.id)
        params = getattr(request, "kv_transfer_params", None)
        if not isinstance(params, Mapping) or not params.get("do_remote_decode"):
            return None
        if self._spec is None:
            return announcement(0, "", self._node())
        blocks = min(track.saved, request.num_prompt_tokens // self._geometry.unit)
        return announcement(blocks, self._identity.root.hex(), self._node())

    def _node(self) -> str:
        """The holding node: its id, and where this engine reaches it."""
        return f"{self._link.node_id.hex()}@{self.options.target}"

    def reset(self) -> bool:
        """The weights may have changed: a new namespace. Requests under way are neither loaded nor saved any more."""
        for track in self._tracks.values():
            track.may_load = track.may_save = False
            track.drop_lookup()
        self._saved_keys.clear()
        self._identity.rotate()
        return True

    def gauges(self) -> None:
        self.stats.gauge("breaker_state", self._breaker.level, "scheduler")
        self.stats.total("breaker_opened", self._breaker.opened, "scheduler")
        if not self.refused:
            self.stats.gauge("namespace_open", int(self._link.namespace is not None), "scheduler")

    def shutdown(self) -> None:
        for track in self._tracks.values():
            track.drop_lookup()
        self._lookups.close()
        self._link.close()
