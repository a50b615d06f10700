"""Borrowed views: read-only, checked, pinned while they are looked at."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from kvstore.client.arguments import fitting
from kvstore.core.errors import InvalidArgument
from kvstore.core.keys import Keys
from kvstore.transport.base import Borrowed, Transport
from kvstore.transport.batch import GetCall, GetResult
from kvstore.transport.plan import Plan

if TYPE_CHECKING:
    from kvstore.client.namespace import Namespace


class Borrow:
    """What ``ns.borrow`` returns. ``blocks``: length of the prefix, counted from block 0, once it is entered."""

    def __init__(
        self, namespace: Namespace, chain: Keys, first: int, plan: Plan, request_id: int, timeout: float | None
    ) -> None:
        self._namespace = namespace
        self._chain = chain
        self._first = first
        self._plan = plan
        self._request_id = fitting("request_id", request_id)
        self._timeout = timeout
        self._borrowed: Borrowed | None = None
        self.blocks = 0

    def __enter__(self) -> list[memoryview]:
        if self._borrowed is not None:
            raise InvalidArgument("this borrow is in use already; call ns.borrow again")
        deadline = self._namespace.client.deadline(self._timeout)

        def action(transport: Transport, handle: int) -> GetResult:
            call = GetCall(handle, self._chain.raw, self._first, self._plan, self._request_id)
            self._borrowed = transport.borrow(call, deadline)
            return self._borrowed.result

        result = self._namespace._looked_up("borrow", len(self._chain), self._first, deadline, action)
        self._namespace._drop_damaged(self._chain, result)
        self.blocks = result.blocks
        return list(self._borrowed.views) if self._borrowed is not None else []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            borrowed.give_back()
