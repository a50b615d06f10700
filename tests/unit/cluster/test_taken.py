"""What nodes took lately is forgotten by halves, for all alike."""

from __future__ import annotations

from kvstore.cluster.taken import MEMORY, Taken


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_adds_up_and_fades() -> None:
    clock = Clock()
    taken = Taken(clock)
    taken.add(1, 1000)
    taken.add(1, 1000)
    taken.add(-1, 500)
    assert taken.by_node() == {1: 2000, -1: 500}
    clock.now = MEMORY
    assert taken.by_node() == {1: 1000, -1: 250}
    for _ in range(60):  # however often it is asked
        clock.now += MEMORY / 60
        found = taken.by_node()
    assert found == {1: 500, -1: 125}


def test_a_node_that_is_gone_leaves_nothing_to_the_next_of_its_number() -> None:
    taken = Taken(Clock())
    taken.add(3, 10)
    taken.drop(3)
    taken.drop(4)
    assert taken.by_node() == {}
