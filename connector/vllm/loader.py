"""Worker half of loading: blocks come into staging, are verified there, and only then reach paged memory."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from kvstore.core.errors import DeadlineExceeded
from kvstore.core.keys import Keys

from .breaker import Breaker
from .link import Link, Timer, is_outage, reason_of
from .messages import LoadEnd, LoadOp
from .mover import Mover, Span, spans_of_loads
from .staging import Staging
from .stats import Recorder

GRACE_S = 1.0  # past the hard deadline, after which a load is given up for the thread that runs it


class Load:
    """One load of one rank. ``cancel`` makes sure that no page is written any more; the first end counts."""

    def __init__(self, op: LoadOp, keys: Keys, timeout: float, after: Any = None) -> None:
        self.op, self.keys, self.timer = op, keys, Timer(timeout)
        self.after = after  # fence: pages may be overwritten only past it
        self._lock = threading.Lock()
        self._cancelled = False
        self.good = min([run.first for run in op.runs], default=op.end)
        self.reason = op.refused
        self.first = self.good
        self.tokens = 0
        self.bytes = 0
        self.transfer_s = 0.0

    def write(self, mover: Mover, span: Span, count: int, piece: Any) -> None:
        """Copies verified blocks to their pages. Raises DeadlineExceeded when it was given up meanwhile."""
        with self._lock:
            if self._cancelled:
                raise DeadlineExceeded("the load was given up")
            fence = mover.unpack(span, count, piece)
            if fence is not None:
                fence.synchronize()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True

    def end(self) -> LoadEnd:
        good = self.good if self.reason else self.op.end
        return LoadEnd(self.op.request, good, self.reason, self.tokens, self.transfer_s, self.timer.passed)

    def bad_pages(self) -> set[int]:
        """Pages of the plan that do not hold their bytes."""
        return {page for run in self.op.runs for page in _from(run.first, run.count, run.pages, self.good) if page}


def _from(first: int, count: int, pages: Sequence[int], good: int) -> Sequence[int]:
    per = len(pages) // count
    return pages[max(0, good - first) * per :]


class Loader:
    """Loads on a few threads; every one ends by its deadline, one way or the other."""

    def __init__(
        self,
        link: Link,
        breaker: Breaker,
        mover: Mover,
        staging: Staging,
        stats: Recorder,
        unit: int,
        timeout: float,
        stall: float,
        threads: int,
    ) -> None:
        self._link, self._breaker, self._mover, self._staging, self._stats = link, breaker, mover, staging, stats
        self._unit, self._timeout, self._stall = unit, timeout, stall
        self._queue: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: dict[str, Load] = {}
        self._ended: list[Load] = []
        self._log = logging.getLogger("vllm.kvstore")
        self._threads = [
            threading.Thread(target=self._run, name=f"kvstore-load-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, op: LoadOp, keys: Keys, after: Any = None) -> None:
        """Starts a load. It will be among the ended ones exactly once."""
        load = Load(op, keys, self._timeout, after)
        with self._lock:
            self._running[op.request] = load
        if load.reason:
            self._finish(load)
        else:
            self._queue.put(load)

    def run_now(self, op: LoadOp, keys: Keys) -> Load:
        """The same on the caller's thread, for loads that the step needs."""
        load = Load(op, keys, self._timeout)
        if not load.reason:
            self._work(load)
        self._count(load)
        return load

    def take(self) -> list[Load]:
        """Loads that ended since the last call. Gives up those far past their deadline."""
        for load in list(self._running.values()):
            if load.timer.left < -GRACE_S:
                load.cancel()
                load.reason = load.reason or "deadline"
                self._finish(load)
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    @property
    def busy(self) -> bool:
        return bool(self._running or self._ended)

    def close(self) -> None:
        for load in list(self._running.values()):
            load.cancel()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(1.0)

    def _finish(self, load: Load) -> None:
        with self._lock:
            if self._running.pop(load.op.request, None) is not load:
                return
            self._ended.append(load)
        self._count(load)

    def _run(self) -> None:
        while (load := self._queue.get()) is not None:
            self._work(load)
            self._finish(load)
            del load

    def _work(self, load: Load) -> None:
        try:
            if load.after is not None:
                load.after.synchronize()
            if not self._breaker.allow():
                load.reason = "breaker"
                return
            self._fetch(load)
        except Exception as error:  # whatever it is: the rest of this load is computed instead
            load.reason = load.reason or reason_of(error)
            if is_outage(error):
                self._breaker.failure(f"load: {error}")
            if load.reason == "error":
                self._log.warning("kvstore: a load failed", exc_info=True)

    def _fetch(self, load: Load) -> None:
        namespace = self._link.wait(min(self._stall, load.timer.check()))
        if namespace is None:
            load.reason = "no_namespace"
            return
        for span in sorted(spans_of_loads(load.op.runs), key=lambda s: (s.first, s.count)):
            for batch in self._mover.batches(span, self._staging.piece_bytes):
                got = self._batch(load, namespace, batch)
                if got < batch.count:
                    load.good = min(load.op.end, batch.first + got) if self._alone(load) else load.good
                    load.reason = load.reason or "absent"
                    return
                if self._alone(load):
                    load.good = batch.first + got
        load.good = load.op.end
        self._breaker.success()

    @staticmethod
    def _alone(load: Load) -> bool:
        """Whether ``good`` may name a block: with several spans a later one may lack an earlier block."""
        return len({(run.first, run.count) for run in load.op.runs}) == 1

    def _batch(self, load: Load, namespace: Any, batch: Span) -> int:
        """Blocks of the batch that arrived and are in place."""
        piece = self._staging.take(min(self._stall, load.timer.check()))
        if piece is None:
            load.reason = "pressure"
            return 0
        try:
            began = time.monotonic()
            holes: set[tuple[int, int]] = set()
            got = namespace.get(
                load.keys[: batch.first + batch.count],
                self._mover.buffers(batch, piece),
                first=batch.first,
                parts=[part.id for part in self._mover.parts(batch.groups)],
                request_id=load.op.tag,
                holes=holes,
                timeout=min(self._stall, load.timer.check()),
            )
            got = min([got, *(block for block, _ in holes)])
            count: int = max(0, min(batch.count, got - batch.first))
            if count:
                load.write(self._mover, batch, count, piece)
            load.transfer_s += time.monotonic() - began
            load.bytes += count * self._mover.bytes_of(batch.groups)
            if count < batch.count:
                load.reason = _miss(namespace)
            return count
        finally:
            self._staging.give(piece)

    def _count(self, load: Load) -> None:
        good = load.good if load.reason else load.op.end
        load.tokens = (good - load.first) * self._unit
        self._stats.add("loads")
        self._stats.time("load_seconds", load.timer.passed)
        if load.tokens:
            self._stats.add("loaded_tokens", load.tokens)
            self._stats.add("loaded_bytes", load.bytes)
        if load.reason:
            self._stats.add("failed_tokens", max(1, (load.op.end - good) * self._unit), load.reason)


def _miss(namespace: Any) -> str:
    """Why the SDK served less, in its own words."""
    client = getattr(namespace, "client", namespace)
    reason = getattr(client, "last_miss", None) or "absent"
    return str(getattr(reason, "name", reason)).lower().removeprefix("miss_reason_")
