"""A store killed by SIGKILL at random moments, again and again: whatever comes back is right, and all of it agrees."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np

from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import StoreConfig
from tests.unit.tiers.stores import MIB, TWO, audit, keys_of, opened, read, small
from tests.unit.tiers.test_writing import repeated

ROUNDS = 12
_CHILD = textwrap.dedent(
    """
    import itertools, pathlib, sys
    import numpy as np
    from kvstore.tiers.store import BlockStore
    from kvstore.tiers.values import ChainSlice, StoreConfig
    from tests.unit.tiers.stores import TWO, MIB, keys_of, sums_of
    from tests.unit.tiers.test_writing import repeated

    store = BlockStore(StoreConfig(pathlib.Path(sys.argv[1]), 6 * MIB, max_sessions=8, segment_bytes=MIB))
    view, random = store.open_namespace(TWO.canonical()), np.random.default_rng(int(sys.argv[2]))
    session = store.open_session(True)
    print("ready", flush=True)
    while True:
        keys = keys_of(TWO, tuple(random.integers(0, 3, random.integers(1, 6)).tolist()))
        action = random.integers(0, 8)
        if action == 0:
            store.evict(view.handle, keys[-1:])
            continue
        if action == 1:
            store.drop_namespace(TWO.root)
            view = store.open_namespace(TWO.canonical())
            continue
        found = store.acquire(session, view.handle, keys)
        reserved = store.reserve(session, view.handle, ChainSlice(keys))
        wanted = [keys[at].tobytes() for at, outcome in enumerate(reserved.outcomes) if outcome == 1]
        sums = []
        for offset, (key, part) in zip(reserved.offsets.tolist(), itertools.product(wanted, (0, 1))):
            data = repeated(key, part)
            store.dram.writable(offset, len(data))[:] = data
            sums += sums_of(TWO, key, part, data)
        if reserved.id and action == 2:
            store.abort(session, reserved.id)
        elif reserved.id and store.commit(session, reserved.id, np.array(sums, np.uint64)).count(1):
            print("stored", flush=True)
        if found.lease:
            store.release(session, [found.lease])
    """
)


def run_and_kill(config: StoreConfig, seed: int, seconds: float) -> int:
    """Blocks of how many puts were stored before the child was killed."""
    command = [sys.executable, "-c", _CHILD, str(config.memory_file), str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    out, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    return out.count("stored")


def check(store: BlockStore) -> int:
    """Reads everything that is there; how many blocks that was."""
    view, session, read_blocks = store.open_namespace(TWO.canonical()), store.open_session(False), 0
    for number in range(3**5):
        keys = keys_of(TWO, tuple(int(digit) for digit in np.base_repr(number, 3).zfill(5)))
        found = store.acquire(session, view.handle, keys)
        want = [repeated(key.tobytes(), part) for key in keys[: found.blocks] for part in (0, 1)]
        assert read(store, view, found.offsets) == want
        read_blocks += found.blocks
        if found.lease:
            store.release(session, [found.lease])
    store.close_session(session)
    return read_blocks


def test_whatever_is_found_after_sigkill_at_a_random_moment_is_what_was_committed() -> None:
    config = small(6 * MIB)
    chance = random.Random(20)
    stored = found = 0
    with opened(config) as first:
        first.close()
        for seed in range(ROUNDS):
            stored += run_and_kill(config, seed, chance.uniform(0.0, 0.25))
            store = BlockStore(config)
            try:
                audit(store)
                found += check(store)
                counters = store.stat().counters
                assert counters.get("dropped_blocks_checksum", 0) == 0
                audit(store)
            finally:
                store.close()
    assert stored > 0
    assert found > 0
