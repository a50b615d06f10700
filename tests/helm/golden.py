"""Writes golden/ anew: what Helm 4 makes of each of values/."""

from __future__ import annotations

import textwrap

from tests.helm.rendering import CHART, HERE, VALUES, text


def looked_at(values: str) -> str:
    """A render, without what the chart only copies."""
    rendered = text(4, values)
    for path in sorted((CHART / "files").iterdir()):
        for indent in (2, 4):
            copied = textwrap.indent(path.read_text().rstrip("\n"), " " * indent, lambda line: True)
            rendered = rendered.replace(copied, f"{' ' * indent}(files/{path.name})")
    return rendered


if __name__ == "__main__":
    for values in VALUES:
        (HERE / "golden" / f"{values}.yaml").write_text(looked_at(values))
