"""Writes golden/ anew: what Helm 4 makes of each of values/."""

from __future__ import annotations

from tests.helm.rendering import HERE, VALUES, text

if __name__ == "__main__":
    for values in VALUES:
        (HERE / "golden" / f"{values}.yaml").write_text(text(4, values))
