"""The trace beside this file through a real node with two tiers: ``python -m bench.replay [--json]``.

As ``kvstore bench replay``; all cases take some minutes each.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kvstore.cli.app import run

TRACE = Path(__file__).parent / "trace" / "conversation.jsonl"

if __name__ == "__main__":
    sys.exit(run(["bench", "replay", "--trace", str(TRACE), *sys.argv[1:]]))
