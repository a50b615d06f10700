"""The page /health: whether the node serves, and how each of its tiers is."""

from __future__ import annotations

from kvstore.node.http_server import Page, json_page
from kvstore.tiers.values import StoreStat


def health_page(ready: bool, stat: StoreStat) -> Page:
    """JSON with ``state`` "ok", "degraded" (it serves, a tier is in trouble) or "starting", and the tiers. 200 while it
    serves: a cache with a broken disk is still a cache, and restarting the node would not mend the disk."""
    tiers = {tier.name: _tier(tier.name, tier.trouble, stat) for tier in stat.tiers}
    troubled = any(tier["state"] != "ok" for tier in tiers.values())
    state = "starting" if not ready else "degraded" if troubled else "ok"
    return json_page({"state": state, "tiers": tiers}, 200 if ready else 503)


def _tier(name: str, trouble: str, stat: StoreStat) -> dict[str, object]:
    if stat.nvme and name == "nvme":
        found = stat.nvme
        return {"state": found.state, "reason": found.reason, "since": found.since, "advice": found.advice}
    return {"state": "degraded" if trouble else "ok", "reason": trouble}
