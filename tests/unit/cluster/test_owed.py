"""The queue of chains that are owed copies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvstore.cluster.owed import LINGER, PATIENCE, TRIES, OwedQueue


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_a_chain_that_grows_is_one_entry_and_waits_no_longer_than_it_may() -> None:
    queue, now = OwedQueue(10), 0.0
    for end in range(1, 100):
        assert queue.add(1, key(end), key(end - 1), 1, 100, now)
        if (taken := queue.take(now)) is not None:
            break
        now += LINGER / 2
    assert taken is not None
    assert (taken.key, taken.new, taken.size) == (key(end), end, 100 * end)
    assert PATIENCE <= now - taken.since < PATIENCE + LINGER
    assert len(queue) == 0


def test_chains_of_different_namespaces_and_branches_stay_apart() -> None:
    queue = OwedQueue(10)
    queue.add(1, key(5), key(4), 1, 1, 0.0)
    queue.add(2, key(5), key(4), 1, 1, 0.0)
    queue.add(1, key(6), key(4), 1, 1, 0.0)  # another branch of block 4
    assert len(queue) == 3
    queue.add(1, key(6), key(4), 2, 1, 0.1)  # the same once more, as each rank puts its part
    assert (len(queue), queue.blocks) == (3, 5)


def test_past_the_bound_chains_are_refused_and_counted_but_those_that_wait_may_grow() -> None:
    queue = OwedQueue(2)
    assert queue.add(1, key(1), b"", 1, 1, 0.0)
    assert queue.add(1, key(11), b"", 1, 1, 0.0)
    assert not queue.add(1, key(21), b"", 1, 1, 0.0)
    assert queue.add(1, key(2), key(1), 1, 1, 0.0)
    assert (len(queue), queue.dropped) == (2, 1)


def test_an_attempt_that_failed_is_made_again_later_and_later_and_then_given_up() -> None:
    queue, now, waits = OwedQueue(2), 0.0, []
    queue.add(1, key(1), b"", 1, 1, now)
    while True:
        wait = queue.wait(now)
        assert wait is not None
        waits.append(wait)
        now += wait
        one = queue.take(now)
        assert one is not None
        assert queue.take(now) is None
        if not queue.again(one, now):
            break
    assert len(waits) == TRIES
    assert waits[1:] == sorted(waits[1:])
    assert waits[-1] == 16 * waits[1]
    assert queue.wait(now) is None


def test_what_grew_while_it_was_tried_is_not_tried_as_it_was() -> None:
    queue = OwedQueue(2)
    queue.add(1, key(1), b"", 1, 1, 0.0)
    one = queue.take(1.0)
    assert one is not None
    queue.add(1, key(1), b"", 1, 1, 1.0)
    assert not queue.again(one, 1.0)
    assert len(queue) == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0, 1)), max_size=60))
def test_nothing_is_forgotten_and_nothing_comes_twice(steps: list[tuple[int, int, float]]) -> None:
    queue, now, added, taken = OwedQueue(4), 0.0, 0, 0
    for at, before, wait in steps:
        now += wait
        refused = queue.dropped
        if queue.add(1, key(at), key(before), 1, 10, now):
            added += 1
        else:
            assert queue.dropped == refused + 1
        if (one := queue.take(now)) is not None:
            taken += one.new
    while (one := queue.take(now + 100)) is not None:
        taken += one.new
    assert taken == added
