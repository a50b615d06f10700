"""Nodes tell each other of nodes: a fixed list need not name all of them."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.cells import SUSPECT_AFTER, cell, peer, states
from tests.cluster.etcd.servers import free_ports
from tests.cluster.fetching import await_known, fresh_keys, get, opened, put
from tests.integration.nodes import node, wait_for


def test_a_node_that_names_one_other_comes_to_know_all_and_is_known_to_all(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with cell(tmp_path / "old", 2) as (first, second), node(
        tmp_path / "new", control_address=address, discovery=f"static://{first.control}", suspect_after=SUSPECT_AFTER
    ) as third:  # fmt: skip
        everyone = [first, second, third]
        wait_for(lambda: all(states(one, everyone) == {"live"} for one in everyone), "all to know each other")
        keys = fresh_keys(4)
        put(third, keys)
        with opened(second) as namespace:
            await_known(namespace, keys)
            assert get(namespace, keys) == 4
        third.kill()
        wait_for(lambda: peer(second, third)["state"] == "suspect", "the third to be missed")
        third.start()
        wait_for(lambda: all(states(one, everyone) == {"live"} for one in everyone), "all to know each other again")
