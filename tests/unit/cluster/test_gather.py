"""Gathered runs leave the index as single ones do."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstore.cluster.gather import Gather
from kvstore.cluster.prefix_index import PrefixIndex
from kvstore.cluster.sink import DRAM, NVME

ROOTS = (b"r" * 16, b"s" * 16)
KEYS = np.random.default_rng(7).integers(0, 2**64, (12, 2), np.uint64)

roots = st.sampled_from(ROOTS)
runs = st.tuples(st.integers(0, 11), st.integers(1, 3)).map(lambda at: slice(at[0], at[0] + at[1]))
steps = st.one_of(
    st.tuples(st.just("stored"), roots, runs, st.sampled_from((DRAM, NVME, DRAM | NVME))),
    st.tuples(st.just("removed"), roots, runs),
    st.tuples(st.just("drop"), roots),
    st.tuples(st.sampled_from(("begin", "end"))),
    st.tuples(st.just("flush")),
)


def tell(sink: Gather | PrefixIndex, step: tuple) -> None:  # type: ignore[type-arg]
    match step:
        case ("stored", root, run, tiers):
            sink.stored(0, root, 0, KEYS[run], tiers)
        case ("removed", root, run):
            sink.removed(0, root, KEYS[run])
        case ("drop", root):
            sink.drop_namespace(0, root)
        case ("begin",):
            sink.begin_snapshot(0)
        case ("end",):
            sink.end_snapshot(0)
        case ("flush",) if isinstance(sink, Gather):
            sink.flush()


@given(st.lists(steps, max_size=40))
def test_gathered_runs_say_what_single_ones_say(told: list[tuple]) -> None:  # type: ignore[type-arg]
    plain, gathered = PrefixIndex(100), PrefixIndex(100)
    for index in (plain, gathered):
        index.add_node(b"n" * 16)
    gather = Gather(gathered)
    for step in told:
        tell(plain, step)
        tell(gather, step)
    gather.flush()
    for root in ROOTS:
        for key in KEYS:
            assert gathered.holders_of(root, key.tobytes()) == plain.holders_of(root, key.tobytes())


def test_runs_alike_become_one_call() -> None:
    calls = []

    class Counting(PrefixIndex):
        def stored(self, node, root, first_block, keys, tiers) -> None:  # type: ignore[no-untyped-def]
            calls.append(len(keys))
            super().stored(node, root, first_block, keys, tiers)

    gather = Gather(Counting(100))
    for at in range(10):
        gather.stored(0, ROOTS[0], at, KEYS[at : at + 1], DRAM)
    gather.stored(0, ROOTS[0], 10, KEYS[10:12], NVME)
    assert calls == [10]
    gather.flush()
    gather.flush()
    assert calls == [10, 2]
