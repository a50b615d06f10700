"""Calls of the client library that are written down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvstore import Client, Keys
from tests.history.record import BORROW, EVICT, GET, MATCH, PREFETCH, PUT, Op, Writer
from tests.history.world import BLOCK_BYTES, TENANTS, World, digest, spec

_BEAT = 0.02


class Watch:
    """For how long this process was kept from running: how much too late a thread of it wakes up."""

    def __init__(self) -> None:
        self.late = 0.0
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(_BEAT):
            now = time.monotonic()
            self.late += max(0.0, now - before - 2 * _BEAT)
            before = now

    def close(self) -> None:
        self._ended.set()


class Caller:
    """``node``: the one behind the target, -1 when there are several."""

    def __init__(self, name: str, world: World, target: str, node: int, log: Path, transport: str = "auto") -> None:
        self.name, self.world, self.node = name, world, node
        self._writer = Writer(log)
        self._watch = Watch()
        self._number = 0
        self._client = Client(target, timeout=5.0, transport=transport)  # type: ignore[arg-type]
        self._spaces = {tenant: self._client.namespace(spec(tenant)) for tenant in TENANTS}

    def close(self) -> None:
        self._client.close()
        self._watch.close()
        self._writer.close()

    def put(
        self, tenant: str, chain: int, blocks: int, first: int = 0, ack: str = "visible", timeout: float = 4.0,
        version: int = 0,
    ) -> Op:  # fmt: skip
        data = [self.world.content(tenant, block, version) for block in self.world.blocks(chain)[first:blocks]]
        op = self._op(PUT, tenant, chain, blocks, timeout, first=first, ack=ack, version=version)

        def action(keys: Keys) -> None:
            done = self._spaces[tenant].put(keys, data, first=first, ack=ack, timeout=timeout)  # type: ignore[arg-type]
            op.complete, op.reasons = done.complete, done.reasons

        return self._call(op, action)

    def get(self, tenant: str, chain: int, blocks: int, timeout: float = 2.0, must: bool = False) -> Op:
        op = self._op(GET, tenant, chain, blocks, timeout, must=must)
        into = [np.zeros(BLOCK_BYTES, np.uint8) for _ in range(blocks)]

        def action(keys: Keys) -> None:
            op.found = self._spaces[tenant].get(keys, into, timeout=timeout)

        self._call(op, action, lambda: [(at, digest(block)) for at, block in enumerate(into[: op.found])])
        return op

    def borrow(self, tenant: str, chain: int, blocks: int, hold: float, timeout: float = 2.0) -> Op:
        """Looks at the bytes when they come, and again after so many seconds."""
        op = self._op(BORROW, tenant, chain, blocks, timeout)
        seen: list[tuple[int, str]] = []

        def action(keys: Keys) -> None:
            with self._spaces[tenant].borrow(keys, timeout=timeout) as views:
                op.end, op.found = time.monotonic(), len(views)
                seen.extend((at, digest(view)) for at, view in enumerate(views))
                time.sleep(hold if views else 0.0)
                seen.extend((at, digest(view)) for at, view in enumerate(views))

        return self._call(op, action, lambda: seen)

    def match(self, tenant: str, chain: int, blocks: int, timeout: float = 2.0, audit: str = "") -> Op:
        op = self._op(MATCH, tenant, chain, blocks, timeout, must=bool(audit), ack=audit)

        def action(keys: Keys) -> None:
            op.found = self._spaces[tenant].match(keys, timeout=timeout)

        return self._call(op, action)

    def prefetch(self, tenant: str, chain: int, blocks: int, timeout: float = 2.0) -> Op:
        op = self._op(PREFETCH, tenant, chain, blocks, timeout)
        return self._call(op, lambda keys: self._spaces[tenant].prefetch(keys, timeout=timeout))

    def evict(self, tenant: str, chain: int, first: int, timeout: float = 2.0) -> Op:
        """The end of a chain from block ``first`` on."""
        op = self._op(EVICT, tenant, chain, self.world.chain(chain).length, timeout, first=first)
        return self._call(op, lambda keys: self._spaces[tenant].evict(keys[first:], timeout=timeout))

    def rotate(self, tenant: str) -> None:
        """New weights. Not written down: the harness tells when it was done everywhere."""
        self._spaces[tenant].rotate(timeout=30.0)

    def keys(self, tenant: str, chain: int) -> Keys:
        return self._spaces[tenant].keys(self.world.tokens(chain))

    # --- writing it down -----------------------------------------------------------------------------------

    def _op(self, kind: str, tenant: str, chain: int, blocks: int, timeout: float, **more: object) -> Op:
        self._number += 1
        return Op(
            self.name, self._number, kind, tenant, chain, blocks, 0.0, timeout, node=self.node, **more  # type: ignore[arg-type]
        )  # fmt: skip

    def _call(
        self, op: Op, action: Callable[[Keys], object], seen: Callable[[], list[tuple[int, str]]] | None = None
    ) -> Op:
        keys = self.keys(op.tenant, op.chain)[: op.blocks]
        late, op.start = self._watch.late, time.monotonic()
        self._writer.add(op)
        try:
            action(keys)
        except Exception as error:  # no failure of a node may reach an engine: whatever is raised is a violation
            op.error = f"{type(error).__name__}: {error}"
        op.end = op.end or time.monotonic()
        op.late = self._watch.late - late
        if seen is not None:
            op.seen = seen()
        self._writer.add(op)
        return op
