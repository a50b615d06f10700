"""A real node with an NVMe tier: more blocks than DRAM holds come back byte for byte, also after a SIGKILL, and what is
acknowledged as durable also when the memory is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore import Client, NamespaceSpec
from tests.integration.nodes import NodeProcess, node

MIB = 1 << 20
SPEC = NamespaceSpec(model="two-tiers", block_tokens=16, block_bytes=256 << 10)
CHAIN = 8
PATIENCE = 60.0


def chain(number: int) -> list[int]:
    """Tokens of a chain that shares nothing with another."""
    return [number * 1000 + at for at in range(CHAIN * SPEC.block_tokens)]


def content(number: int) -> list[np.ndarray]:
    return [np.random.default_rng(number * 100 + at).integers(0, 256, 256 << 10, np.uint8) for at in range(CHAIN)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[NodeProcess]:
    nvme = {"nvme_dir": str(tmp_path / "nvme"), "nvme_capacity": "256MiB", "nvme_segment_bytes": "4MiB"}
    with node(tmp_path, capacity="24MiB", room_wait="30s", nvme_flush="30s", **nvme) as process:
        yield process


def fill(process: NodeProcess, chains: range, transport: str, ack: str = "visible") -> None:
    with Client(process.target, transport=transport, timeout=PATIENCE) as client:
        namespace = client.namespace(SPEC)
        for number in chains:
            done = namespace.put(namespace.keys(chain(number)), content(number), ack=ack)  # type: ignore[arg-type]
            assert done.stored + done.present == CHAIN, (number, done)


def hits(process: NodeProcess, chains: range, transport: str) -> int:
    """Blocks that come back; each of them must be what was put."""
    found = 0
    with Client(process.target, transport=transport, timeout=PATIENCE) as client:
        namespace = client.namespace(SPEC)
        for number in chains:
            into = [np.zeros(256 << 10, np.uint8) for _ in range(CHAIN)]
            count = namespace.get(namespace.keys(chain(number)), into)
            for got, want in zip(into[:count], content(number), strict=False):
                assert np.array_equal(got, want), f"chain {number} came back with other bytes"
            found += count
    return found


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_three_times_the_dram_comes_back_also_after_a_sigkill(running: NodeProcess, transport: str) -> None:
    chains = range(36)  # 72 MiB
    fill(running, chains, transport)
    assert hits(running, chains, transport) == 36 * CHAIN
    stat = running.stat()
    assert [tier["tier"] for tier in stat["tiers"]] == ["dram", "nvme"]
    assert stat["tiers"][1]["state"] == "ok"
    metrics = running.metrics()
    assert metrics['kvstore_promotions_total{why="read"}'] > 0
    assert metrics['kvstore_moves_total{outcome="done",priority="demotion"}'] > 0
    running.kill()
    running.start()
    assert hits(running, chains, transport) == 36 * CHAIN
    assert running.stop() == 0


def test_what_was_durable_is_there_when_the_memory_is_lost(running: NodeProcess) -> None:
    fill(running, range(6), "shm", "durable")
    fill(running, range(6, 12), "tcp", "durable")
    running.kill()
    running.memory_file.unlink()
    running.start()
    assert hits(running, range(12), "shm") == 12 * CHAIN


def test_a_clean_stop_keeps_all_of_it_when_the_memory_is_lost(running: NodeProcess) -> None:
    fill(running, range(6), "shm")
    assert running.stop() == 0
    running.memory_file.unlink()
    running.start()
    assert hits(running, range(6), "tcp") == 6 * CHAIN


def test_stat_shows_both_tiers_to_people(running: NodeProcess) -> None:
    shown = running.run("stat").stdout
    assert "nvme" in shown
    assert "ok" in shown


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_chain_of_twice_the_dram_is_put_and_got_in_one_call(running: NodeProcess, transport: str) -> None:
    length = 192  # 48 MiB
    blocks = [block for number in range(length // CHAIN) for block in content(number)]
    with Client(running.target, transport=transport, timeout=PATIENCE) as client:  # type: ignore[arg-type]
        namespace = client.namespace(SPEC)
        keys = namespace.keys(list(range(length * SPEC.block_tokens)))
        assert namespace.put(keys, blocks).stored == length
        for _ in range(2):
            into = [np.zeros(256 << 10, np.uint8) for _ in range(length)]
            assert namespace.get(keys, into) == length
            assert all(np.array_equal(got, want) for got, want in zip(into, blocks, strict=True))
            with namespace.borrow(keys) as views:  # by shared memory as much as may be leased
                assert len(views) in (48, length)
                assert all(bytes(view) == want.tobytes() for view, want in zip(views, blocks, strict=False))
                del views
    assert "dropped_blocks_evicted" not in running.stat()["counters"]
