"""Lookups in the background: one batched match for all groups and shards, with a lease where the session has them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvstore.core.keys import Keys, hashed_keys
from kvstore.core.namespace import NamespaceSpec

from .breaker import Breaker
from .link import Link, is_outage, reason_of

PENDING, DONE = "pending", "done"
POLL_S = 0.002  # between two looks for blocks that another engine is still writing
PREFETCH_S = 5.0  # blocks that have not begun to come from NVMe by then are not worth it any more


class Lookup:
    """One lookup. ``keys`` are valid once ``state`` is done; ``reason`` is set when there is no answer."""

    def __init__(self, hashes: Sequence[bytes], spec: NamespaceSpec, tag: int, wait_s: float, wanted: int = 0) -> None:
        self.hashes, self.spec, self.tag = hashes, spec, tag
        self.wanted = wanted  # blocks that another engine announced
        self.started = time.monotonic()
        self.deadline = self.started + wait_s
        self.state = PENDING
        self.keys = b""
        self.matched = 0
        self.present: dict[int, list[bool]] | None = None
        self.hold: Any = None
        self.reason = ""
        self.finished_at = 0.0
        self._cancelled = False

    @property
    def blocks(self) -> int:
        return len(self.hashes)

    @property
    def age(self) -> float:
        return time.monotonic() - self.started

    def cancel(self) -> None:
        """Nobody will ask any more; a lease is given back."""
        self._cancelled = True
        self.release()

    def release(self) -> None:
        hold, self.hold = self.hold, None
        if hold is not None:
            hold.close()

    def done(self, reason: str = "") -> None:
        self.reason = reason
        self.finished_at = time.monotonic()
        self.state = DONE
        if self._cancelled:
            self.release()


class Lookups:
    """A few threads, a bounded queue. Past the bound a lookup is a miss at once."""

    def __init__(
        self,
        link: Link,
        breaker: Breaker,
        bound: int,
        call_timeout: float,
        groups: Callable[[NamespaceSpec], dict[int, list[int]]],
        threads: int = 2,
        hold: Callable[..., Any] | None = None,
    ) -> None:
        self._hold = hold or _sdk_hold
        self._link, self._breaker, self._bound, self._timeout = link, breaker, bound, call_timeout
        self._groups = groups  # window groups of a namespace and their parts
        self._queue: queue.SimpleQueue[Lookup | None] = queue.SimpleQueue()
        self._log = logging.getLogger("vllm.kvstore")
        self._threads = [
            threading.Thread(target=self._run, name=f"kvstore-lookup-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, lookup: Lookup) -> None:
        if self._queue.qsize() >= self._bound:
            lookup.done("busy")
        else:
            self._queue.put(lookup)

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(1.0)

    def _run(self) -> None:
        while (lookup := self._queue.get()) is not None:
            try:
                again = self._look(lookup)
            except Exception as error:  # no answer is an answer
                again = False
                if is_outage(error):
                    self._breaker.failure(f"lookup: {error}")
                if reason_of(error) == "error":
                    self._log.warning("kvstore: a lookup failed", exc_info=True)
                lookup.done(reason_of(error))
            if again:
                time.sleep(POLL_S)
                self._queue.put(lookup)
            del lookup

    def _look(self, lookup: Lookup) -> bool:
        """True when it must be asked again."""
        if not lookup.keys:
            lookup.keys = hashed_keys(lookup.spec.root, lookup.hashes)
        namespace = self._link.wait(lookup.deadline - time.monotonic())
        if namespace is None or self._link.spec is not lookup.spec:
            lookup.done("no_namespace")
            return False
        if not self._breaker.allow():
            lookup.done("breaker")
            return False
        leased = self._match(lookup, namespace)
        self._breaker.success()
        if lookup.matched < lookup.wanted and time.monotonic() < lookup.deadline:
            lookup.release()
            return True
        lookup.done()
        if leased < lookup.matched:
            self._prefetch(namespace, Keys(lookup.keys)[: lookup.matched])
        return False

    def _prefetch(self, namespace: Any, keys: Keys) -> None:
        """Blocks without a lease may be on NVMe alone: they start on their way while the request waits for its turn."""
        try:
            namespace.prefetch(keys, deadline=PREFETCH_S, timeout=self._timeout)
        except Exception as error:  # the load will fetch them itself
            self._log.debug("kvstore: no prefetch: %s", error)

    def _match(self, lookup: Lookup, namespace: Any) -> int:
        """Asks the store. ``hold`` is the SDK's match with a lease; it tells which window parts are there. Returns
        how many blocks the lease keeps in memory."""
        held = self._hold(namespace, Keys(lookup.keys), request_id=lookup.tag, timeout=self._timeout)
        lookup.hold, lookup.matched = held, held.blocks
        windows = self._groups(lookup.spec)
        if windows:
            lookup.present = {
                group: [all(held.has(part, block) for part in parts) for block in range(held.blocks)]
                for group, parts in windows.items()
            }
        return int(held.leased)


def _sdk_hold(namespace: Any, keys: Keys, **options: Any) -> Any:
    from kvstore.client.hold import hold

    return hold(namespace, keys, **options)
