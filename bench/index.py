"""Memory and pauses of the block index at five million entries: ``python -m bench.index [--json]``."""

from __future__ import annotations

from kvstore.cli.bench.index import main

if __name__ == "__main__":
    main()
