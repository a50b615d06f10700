"""How nodes come to have one generation of a namespace, in whatever order they hear of rotations. Pure.

A generation is a count of rotations and a number of the last one. Blocks of two generations never meet: nodes share
those of equal generations alone, and who hears of a later one voids what it has. Two rotations that did not see each
other lead to the same count with different numbers; then neither may be kept, and both sides go on to the same third.
"""

from __future__ import annotations

from kvstore.transport.batch import Generation

NEVER: Generation = (0, 0)


def after_hearing(own: Generation, heard: Generation) -> Generation | None:
    """To which generation a node that is at ``own`` goes; None: it stays."""
    if heard == own or heard[0] < own[0]:
        return None
    if heard[0] > own[0]:
        return heard
    return own[0] + 1, own[1] ^ heard[1]


def after_order(own: Generation, ordered: Generation) -> Generation | None:
    """The same when a node is told to rotate: what it has now is void, unless it has done it already."""
    if own == ordered:
        return None
    return max(own[0] + 1, ordered[0]), ordered[1]
