"""`kvstore` as it was one protocol version ago: it knows no ROUTE, and says so in HELLO.

python -m tests.cluster.old_node node --config FILE
"""

from __future__ import annotations

import sys

from kvstore.transport import frame

frame.VERSION = 1
frame._OPS.pop(frame.Op.ROUTE)

from kvstore.cli import main  # noqa: E402  what is imported from here on sees that version
from kvstore.node import handlers, network  # noqa: E402
from kvstore.node.cell import CellReads  # noqa: E402

handlers.Handlers.route_by = lambda self, routes: None  # type: ignore[method-assign]
CellReads.bring = lambda self, *chain: None  # type: ignore[method-assign]
_get = network.NetworkOps.get


def _old_get(self, session, request, keys, layout):  # type: ignore[no-untyped-def]
    for field in ("here", "generation", "rotation"):
        request.ClearField(field)
    return _get(self, session, request, keys, layout)


network.NetworkOps.get = _old_get  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
