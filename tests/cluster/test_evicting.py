"""What somebody wants gone is gone on all nodes, whichever of them is asked, and does not come back."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.cells import cell, peer
from tests.cluster.fetching import await_known, fresh_keys, get, opened, own_blocks, put
from tests.integration.nodes import wait_for

FEW = 12


def test_an_eviction_reaches_every_copy_and_is_not_undone(tmp_path: Path) -> None:
    with cell(tmp_path, capacity="64MiB") as (first, second, third):
        kept, gone, other = fresh_keys(FEW), fresh_keys(FEW), fresh_keys(FEW)
        for keys in (kept, gone, other):
            put(first, keys)
        for node in (second, third):
            with opened(node) as namespace:
                await_known(namespace, other)
                assert get(namespace, gone) == get(namespace, kept) == FEW  # copies
        wait_for(lambda: all(peer(first, one)["blocks"] == 2 * FEW for one in (second, third)), "copies to be known")
        with opened(second) as namespace:
            assert namespace.evict(gone[4:]) == FEW - 4
            assert [own_blocks(one, gone) for one in (first, second, third)] == [4, 4, 4]
            assert namespace.evict(other) == FEW  # the node asked has none of it
            assert own_blocks(first, other) == 0
        time.sleep(1.0)
        for node in (first, second, third):
            with opened(node) as namespace:
                assert get(namespace, gone) == 4
                assert get(namespace, kept) == FEW
                assert get(namespace, other) == 0
