"""Extracts the King James Bible from Debian's package bible-kjv into tools/corpus/kjv.txt.xz, one verse a line.

Run once, with the Debian packages bible-kjv and bible-kjv-text installed; its result is committed.
A line is ``Book<tab>chapter:verse<tab>text``.
"""

from __future__ import annotations

import lzma
import re
import subprocess
from pathlib import Path

TARGET = Path(__file__).parent / "corpus" / "kjv.txt.xz"
VERSE = re.compile(r"([1-3]?[A-Za-z]+)([0-9]+:[0-9]+) (.+)")


def extract() -> str:
    """All verses as lines. Raises RuntimeError when the package gives another number of verses than it has."""
    run = subprocess.run(["bible", "-f"], input="gen1:1-rev22:21\n", capture_output=True, text=True, check=True)
    lines = []
    for line in run.stdout.split("> ", 1)[1].splitlines():
        found = VERSE.fullmatch(line.strip())
        if found:
            lines.append("\t".join(found.groups()))
    if len(lines) != 31_102:
        raise RuntimeError(f"{len(lines)} verses found, 31102 expected; is this package bible-kjv 4.x?")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(lzma.compress(extract().encode(), preset=9))
    print(f"wrote {TARGET} ({TARGET.stat().st_size} bytes)")
