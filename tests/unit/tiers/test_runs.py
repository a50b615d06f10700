"""Blocks that follow each other are told as one run."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.core.keys import KeyArray
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.runs import Seen, joined, runs
from tests.unit.tiers.stores import keys_of

SMALL = NamespaceSpec("small", 4, block_bytes=4096)


def chain(length: int, branch: int = 0) -> KeyArray:
    return keys_of(SMALL, tuple(range(branch * 1000, branch * 1000 + length)))


def seen_of(chains: list[tuple[int, KeyArray, int]], order: np.ndarray) -> Seen:
    """Chains (namespace, keys from block 0, tiers) in any order of their blocks."""
    keys = np.concatenate([one for _, one, _ in chains])
    zero = np.zeros((1, 2), np.uint64)
    parents = np.concatenate([np.concatenate((zero, one[:-1])) for _, one, _ in chains])
    lengths = [len(one) for _, one, _ in chains]
    blocks = np.concatenate([np.arange(count, dtype=np.uint32) for count in lengths])
    namespaces = np.repeat(np.array([number for number, _, _ in chains], np.uint16), lengths)
    tiers = np.repeat(np.array([one for _, _, one in chains], np.uint8), lengths)
    moved = np.zeros(len(keys), np.bool_)
    roots = {number: bytes([number]) * 16 for number, _, _ in chains}
    return Seen(roots, *(column[order] for column in (namespaces, blocks, keys, parents, tiers, moved)))


@pytest.mark.parametrize("seed", range(5))
def test_blocks_of_several_chains_in_any_order_are_one_run_each(seed: int) -> None:
    chains = [(1, chain(70, 1), 1), (1, chain(50, 2), 3), (2, chain(40, 3), 1)]
    found = list(runs(seen_of(chains, np.random.default_rng(seed).permutation(160))))
    assert sorted((one.root[0], one.first_block, one.parent, one.tiers, one.keys) for one in found) == sorted(
        (number, 0, b"", tiers, keys.tobytes()) for number, keys, tiers in chains
    )


def test_a_run_begins_at_a_branch_at_a_gap_and_where_the_tiers_change() -> None:
    trunk = keys_of(SMALL, (1, 2, 3, 4, 5, 6))
    twig = keys_of(SMALL, (1, 2, 3, 9))
    seen = seen_of([(1, trunk, 1)], np.array([0, 1, 2, 3, 5]))  # block 4 is missing
    seen.tiers[1:] = 3
    found = list(runs(seen))
    assert [(one.first_block, len(one), one.tiers) for one in found] == [(0, 1, 1), (1, 3, 3), (5, 1, 3)]
    assert [one.parent for one in found] == [b"", trunk[0].tobytes(), trunk[4].tobytes()]
    both = seen_of([(1, trunk[:4], 1), (1, twig, 1)], np.array([0, 1, 2, 3, 7]))
    assert [(one.first_block, len(one)) for one in runs(both)] == [(0, 4), (3, 1)]


def test_looks_at_parts_of_chains_join_to_whole_runs() -> None:
    """Each look had the lock for itself."""
    one, other = chain(30, 1), chain(30, 2)
    whole = seen_of([(1, one, 1), (2, other, 1)], np.arange(60))
    pieces = [seen_of([(1, one, 1), (2, other, 1)], np.arange(at, 60, 4)) for at in range(4)]
    assert sorted(run.keys for run in runs(joined(pieces))) == sorted(run.keys for run in runs(whole))
    assert sum(len(list(runs(piece))) for piece in pieces) == 60
