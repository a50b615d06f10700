"""Sessions that end after the store has been closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvstore.core.errors import Closed
from kvstore.node.sessions import Sessions


def test_a_session_that_ends_when_the_store_is_closed_ends_silently() -> None:
    class Store:
        def open_session(self, shared_memory: bool, name: str) -> Any:
            return SimpleNamespace(token=b"t", index=0)

        def close_session(self, session: Any) -> None:
            raise Closed("the store is closed")

    sessions: Any = Sessions(Store())  # type: ignore[arg-type]
    lane: Any = type("Lane", (), {"session": None})()
    sessions.open(lane, True, "client")
    sessions.leave(lane)
    assert not len(sessions)
