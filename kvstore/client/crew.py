"""Threads that let one call use several nodes at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

SIZE = 8


class Crew:
    """Shared by all calls of a client. The calling thread does its part, so a call goes on also when all are busy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Runs all tasks, none of which raises; all have ended when it returns."""
        left = deque(tasks)

        def work() -> None:
            while True:
                try:
                    task = left.popleft()
                except IndexError:
                    return
                task()

        helpers = [self._submit(work) for _ in tasks[1:SIZE]]
        try:
            work()
        finally:  # nobody writes to the caller's memory any more, however it ends
            left.clear()
            for helper in helpers:
                if helper is not None and not helper.cancel():
                    helper.result()

    def _submit(self, work: Callable[[], None]) -> Future[None] | None:
        with self._lock:
            if self._closed:
                return None
            if self._threads is None:
                self._threads = ThreadPoolExecutor(SIZE, "kvstore-client")
            return self._threads.submit(work)

    def close(self) -> None:
        """Calls in progress go on in their own threads."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
