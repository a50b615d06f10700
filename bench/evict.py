"""Hit rates of eviction policies on the trace beside this file: ``python -m bench.evict [--json]``.

As ``kvstore bench evict``, and with the textbook policies: ``--policies lru,turnscore,opt,lfuda,arc,s3fifo ...``
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.policies.textbook import CACHES, replay
from kvstore.cli.bench.evict import main

TRACE = Path(__file__).parent / "trace" / "conversation.jsonl"

if __name__ == "__main__":
    main(trace=TRACE, others={name: partial(replay, kind) for name, kind in CACHES.items()})
