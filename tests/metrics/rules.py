"""The shipped alerts, as Prometheus reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"


@dataclass(frozen=True)
class Rule:
    name: str
    expr: str
    wait: str
    severity: str
    annotations: dict[str, str]


def rules() -> list[Rule]:
    return [_rule(one) for group in yaml.safe_load(ALERTS.read_text())["groups"] for one in group["rules"]]


def _rule(found: dict[str, Any]) -> Rule:
    return Rule(
        found["alert"], found["expr"], found.get("for", "0m"), found["labels"]["severity"], found["annotations"]
    )
