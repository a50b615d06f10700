"""Whether a node lives, has started and is ready: for /health, the probes of an orchestrator, and grpc.health.v1.

Ready means that its blocks are found again, that it serves, and that the others of its cell can find it. Losing etcd
later does not undo that: all who know the node go on. A node that drains or stops is not ready: new clients go
elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvstore.node.http_server import Page, Routes, json_page, text
from kvstore.tiers.values import StoreStat

_LOOK_SECONDS = 0.2  # how late at most a change is told
_WHY = {
    "starting": "the node starts",
    "announcing": "the others of its cell cannot find it yet; `kvstore cluster status` says why",
    "draining": "it drains and takes no new blocks",
    "stopping": "the node stops",
}


class Readiness:
    """``visible``: whether others can find the node; once is enough. ``drains``: whether it does now."""

    def __init__(self, visible: Callable[[], bool], drains: Callable[[], bool]) -> None:
        self._visible = visible
        self._drains = drains
        self._phase = "starting"
        self._seen = False
        self._stopped = threading.Event()

    @property
    def state(self) -> str:
        """One of starting, announcing, ready, draining, stopping."""
        if self._phase != "started":
            return self._phase
        self._seen = self._seen or self._visible()
        if not self._seen:
            return "announcing"
        return "draining" if self._drains() else "ready"

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    def started(self, tell: Callable[[bool], None] | None) -> None:
        """The node serves. ``tell`` hears whether it is ready now, and of each change until :meth:`stopping`."""
        self._phase = "started"
        if tell is not None:
            tell(told := self.ready)
            threading.Thread(target=self._watch, args=(tell, told), name="readiness", daemon=True).start()

    def stopping(self) -> None:
        self._phase = "stopping"
        self._stopped.set()

    def _watch(self, tell: Callable[[bool], None], told: bool) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            if (ready := self.ready) != told:
                tell(told := ready)


def probe_routes(readiness: Readiness) -> Routes:
    """/livez: the process answers. /startupz: its blocks are found again and it serves. /readyz: send it work."""
    live, ready = lambda: text(200, "live\n"), lambda: _ready_page(readiness.state)
    return {
        "/livez": live,
        "/startupz": lambda: _started_page(readiness.state),
        "/readyz": ready,
        "/health/live": live,
        "/health/ready": ready,
    }


def _ready_page(state: str) -> Page:
    return text(200, "ready\n") if state == "ready" else text(503, f"not ready: {_WHY[state]}\n")


def _started_page(state: str) -> Page:
    return text(503, f"not started: {_WHY[state]}\n") if state == "starting" else text(200, "started\n")


def health_page(state: str, stat: StoreStat) -> Page:
    """JSON with ``state`` and the tiers. A ready node is "ok", or "degraded" when a tier is in trouble. 200 while it
    serves: a cache with a broken disk is still a cache, and restarting the node would not mend the disk."""
    tiers = {tier.name: _tier(tier.name, tier.trouble, stat) for tier in stat.tiers}
    troubled = any(tier["state"] != "ok" for tier in tiers.values())
    shown = ("degraded" if troubled else "ok") if state == "ready" else state
    return json_page({"state": shown, "tiers": tiers}, 503 if state in ("starting", "stopping") else 200)


def _tier(name: str, trouble: str, stat: StoreStat) -> dict[str, object]:
    if stat.nvme and name == "nvme":
        found = stat.nvme
        return {"state": found.state, "reason": found.reason, "since": found.since, "advice": found.advice}
    return {"state": "degraded" if trouble else "ok", "reason": trouble}
