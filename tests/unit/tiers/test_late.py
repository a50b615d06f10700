"""A policy that learns late decides as one that learns at once."""

from __future__ import annotations

import random

import pytest

from kvstore.tiers.eviction.late import MOST_ROWS, Late
from tests.unit.tiers.test_eviction import KINDS, Cache


class LateCache(Cache):
    """As the store drives it: it catches up before the tree of blocks changes."""

    def __init__(self, kind: str, max_blocks: int = 64) -> None:
        super().__init__(kind, max_blocks)
        self.late = self.policy = Late(self.policy)

    def put(self, chain: list[int], request: int = 0, piece: int = 99, appended: int = 0) -> None:
        for end in range(len(self.path(chain)) + piece, len(chain) + piece, piece):
            self.late.catch_up()
            super().put(chain[:end], request, piece, appended)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_the_victims_are_the_same(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    caches = (Cache(kind), LateCache(kind))
    for _ in range(300):
        stem, length, request = draw.randrange(12), draw.randrange(1, 7), draw.randrange(4)
        chain = [1 + stem % 3, 10 + stem % 6, *(100 * (stem + 1) + at for at in range(length))]
        seconds, piece = draw.random() * 30, draw.randrange(1, 5)
        if draw.random() < 0.3:
            caches[1].late.catch_up()  # type: ignore[attr-defined]
        for cache in caches:
            while len(cache.index) + len(chain) > cache.index.max_blocks:
                assert cache.evict() is not None
        known, action = draw.randrange(1, len(chain) + 1), draw.choice(["ask", "put", "serve"])
        for cache in caches:
            if action == "ask":
                cache.ask(chain[:known], request, seconds)
            elif action == "put":
                cache.put(chain, request, piece)
            else:
                cache.serve(chain, request, seconds, piece)
        if draw.random() < 0.2:
            assert caches[0].evict() == caches[1].evict()
    given = [[cache.evict() for _ in range(len(cache.index))] for cache in caches]
    assert given[0] == given[1]
    assert None not in given[0]


def test_what_waits_is_bounded() -> None:
    cache = LateCache("lru", 2 * MOST_ROWS)
    chain = list(range(1, MOST_ROWS))
    cache.put(chain)
    assert cache.late.behind
    cache.ask(chain)
    assert not cache.late.behind


def test_a_look_up_that_found_less_than_it_asked_for_is_learnt_of_at_once() -> None:
    cache = LateCache("turnscore")
    cache.serve([1, 2, 3])
    assert cache.late.behind
    cache.ask([1, 2, 9])
    assert not cache.late.behind
