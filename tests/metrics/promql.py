"""Which metrics and labels an expression looks at, and whether a node has them."""

from __future__ import annotations

import re

from kvstore.node.metrics.catalog_node import FAMILIES
from kvstore.node.metrics.family import HISTOGRAM

OUTSIDE = frozenset({"up", "ALERTS"})  # metrics that Prometheus makes itself
SCRAPE = frozenset({"job", "instance"})  # labels that it adds
_NAME = re.compile(r"\b(?:kvstore|process)_[a-z_]+\b|\bup\b")
_SELECTOR = re.compile(r"\b((?:kvstore|process)_[a-z_]+|up)\{([^}]*)\}")
_MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"([^\"]*)\"")


def names_in(expr: str) -> set[str]:
    """Metrics of an expression."""
    return set(_NAME.findall(re.sub(r'"[^"]*"', '""', expr)))


def wrong_names(expr: str) -> list[str]:
    """What no node has: metrics, labels, and values of labels whose values are known."""
    wrong = [name for name in names_in(expr) - OUTSIDE if _family(name) is None]
    for name, labels in _SELECTOR.findall(expr):
        known = _labels(name)
        for label, operator, value in _MATCHER.findall(labels):
            if label not in known:
                wrong.append(f"{name}{{{label}}}")
            elif known[label] and "$" not in value and not _some(known[label], operator, value):
                wrong.append(f"{name}{{{label}{operator}{value}}}")
    return sorted(wrong)


def _some(values: tuple[str, ...], operator: str, value: str) -> bool:
    if "~" in operator:
        return any(re.fullmatch(value, one) for one in values)
    return value in values


def _family(name: str) -> str | None:
    if name in FAMILIES:
        return name
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if base in FAMILIES and FAMILIES[base].kind == HISTOGRAM else None


def _labels(name: str) -> dict[str, tuple[str, ...]]:
    family = _family(name)
    own = {label.name: label.values for label in FAMILIES[family].labels} if family else {}
    return {**dict.fromkeys((*SCRAPE, "le"), ()), **own}
