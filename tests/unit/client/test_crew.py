"""Calls that use several threads: all tasks run, however busy the threads are, and none is left behind."""

from __future__ import annotations

import threading

from kvstore.client.crew import SIZE, Crew


def test_all_tasks_have_ended_when_run_returns() -> None:
    crew, done = Crew(), list[int]()
    for _ in range(50):
        done.clear()
        crew.run([lambda nth=nth: done.append(nth) for nth in range(20)])  # type: ignore[misc]
        assert sorted(done) == list(range(20))
    crew.run([])
    crew.close()


def test_tasks_run_at_the_same_time() -> None:
    crew, meet = Crew(), threading.Barrier(4, timeout=20)
    crew.run([lambda: meet.wait() and None] * 4)
    assert not meet.broken
    crew.close()


def test_a_call_goes_on_when_threads_are_busy() -> None:
    crew, free, busy = Crew(), threading.Event(), threading.Barrier(SIZE + 1, timeout=20)

    def hold() -> None:
        busy.wait()
        free.wait(20)

    holders = [threading.Thread(target=crew.run, args=([hold] * 2,)) for _ in range(SIZE // 2)]
    for holder in holders:
        holder.start()
    busy.wait()
    done: list[int] = []
    crew.run([lambda: done.append(1)] * 5)
    assert done == [1] * 5
    free.set()
    for holder in holders:
        holder.join(20)
    crew.close()


def test_after_the_end_the_caller_does_all_itself() -> None:
    crew, threads = Crew(), set[int]()
    crew.close()
    crew.run([lambda: threads.add(threading.get_ident())] * 3)
    assert threads == {threading.get_ident()}
