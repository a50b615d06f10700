"""The event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from kvstore.cluster.loop import LoopThread


async def name_of_thread() -> str:
    return threading.current_thread().name


def test_work_runs_there_and_its_result_comes_back() -> None:
    loop = LoopThread("there")
    assert loop.submit(name_of_thread()).result(5) == "there"
    loop.stop()
    assert "there" not in {thread.name for thread in threading.enumerate()}


def test_a_stop_ends_tasks_in_order() -> None:
    loop = LoopThread("there")
    done: list[str] = []
    begun = threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            done.append("cleaned up")

    loop.submit(work())
    assert begun.wait(5)
    began = time.monotonic()
    loop.stop()
    assert done == ["cleaned up"]
    assert time.monotonic() - began < 5
    loop.stop()  # once more does no harm


def test_a_failure_in_the_background_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = LoopThread("there")

    async def fails() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        loop.background(fails()).result(5)
    called = threading.Event()
    loop.call(called.set)
    assert called.wait(5)
    loop.stop()
    assert "a bug" in caplog.text
