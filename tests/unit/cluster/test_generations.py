"""Rotations that are heard of in any order: all nodes end with one generation, and never go back."""

from __future__ import annotations

import random

from kvstore.cluster.generations import NEVER, after_hearing, after_order


def test_what_is_later_is_taken_and_what_is_earlier_is_not() -> None:
    assert after_hearing(NEVER, (1, 7)) == (1, 7)
    assert after_hearing((2, 5), (1, 7)) is None
    assert after_hearing((2, 5), (2, 5)) is None
    assert after_hearing((2, 5), NEVER) is None


def test_two_rotations_that_did_not_see_each_other_leave_neither() -> None:
    one, other = after_hearing((3, 5), (3, 9)), after_hearing((3, 9), (3, 5))
    assert one == other == (4, 12)


def test_an_order_voids_what_is_here_once() -> None:
    assert after_order(NEVER, (1, 7)) == (1, 7)
    assert after_order((1, 7), (1, 7)) is None
    assert after_order((5, 3), (1, 7)) == (6, 7)
    assert after_order((0, 0), (4, 7)) == (4, 7)


def test_any_rotations_and_any_order_of_hearing_end_in_one_generation() -> None:
    dice = random.Random(3)
    for _ in range(500):
        count = dice.randrange(2, 6)
        at = [NEVER] * count
        for _ in range(dice.randrange(1, 8)):  # rotations, partly heard of
            node = dice.randrange(count)
            at[node] = (at[node][0] + 1, dice.getrandbits(63) | 1)
            for other in range(count):
                if dice.random() < 0.4:
                    at[other] = _moved(at[other], after_order(at[other], at[node]))
        for _ in range(400):  # then everybody hears everybody, in any order
            one, other = dice.sample(range(count), 2)
            at[one] = _moved(at[one], after_hearing(at[one], at[other]))
        assert len(set(at)) == 1


def _moved(before: tuple[int, int], to: tuple[int, int] | None) -> tuple[int, int]:
    if to is None:
        return before
    assert to[0] > before[0]
    return to
