"""Benchmarks of ``kvstore bench``: each makes a :class:`kvstore.cli.bench.report.Report`.

Importing this package imports no command-line library, because its client processes import it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore.cli.bench.commands import app as app


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(f"module 'kvstore.cli.bench' has no attribute {name!r}")
    from kvstore.cli.bench.commands import app

    return app
