"""Real nodes find each other, see each other live, die, pause and come back, and know what the others hold."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore import Client, NamespaceSpec
from tests.cluster.cells import await_state, cell, peer, states, status
from tests.cluster.etcd.servers import etcd, free_ports
from tests.integration.nodes import COMMAND, PATIENCE, NodeProcess, cli, node, wait_for

SPEC = NamespaceSpec(model="cell", block_tokens=4, block_bytes=64 << 10)
BLOCKS = 16
MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """A cell that is whole again after each test."""
    with cell(tmp_path_factory.mktemp("cell"), gone_after="1s") as nodes:
        yield nodes


def put(process: NodeProcess, chains: range) -> None:
    with Client(process.target) as client:
        namespace = client.namespace(SPEC)
        for number in chains:
            keys = namespace.keys(range(number * 1000, number * 1000 + 4 * BLOCKS))
            namespace.put(keys, [np.full(SPEC.block_bytes, number, np.uint8)] * BLOCKS)


def await_blocks(asked: NodeProcess, other: NodeProcess) -> None:
    """A node knows as many blocks of another as that one has."""
    wait_for(lambda: peer(asked, other)["blocks"] == other.stat()["blocks"], "the blocks to be known")


def test_each_node_knows_who_the_others_are_and_what_they_hold(three: list[NodeProcess]) -> None:
    first, second, third = three
    put(first, range(2))
    for asked in (second, third):
        await_blocks(asked, first)
    found = peer(second, first)
    assert found["blocks"] == 2 * BLOCKS
    assert (found["data_address"], found["control_address"]) == (first.data, first.control)
    assert found["boot_id"] == first.stat()["boot_id"]
    assert found["lag_seconds"] < 5
    capacity = found["capacity_bytes"]
    wait_for(lambda: 0 < peer(second, first)["free_bytes"] < capacity, "the free bytes, told each second")
    told = status(second)
    assert told["node"]["node_id"] == second.node_id
    assert told["problem"] == ""
    assert told["index_blocks"] == 2 * BLOCKS
    metrics = second.metrics()
    assert metrics['kvstore_cell_nodes{state="live"}'] == 2
    assert metrics["kvstore_cell_index_blocks"] == 2 * BLOCKS
    assert metrics["kvstore_cell_discovery_problem"] == 0
    assert metrics[f'kvstore_cell_event_lag_seconds{{node="{first.node_id}"}}'] < 5


def test_blocks_that_were_evicted_are_known_to_be_gone(three: list[NodeProcess]) -> None:
    first, second, _ = three
    put(first, range(100))  # three times what fits
    await_blocks(second, first)
    assert first.stat()["counters"]["dropped_blocks_evicted"] > 0
    assert BLOCKS < peer(second, first)["blocks"] < 100 * BLOCKS


def test_a_killed_node_is_suspect_then_gone_and_known_again_when_it_is_back(three: list[NodeProcess]) -> None:
    first, second, third = three
    put(first, range(3))
    await_blocks(second, first)
    boot = first.stat()["boot_id"]
    first.kill()
    wait_for(lambda: peer(second, first)["state"] != "live", "the loss to be noticed")
    await_state(second, first, "gone")
    assert peer(second, first)["blocks"] == 0
    wait_for(lambda: first.control in "".join(status(second)["unanswered"]), "the address to be told")
    assert second.metrics()["kvstore_cell_unanswered"] == 1
    assert states(second, [third]) == {"live"}
    first.start()
    for asked in (second, third):
        await_state(asked, first, "live")
        await_blocks(asked, first)
    assert peer(second, first)["blocks"] >= 3 * BLOCKS
    assert peer(second, first)["boot_id"] != boot
    assert peer(second, first)["data_address"] == first.data  # another port than before
    assert status(second)["unanswered"] == []


def test_a_node_that_lost_its_disk_is_another_one_at_the_same_address(three: list[NodeProcess]) -> None:
    first, second, third = three
    former = first.node_id
    first.kill()
    for path in MEMORY.glob(f"*{former}*"):
        path.unlink()
    shutil.rmtree(first.folder / "data")
    first.start()
    assert first.node_id != former
    for asked in (second, third):
        await_state(asked, first, "live")
        await_state(first, asked, "live")
        assert former not in [one["node_id"] for one in status(asked)["peers"] if one["state"] == "live"]
    put(first, range(1))
    await_blocks(second, first)


def test_a_paused_node_is_suspect_and_goes_on(three: list[NodeProcess]) -> None:
    first, second, third = three
    assert first.process is not None
    first.process.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: peer(second, first)["state"] in ("suspect", "gone"), "the silence to be noticed")
        assert states(second, [third]) == {"live"}
    finally:
        first.process.send_signal(signal.SIGCONT)
    for asked, other in ((second, first), (first, second), (first, third)):
        await_state(asked, other, "live")
        await_blocks(asked, other)


def test_a_node_that_stops_is_gone_at_once(three: list[NodeProcess]) -> None:
    first, second, third = three
    begun = time.monotonic()
    assert third.stop() == 0
    assert time.monotonic() - begun < 10
    for asked in (first, second):
        await_state(asked, third, "gone")
    third.start()
    for asked in (first, second):
        await_state(asked, third, "live")


def test_the_status_is_a_table_for_people(three: list[NodeProcess]) -> None:
    shown = three[0].run("cluster", "status").stdout
    assert "asked" in shown
    assert shown.count("live") == 2
    assert all(one.node_id[:8] in shown and one.control in shown for one in three)
    told = json.loads(three[0].run("cluster", "status", "--json").stdout)
    assert {one["node_id"]: one["state"] for one in told["peers"]} == dict.fromkeys(
        (one.node_id for one in three[1:]), "live"
    )


def test_a_node_that_stands_alone_says_how_it_would_not(tmp_path: Path) -> None:
    with node(tmp_path) as process:
        done = process.run("cluster", "status")
        assert done.returncode == 1
        assert "discovery = off" in done.stderr
        assert not [name for name in process.metrics() if name.startswith("kvstore_cell")]


def test_nodes_find_each_other_in_etcd_and_do_without_it_later(tmp_path: Path) -> None:
    with (
        etcd() as servers,
        node(tmp_path / "a", discovery=f"etcd://{servers.addresses[0]}/one", suspect_after="2s") as first,
        node(tmp_path / "b", discovery=f"etcd://{servers.addresses[0]}/one", suspect_after="2s") as second,
        node(tmp_path / "c", discovery=f"etcd://{servers.addresses[0]}/two") as other,
    ):
        await_state(first, second, "live")
        await_state(second, first, "live")
        put(first, range(1))
        await_blocks(second, first)
        assert status(other)["peers"] == []
        servers.kill()
        wait_for(lambda: status(first)["problem"], "the loss of etcd to be told")
        assert first.metrics()["kvstore_cell_discovery_problem"] == 1
        put(first, range(1, 2))
        await_blocks(second, first)
        assert states(first, [second]) == states(second, [first]) == {"live"}
        servers.start()
        wait_for(lambda: not status(first)["problem"], "etcd to be of use again")
        assert second.stop() == 0
        await_state(first, second, "gone")


def test_dev_cluster_runs_a_cell_until_ctrl_c(tmp_path: Path) -> None:
    base = min(free_ports(1)[0], 65_000)
    home = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*COMMAND, "dev-cluster", "--base-port", str(base), "--capacity", "32MiB", "--replicas", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=home)
    assert process.stdout is not None
    try:
        lines = iter(process.stdout)
        told = [next(lines) for _ in range(6)]
        pids = [int(match[1]) for line in told if (match := re.search(r"pid (\d+)", line))]
        target = next(line for line in told if line.startswith("clients: ")).split()[1]
        assert target.count(",") == len(pids) - 1 == 2
        wait_for(lambda: cli("cluster", "status", "--target", target).stdout.count("live") == 2, "the cell")
        with Client(target.split(",")[0], timeout=PATIENCE) as client:
            namespace = client.namespace(NamespaceSpec("dev", 4, block_bytes=4096))
            assert namespace.put(namespace.keys(range(8)), bytes(8192), ack="replicated").complete
        ids = [path.read_text().strip() for path in tmp_path.rglob("node-id")]
        assert all(list(MEMORY.glob(f"*{one}*")) for one in ids)
        os.kill(pids[1], signal.SIGKILL)
        assert next(lines) == "node 1 ended (SIGKILL)\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stdout.close()
    assert list(tmp_path.iterdir()) == []
    assert not any(list(MEMORY.glob(f"*{one}*")) for one in ids)


def test_dev_cluster_says_why_a_node_did_not_start(three: list[NodeProcess]) -> None:
    port = three[0].data.rpartition(":")[2]
    done = cli("dev-cluster", "--base-port", port, "--nodes", "1", "--capacity", "32MiB")
    assert done.returncode == 1
    assert "in use" in done.stderr
    assert cli("dev-cluster", "--etcd", "what").returncode == 2
    assert cli("dev-cluster", "--nodes", "2", "--replicas", "3").returncode == 2
    assert cli("dev-cluster", "--base-port", "65535").returncode == 2
