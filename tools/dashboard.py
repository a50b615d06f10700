"""Prints deploy/grafana/kvstore.json, made of the panels of `tools/dashboard_panels.py`.

python -m tools.dashboard > deploy/grafana/kvstore.json
"""

from __future__ import annotations

import json
from typing import Any

from tools.dashboard_panels import ROWS, Panel

WIDTH, HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NODES = '{job=~"$job",instance=~"$instance"}'
PER_SECOND = "[$__rate_interval]"


def _filled(text: str) -> str:
    """An expression as Grafana has it."""
    out, rest = "", text
    while "§(" in rest:
        before, _, after = rest.partition("§(")
        more, _, rest = after.partition(")")
        out += f"{before}{NODES[:-1]},{more}}}"
    return (out + rest).replace("§", NODES).replace("~)", PER_SECOND + ")")


def dashboard() -> dict[str, Any]:
    """The whole of it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        panels.append(_row(len(panels) + 1, row.title, top))
        top, left = top + 1, 0
        for panel in row.panels:
            height = 4 if panel.kind == "stat" else HEIGHT
            if left + panel.width > WIDTH:
                top, left = top + height, 0
            panels.append(_panel(len(panels) + 1, panel, {"x": left, "y": top, "w": panel.width, "h": height}))
            left += panel.width
        top += height
    return {
        "uid": "kvstore",
        "title": "kvstore",
        "description": "A kvstore service: nodes, hits, traffic, tiers and cell.",
        "tags": ["kvstore"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [_source(), _choice("job", 'up{job=~".*kvstore.*"}'), _choice("instance", 'up{job=~"$job"}')]
        },
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus", "hide": 0}


def _choice(label: str, series: str) -> dict[str, Any]:
    query = f"label_values({series}, {label})"
    return {
        "name": label, "label": label, "type": "query", "datasource": SOURCE,
        "query": {"query": query, "refId": label}, "refresh": 2, "includeAll": True, "multi": True, "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]}, "sort": 1, "hide": 0,
    }  # fmt: skip


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    instant = {"instant": True, "range": False} if panel.kind == "stat" else {}
    targets = [
        {"refId": chr(ord("A") + nth), "expr": _filled(expr), "legendFormat": legend, "datasource": SOURCE, **instant}
        for nth, (expr, legend) in enumerate(panel.queries)
    ]
    stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
    custom = {"fillOpacity": 20 if panel.stacked else 0, "stacking": stacking, "showPoints": "never"}
    defaults = {"unit": panel.unit, "min": 0, **({} if panel.kind == "stat" else {"custom": custom})}
    shown = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    legend = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi"},
    }
    return {
        "id": number, "type": panel.kind, "title": panel.title, "description": panel.text, "datasource": SOURCE,
        "gridPos": place, "targets": targets, "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": shown if panel.kind == "stat" else legend,
    }  # fmt: skip


def page() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    print(page(), end="")
