"""Random pins, unpins, puts, drops, moves and restarts: what is counted is what is kept, always."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvstore.core.errors import NoSpace
from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.tiers.index import HARD_PIN, READY, SOFT_PIN
from kvstore.tiers.memfile import purge
from kvstore.tiers.store import BlockStore
from tests.unit.tiers.stores import MIB, ONE, audit, keys_of, put, small

OTHER = NamespaceSpec("other", 4, parts=(PartSpec("0", 20_000),))


def audit_pins(store: BlockStore) -> set[bytes]:
    """Numbers agree with the index; hard-pinned blocks are whole chains. Keys of the hard-pinned blocks."""
    state, index = store._state, store._state.index
    pins, stat = index.pins[: index.rows_used], store.stat().pins
    with state.lock:
        hard = np.flatnonzero(pins == HARD_PIN).tolist()
        assert all(index.state_at[row] == READY for row in hard)
        assert all(index.parent_at[row] < 0 or index.pins_at[index.parent_at[row]] == HARD_PIN for row in hard)
        assert stat.hard_blocks == len(hard)
        assert stat.soft_blocks == int((pins == SOFT_PIN).sum())
        assert stat.hard_bytes == sum(state.namespace_of(row).cuts[0].length for row in hard) <= stat.max_bytes
        below = np.bincount([index.parent_at[row] + 1 for row in hard], minlength=index.rows_used + 1)[1:]
        assert all(state.pins._below[row] == below[row] for row in hard)
        return {index.key(row) for row in hard}


def step(store: BlockStore, rng: random.Random, kept: set[bytes]) -> set[bytes]:
    """One random operation; keys that may not be hard-pinned any more, because somebody named them."""
    spec = rng.choice([ONE, OTHER])
    root, depth = rng.randrange(8), rng.randrange(1, 12)
    keys = keys_of(spec, (root, *range(100, 100 + depth)))
    view, session = store.open_namespace(spec.canonical()), store.open_session(False)
    named = {key.tobytes() for key in keys}
    try:
        match rng.randrange(10):
            case 0 | 1:
                hard = rng.random() < 0.6
                store.pin(view.handle, keys, hard, ttl=rng.choice([0.0, 0.0, 1000.0]))
                return set() if hard else named
            case 2:
                store.unpin(view.handle, keys)
                return named
            case 3 if rng.random() < 0.3:
                store.evict(view.handle, keys[-1:])
                return kept
            case _:
                put(store, session, view, keys)
                for at in range(6):  # and others, that need room
                    put(store, session, view, keys_of(spec, (rng.randrange(1000, 9999), at)))
                return set()
    except NoSpace:
        return set()
    finally:
        store.close_session(session)


@pytest.mark.parametrize("policy", ["lru", "turnscore"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_counted_is_what_is_kept(seed: int, policy: str) -> None:
    rng = random.Random(seed)
    config = small(12 * MIB, policy=policy, max_pinned_bytes=2 * MIB)
    store = BlockStore(config)
    try:
        kept: set[bytes] = set()
        for _ in range(120):
            may_go = step(store, rng, kept)
            now = audit_pins(store)
            assert kept - may_go <= now
            kept = now
            if rng.random() < 0.03:
                store.close()
                store = BlockStore(config)
                assert audit_pins(store) == kept
        audit(store)
    finally:
        store.close()
        purge(config.memory_file)
