"""Prints docs/metrics.md, made of the catalog of metrics.

python -m tools.metrics_doc > docs/metrics.md
"""

from __future__ import annotations

from kvstore.node.metrics.catalog_node import SECTIONS
from kvstore.node.metrics.family import HISTOGRAM, Family, Label, Section

HEAD = """# Metrics

Written by `python -m tools.metrics_doc`; the tables are `kvstore/node/metrics/catalog.py` and `catalog_node.py`.

`GET /metrics` at the node's `http_address`, in Prometheus' text format; histograms are classic ones. All numbers are of
one node, counters from its start on. A counter whose labels are all known is there from the start, at 0. No label names
a key, a chain or a client; what bounds those without a fixed set of values is said with them.

`deploy/grafana/kvstore.json` is a dashboard, `deploy/prometheus/alerts.yaml` has alerts, which [alerts.md](alerts.md)
explains.
Clients count for themselves; what vLLM shows of that is in [vllm.md](vllm.md)."""


def page() -> str:
    """All of it."""
    return "\n\n".join([HEAD, *map(_section, SECTIONS)]) + "\n"


def _section(section: Section) -> str:
    when = f"\n\nThere {section.when}." if section.when else ""
    rows = [f"| `{one.name}` | {one.kind} | {_labels(one)} | {_help(one)} |" for one in section.families]
    return "\n".join(
        [f"## {section.title}{when}\n", "| metric | type | labels | meaning |", "| --- | --- | --- | --- |", *rows]
    )


def _help(family: Family) -> str:
    if family.kind != HISTOGRAM:
        return family.help
    return f"{family.help} Up to {', '.join(f'{bound:g}' for bound in family.buckets)}."


def _labels(family: Family) -> str:
    return "; ".join(map(_label, family.labels))


def _label(label: Label) -> str:
    values = ", ".join(f"`{value}`" for value in label.values)
    return f"`{label.name}`: " + " — ".join(part for part in (values, label.means) if part)


if __name__ == "__main__":
    print(page(), end="")
