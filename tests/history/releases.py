"""Another release of kvstore beside this one: a copy of the package whose protocol version is one lower, so that it
reads and speaks what this one did before its last change of the protocol."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.history.nodes import ROOT

_SETTING = re.compile(r"^(MIN_VERSION|VERSION) = (\d+)", re.MULTILINE)


def one_lower(folder: Path) -> Path:
    """A checkout in ``folder`` to run nodes and clients of."""
    for name in ("kvstore", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    frame = folder / "kvstore" / "transport" / "frame.py"
    text, count = _SETTING.subn(lambda found: f"{found[1]} = {int(found[2]) - 1}", frame.read_text())
    assert count == 2, "frame.py does not set VERSION and MIN_VERSION as it did"
    frame.write_text(text)
    return folder
