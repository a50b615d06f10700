"""How transfers are cut, and the memory that they go through."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest

from kvstore.core.errors import DeadlineExceeded, Unsupported
from kvstore.transport.fabric.arena import UNIT, Arena, first_fit
from kvstore.transport.fabric.groups import grouped


@pytest.mark.parametrize("sizes", [list(one) for n in range(5) for one in itertools.product((1, 3, 7, 20), repeat=n)])
def test_groups_hold_every_item_once_in_order_and_stay_within_their_bound(sizes: list[int]) -> None:
    groups = grouped(sizes, 10)
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    for group in groups:
        assert len(group) == 1 or sum(sizes[index] for index in group) <= 10
    for left, right in itertools.pairwise(groups):  # none could have taken the next item too
        assert sum(sizes[index] for index in left) + sizes[right.start] > 10


@pytest.mark.parametrize("used", [list(one) for one in itertools.product((False, True), repeat=6)])
def test_first_fit_finds_the_first_free_run_if_there_is_one(used: list[bool]) -> None:
    for units in range(1, 7):
        fitting = [at for at in range(7 - units) if not any(used[at : at + units])]
        assert first_fit(used, units) == (fitting[0] if fitting else -1)


def soon() -> float:
    return time.monotonic() + 5


def test_slabs_do_not_overlap_and_come_back() -> None:
    arena = Arena(8 * UNIT)
    slabs = [arena.take(size, soon()) for size in (1, UNIT, 3 * UNIT, 2 * UNIT + 1)]
    for number, slab in enumerate(slabs):
        slab.array[:] = number
    assert all((slab.array == number).all() for number, slab in enumerate(slabs))
    assert all(slab.address == slab.array.ctypes.data for slab in slabs)
    with pytest.raises(DeadlineExceeded):
        arena.take(1, time.monotonic() + 0.01)
    slabs[2].give_back()
    assert arena.take(3 * UNIT, soon()).address == slabs[2].address


def test_a_caller_waits_for_memory_that_is_given_back() -> None:
    arena = Arena(2 * UNIT)
    held = arena.take(2 * UNIT, soon())
    timer = threading.Timer(0.05, held.give_back)
    timer.start()
    assert len(arena.take(UNIT, soon()).array) == UNIT
    timer.join()


def test_what_can_never_fit_is_told_so() -> None:
    with pytest.raises(Unsupported, match="transport='tcp'"):
        Arena(2 * UNIT).take(2 * UNIT + 1, soon())


def test_memory_is_zero_at_first() -> None:
    assert not np.any(Arena(2 * UNIT).take(UNIT, soon()).array)
