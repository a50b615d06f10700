"""Bits that flip in the segment files of a running node: found by readers or by the scrubber, counted, never served."""

from __future__ import annotations

import mmap
import random
from pathlib import Path

import numpy as np
import pytest

import kvstore
from kvstore import NamespaceSpec
from tests.integration.nodes import PATIENCE, NodeProcess, node, wait_for

BYTES = 256 << 10
SPEC = NamespaceSpec("decaying", 4, block_bytes=BYTES)
CHAINS, BLOCKS = 10, 6


def settings(folder: Path, scrub: str) -> dict[str, object]:
    return {
        "nvme_dir": str(folder / "nvme"), "nvme_capacity": "128MiB", "nvme_segment_bytes": "4MiB",
        "nvme_scrub": scrub, "capacity": "40MiB",
    }  # fmt: skip


def tokens(number: int) -> list[int]:
    return [1000 * number + at for at in range(4 * BLOCKS)]


def content(number: int, at: int) -> np.ndarray:
    return np.random.default_rng(100 * number + at).integers(0, 256, BYTES, np.uint8)


def fill(process: NodeProcess) -> None:
    """Chains that are on NVMe only afterwards."""
    with kvstore.Client(process.target, timeout=PATIENCE) as client:
        namespace = client.namespace(SPEC)
        for number in range(CHAINS):
            blocks = [content(number, at) for at in range(BLOCKS)]
            assert namespace.put(namespace.keys(tokens(number)), blocks, ack="durable").stored == BLOCKS
    process.kill()
    process.memory_file.unlink()
    process.start()


def flip(process: NodeProcess, blocks: list[tuple[int, int]], seed: int) -> None:
    """One bit in each of these blocks, wherever its content lies in the segment files."""
    rng, left = random.Random(seed), {place: content(*place).tobytes()[:64] for place in blocks}
    for path in sorted((process.folder / "nvme").glob("segment-*")):
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as segment:
            for place, head in list(left.items()):
                if (at := segment.find(head)) >= 0:
                    segment[at + rng.randrange(BYTES)] ^= 1 << rng.randrange(8)
                    del left[place]
            segment.flush()
    assert not left, f"blocks {sorted(left)} are in no segment file"


def got(client: kvstore.Client, number: int) -> int:
    """Blocks of a chain that come back, which must be what was put."""
    namespace, into = client.namespace(SPEC), [np.zeros(BYTES, np.uint8) for _ in range(BLOCKS)]
    found = namespace.get(namespace.keys(tokens(number)), into)
    assert all(np.array_equal(into[at], content(number, at)) for at in range(found)), "a wrong byte was served"
    return found


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_bits_flipped_under_a_running_node_are_found_when_they_are_read(tmp_path: Path, transport: str) -> None:
    with node(tmp_path, **settings(tmp_path, "0")) as process:
        fill(process)
        damaged = {number: number % BLOCKS for number in range(0, CHAINS, 2)}
        flip(process, list(damaged.items()), 1)
        with kvstore.Client(process.target, transport=transport, timeout=PATIENCE) as client:  # type: ignore[arg-type]
            for number in range(CHAINS):
                assert got(client, number) == damaged.get(number, BLOCKS)
            for number in range(CHAINS):  # what hung on them is gone, the rest is in DRAM now
                assert got(client, number) == damaged.get(number, BLOCKS)
        metrics = process.metrics()
        assert metrics['kvstore_nvme_load_failures_total{reason="checksum"}'] == len(damaged)
        assert metrics['kvstore_evictions_total{cause="checksum"}'] >= len(damaged)
        assert process.stat()["tiers"][1]["state"] == "ok"


def test_bits_flipped_under_a_running_node_are_found_at_rest_by_the_scrubber(tmp_path: Path) -> None:
    with node(tmp_path, **settings(tmp_path, "1MiB")) as process:  # slow: it begins when the node starts
        fill(process)
        damaged = dict.fromkeys(range(CHAINS - 3, CHAINS), BLOCKS - 1)
        flip(process, list(damaged.items()), 2)
        wait_for(lambda: process.stat()["counters"].get("scrubbed_bad_blocks", 0) == len(damaged), "the scrubber")
        with kvstore.Client(process.target, timeout=PATIENCE) as client:
            for number in range(CHAINS):
                assert got(client, number) == damaged.get(number, BLOCKS)
        assert process.metrics()['kvstore_nvme_load_failures_total{reason="checksum"}'] == 0


def test_a_copy_on_nvme_that_decays_costs_nothing_while_dram_has_the_block(tmp_path: Path) -> None:
    with node(tmp_path, **settings(tmp_path, "0")) as process:
        fill(process)
        with kvstore.Client(process.target, timeout=PATIENCE) as client:
            assert [got(client, number) for number in range(3)] == [BLOCKS] * 3
            flip(process, [(number, 0) for number in range(3)], 3)
            assert [got(client, number) for number in range(3)] == [BLOCKS] * 3
