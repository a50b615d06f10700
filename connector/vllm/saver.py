"""Worker half of saving: what a step filled is copied to staging and put into the store by one thread."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

from kvstore.core.keys import Keys

from .breaker import Breaker
from .link import Link, Timer, is_outage, reason_of
from .mover import Mover, Span
from .staging import Staging
from .stats import Recorder

FIRST_OPEN_S = 5.0  # how long a save waits for a namespace that is being opened


@dataclass
class SaveJob:
    """Blocks in a piece of staging, on their way to the store. ``keys``: the chain up to the last of them."""

    keys: Keys
    span: Span
    piece: Any
    fence: Any
    tag: int
    appended_tokens: int
    spec: Any
    started: float


class Saver:
    """``submit`` never waits: without a free piece of staging the blocks are dropped, and counted."""

    def __init__(
        self, link: Link, breaker: Breaker, mover: Mover, staging: Staging, stats: Recorder, unit: int, timeout: float
    ) -> None:
        self._link, self._breaker, self._mover, self._staging, self._stats = link, breaker, mover, staging, stats
        self._unit, self._timeout = unit, timeout
        self._queue: queue.SimpleQueue[SaveJob | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._dropped: list[bytes] = []
        self._copied: list[int] = []
        self._pending = 0
        self._log = logging.getLogger("vllm.kvstore")
        self._thread = threading.Thread(target=self._run, name="kvstore-save", daemon=True)
        self._thread.start()

    def submit(self, keys: Keys, span: Span, tag: int, appended_tokens: int) -> None:
        """Copies the span's pages out (or starts to) and hands them to the thread."""
        self._stats.add("offered_tokens", span.count * self._unit)
        for batch in self._mover.batches(span, self._staging.piece_bytes):
            reason = self._refusal()
            piece = self._staging.take() if not reason else None
            if piece is None:
                rest = Span(batch.first, span.first + span.count - batch.first, {})
                self._drop(keys, rest, reason or "pressure")
                return
            fence = self._mover.pack(batch, piece)
            chain = keys[: batch.first + batch.count]
            job = SaveJob(chain, batch, piece, fence, tag, appended_tokens, self._link.spec, time.monotonic())
            with self._lock:
                self._pending += 1
            self._queue.put(job)

    def _refusal(self) -> str:
        if self._link.spec is None:
            return "no_namespace"
        return "breaker" if self._breaker.blocked else ""

    def take(self) -> tuple[list[bytes], list[int]]:
        """Keys dropped and pages copied out since the last call."""
        if not self._dropped and not self._copied:
            return [], []
        with self._lock:
            dropped, self._dropped = self._dropped, []
            copied, self._copied = self._copied, []
        return dropped, copied

    def drain(self, timeout: float) -> bool:
        """Waits until all is stored."""
        timer = Timer(timeout)
        while self._pending and timer.left > 0:
            time.sleep(0.005)
        return not self._pending

    def close(self, timeout: float = 2.0) -> None:
        self.drain(timeout)
        self._queue.put(None)
        self._thread.join(timeout)

    def _drop(self, keys: Keys, span: Span, reason: str) -> None:
        self._stats.add("dropped_tokens", span.count * self._unit, reason)
        with self._lock:
            self._dropped.extend(keys[span.first : span.first + span.count])

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                self._fence(job)
                self._put(job)
            except Exception as error:  # the engine goes on, these blocks are not stored
                self._failed(job, error)
            finally:
                self._staging.give(job.piece)
                with self._lock:
                    self._pending -= 1
                del job

    def _fence(self, job: SaveJob) -> None:
        if job.fence is None:
            return
        job.fence.synchronize()
        with self._lock:
            for pages in job.span.pages.values():
                self._copied.extend(pages)

    def _put(self, job: SaveJob) -> None:
        namespace = self._link.wait(FIRST_OPEN_S)
        if namespace is None or self._link.spec is not job.spec:
            return self._drop(job.keys, job.span, "no_namespace")
        if not self._breaker.allow():
            return self._drop(job.keys, job.span, "breaker")
        result = namespace.put(
            job.keys,
            self._mover.buffers(job.span, job.piece),
            first=job.span.first,
            parts=[part.id for part in self._mover.parts(job.span.groups)],
            request_id=job.tag,
            appended_tokens=job.appended_tokens,
            timeout=self._timeout,
        )
        self._count(job, result)
        return None

    def _count(self, job: SaveJob, result: Any) -> None:
        self._breaker.success()
        self._stats.add("saves")
        self._stats.time("save_seconds", time.monotonic() - job.started)
        if result.stored:
            self._stats.add("saved_tokens", result.stored * self._unit)
            self._stats.add("saved_bytes", result.stored * self._mover.bytes_of(job.span.groups))
        if result.present or result.pending:
            self._stats.add("present_tokens", (result.present + result.pending) * self._unit)
        if result.failed:
            for reason, blocks in result.reasons.items():
                if reason not in ("present", "pending", "stored"):
                    self._stats.add("dropped_tokens", blocks * self._unit, reason)
            with self._lock:
                self._dropped.extend(job.keys[job.span.first : job.span.first + job.span.count])

    def _failed(self, job: SaveJob, error: Exception) -> None:
        self._drop(job.keys, job.span, reason_of(error))
        if is_outage(error):
            self._breaker.failure(f"save: {error}")
        if reason_of(error) == "error":
            self._log.warning("kvstore: a save failed: %r", error)
