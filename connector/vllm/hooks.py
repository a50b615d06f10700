"""Around each hook: an exception in one would end the engine."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def hook(otherwise: Callable[[], Any] = lambda: None) -> Callable[[F], F]:
    """Catches everything, counts CPU seconds. ``otherwise`` gives the answer after an exception."""

    def wrap(method: F) -> F:
        name = method.__name__

        @functools.wraps(method)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # an exception in a hook would end the engine
                self._hook_failed(name, error)
                return otherwise()
            finally:
                self._stats.add("hook_cpu_seconds", time.thread_time() - began)

        return guarded  # type: ignore[return-value]

    return wrap
