"""An event loop on a thread of its own, for code that is asyncio inside and not outside."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_log = logging.getLogger(__name__)
T = TypeVar("T")


class LoopThread:
    """Starts at once. :meth:`stop` cancels what still runs."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine there, for who waits for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def background(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine there whose failure nobody would see: it is logged."""
        future = self.submit(work)
        future.add_done_callback(_log_failure)
        return future

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The same, called on the thread itself."""
        task = self._loop.create_task(work)
        task.add_done_callback(_log_failure)
        return task

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function there, soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def stop(self, patience: float = 5.0) -> None:
        """Ends all tasks and the thread. Not for the thread itself."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(patience)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_all())
        finally:
            self._loop.close()


def _log_failure(future: Future[Any] | asyncio.Future[Any]) -> None:
    if not future.cancelled() and future.exception() is not None:
        _log.error("a task in the background failed", exc_info=future.exception())


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
