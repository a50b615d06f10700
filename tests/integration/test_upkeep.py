"""A node over its life: pins, rotated and unused namespaces, other block sizes, decay in the memory file."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
import kvstore.aio
from kvstore import NamespaceSpec
from kvstore.errors import NoSpace
from tests.integration.nodes import PATIENCE, NodeProcess, node, wait_for

MIB = 1 << 20
SPEC = NamespaceSpec("kept", 4, block_bytes=MIB)
BLOCKS = 6


@pytest.fixture
def running(tmp_path: Path) -> Iterator[NodeProcess]:
    with node(tmp_path, capacity="40MiB", segment_bytes="2MiB", max_pinned_bytes="8MiB") as process:
        yield process


def block(at: int) -> bytes:
    return random.Random(at).randbytes(MIB)


def chain(namespace: kvstore.Namespace, first: int = 0) -> kvstore.Keys:
    return namespace.keys([first + at // 4 for at in range(4 * BLOCKS)])


def fill(namespace: kvstore.Namespace, first: int = 0) -> None:
    result = namespace.put(chain(namespace, first), [block(first + at) for at in range(BLOCKS)], timeout=PATIENCE)
    assert result.stored == BLOCKS


def storm(namespace: kvstore.Namespace, chains: int = 14) -> None:
    for at in range(chains):
        fill(namespace, 1000 * (at + 1))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_hard_pinned_blocks_stay_while_twice_the_memory_goes_by(running: NodeProcess, transport: str) -> None:
    target = running.target if transport == "shm" else f"kv://{running.data}"
    with kvstore.Client(target, transport=transport, timeout=PATIENCE) as client:  # type: ignore[arg-type]
        namespace = client.namespace(SPEC)
        fill(namespace)
        keys = chain(namespace)
        assert namespace.pin(keys, hard=True) == BLOCKS
        storm(namespace)
        into = [bytearray(MIB) for _ in range(BLOCKS)]
        assert namespace.get(keys, into) == BLOCKS
        assert into == [block(at) for at in range(BLOCKS)]
        with pytest.raises(NoSpace, match="max_pinned_bytes"):
            namespace.pin(chain(namespace, 14_000), hard=True)
        assert namespace.unpin(keys) == BLOCKS
        assert namespace.pin(keys, ttl=0.5) == BLOCKS
        wait_for(lambda: running.stat()["pins"]["soft_blocks"] == 0, "the end of the pins")


def test_pins_of_the_command_line_survive_a_kill(running: NodeProcess) -> None:
    with kvstore.Client(running.target, timeout=PATIENCE) as client:
        namespace = client.namespace(SPEC)
        fill(namespace)
        names = ",".join(key.hex() for key in chain(namespace))
    assert json.loads(running.run("pin", "--keys", names, "--hard", "--json").stdout) == {"pinned": 6, "asked": 6}
    running.kill()
    running.start()
    stat = running.stat()
    assert (stat["pins"]["hard_blocks"], stat["pins"]["hard_bytes"]) == (BLOCKS, BLOCKS * MIB)
    assert stat["namespaces"][0]["pinned_bytes"] == BLOCKS * MIB
    assert running.metrics()["kvstore_pinned_bytes"] == BLOCKS * MIB
    assert json.loads(running.run("unpin", "--keys", names, "--json").stdout) == {"unpinned": 6}
    assert "0 of 6" not in running.run("pin", "--keys", names).stdout
    assert "pinned" in running.run("stat").stdout


def test_a_rotated_namespace_is_empty_and_goes_on(running: NodeProcess) -> None:
    with kvstore.Client(running.target, timeout=PATIENCE) as client:
        namespace = client.namespace(SPEC)
        fill(namespace)
        with namespace.borrow(chain(namespace)) as views:
            assert namespace.rotate() == 1
            assert namespace.match(chain(namespace)) == 0
            assert bytes(views[2]) == block(2)  # what is leased stays whole
        fill(namespace)
        assert namespace.match(chain(namespace)) == BLOCKS
        done = json.loads(running.run("namespace", "rotate", "kept", "--json").stdout)
        assert (done["blocks"], done["generation"]) == (BLOCKS, 2)
        assert namespace.match(chain(namespace)) == 0
        fill(namespace)
    running.kill()
    running.start()
    listed = json.loads(running.run("namespace", "list", "--json").stdout)["namespaces"]
    assert [(one["model"], one["generation"], one["blocks"]) for one in listed] == [("kept", 2, BLOCKS)]
    assert listed[0]["tiers"] == {"dram": BLOCKS * MIB}
    assert "kept" in running.run("namespace", "list").stdout
    assert json.loads(running.run("namespace", "drop", "kept", "--json").stdout)["blocks"] == BLOCKS
    assert running.stat()["namespaces"] == []


def test_a_put_that_a_rotation_overtakes_is_lost(running: NodeProcess) -> None:
    with kvstore.Client(running.target, timeout=PATIENCE) as client:
        namespace = client.namespace(SPEC)
        with namespace.writer(chain(namespace)) as writer:
            for offset in range(0, MIB, MIB // 2):
                writer.write((offset, MIB // 2), [block(at)[offset : offset + MIB // 2] for at in range(BLOCKS)])
            namespace.rotate()
        assert writer.result.stored == 0
        assert namespace.match(chain(namespace)) == 0


def test_pin_and_rotate_can_be_awaited(running: NodeProcess) -> None:
    async def main() -> None:
        async with kvstore.aio.Client(running.target, timeout=PATIENCE) as client:
            namespace = await client.namespace(SPEC)
            fill(namespace.sync)
            keys = chain(namespace.sync)
            assert await namespace.pin(keys, hard=True) == BLOCKS
            assert await namespace.unpin(keys) == BLOCKS
            assert await namespace.rotate() == 1
            assert await namespace.match(keys) == 0

    asyncio.run(main())


def test_namespaces_that_nobody_uses_give_way_and_then_go(tmp_path: Path) -> None:
    with (
        node(tmp_path, capacity="40MiB", segment_bytes="2MiB", namespace_idle="1s", namespace_ttl="5s") as process,
        kvstore.Client(process.target, timeout=PATIENCE) as client,
    ):
        old, new = client.namespace(SPEC), client.namespace(NamespaceSpec("new", 4, block_bytes=MIB))
        fill(old)
        fill(new)
        wait_for(lambda: old_idle(process) > 1.2, "the namespace to be unused")
        at = 0
        while (blocks := blocks_of(process)).get("kept", 0) == BLOCKS and at < 40:
            at += 1
            new.put(new.keys([1000 + at] * 4), [block(at)], timeout=PATIENCE)
        assert blocks["kept"] < BLOCKS
        assert new.match(chain(new)) == BLOCKS  # older blocks, but of a namespace in use

        def gone() -> bool:
            new.match(chain(new))  # in use
            return "kept" not in blocks_of(process)

        wait_for(gone, "the end of the namespace")
        assert process.stat()["counters"]["namespaces_expired"] == 1


def old_idle(process: NodeProcess) -> float:
    return next(float(one["idle_seconds"]) for one in process.stat()["namespaces"] if one["model"] == "kept")


def blocks_of(process: NodeProcess) -> dict[str, int]:
    return {one["model"]: one["blocks"] for one in process.stat()["namespaces"]}


# --- other block sizes ----------------------------------------------------------------------------------------

WRITER = """
import random, sys
import kvstore
target, size, number, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
client = kvstore.Client(target, timeout=60)
namespace = client.namespace(kvstore.NamespaceSpec(f"size {size}", 4, block_bytes=size))
content, done, at = random.Random(number).randbytes(size), 0, number << 20
while done < wanted:
    keys = namespace.keys([at + n // 4 for n in range(32)])
    result = namespace.put(keys, [content] * 8)
    assert not result.failed, result
    done, at = done + 8 * size, at + 8
"""


def write(process: NodeProcess, size: int, total: int, processes: int = 3) -> None:
    """``total`` bytes of blocks of ``size``, from several clients at once."""
    arguments = [[process.target, str(size), str(at), str(total // processes)] for at in range(processes)]
    running = [subprocess.Popen([sys.executable, "-c", WRITER, *one]) for one in arguments]
    assert [one.wait(PATIENCE) for one in running] == [0] * processes


def test_after_a_change_of_block_size_the_pool_is_usable_within_twice_its_bytes(tmp_path: Path) -> None:
    pool = 64 * MIB
    with node(tmp_path, capacity="70MiB", segment_bytes="4MiB") as process:
        write(process, 2 * MIB, pool + pool // 2)
        large = next(one for one in process.stat()["namespaces"] if one["model"] == f"size {2 * MIB}")
        assert large["bytes"] >= 0.8 * pool
        write(process, 64 << 10, 2 * pool)
        stat = process.stat()
        small = next(one for one in stat["namespaces"] if one["model"] == f"size {64 << 10}")
        # eviction keeps 5 to 10 % of the slots free, ahead of demand
        assert small["bytes"] >= 0.85 * pool
        assert small["bytes"] >= 0.9 * 0.9 * stat["tiers"][0]["capacity_bytes"]
        left = next((one["bytes"] for one in stat["namespaces"] if one["model"] == f"size {2 * MIB}"), 0)
        assert left <= 0.1 * pool
        assert stat["counters"]["reclaimed_segments"] > 0


# --- decay ----------------------------------------------------------------------------------------------------


def flip(process: NodeProcess, wanted: int, seed: int = 1) -> int:
    """Flips a bit in so many blocks of the memory file, wherever their content is found."""
    import mmap

    rng, hit = random.Random(seed), 0
    with open(process.memory_file, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for at in range(wanted):
            place = memory.find(block(at)[:64])
            assert place > 0
            byte = place + rng.randrange(MIB)
            memory[byte] ^= 1 << rng.randrange(8)
            hit += 1
    return hit


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_flipped_bits_are_found_and_counted_and_never_served(running: NodeProcess, transport: str) -> None:
    target = running.target if transport == "shm" else f"kv://{running.data}"
    with kvstore.Client(target, transport=transport, timeout=PATIENCE) as client:  # type: ignore[arg-type]
        namespace = client.namespace(SPEC)
        fill(namespace)
        flip(running, 4)
        keys, found = chain(namespace), BLOCKS
        for _ in range(BLOCKS):
            into = [bytearray(MIB) for _ in range(BLOCKS)]
            found = namespace.get(keys, into)
            assert into[:found] == [block(at) for at in range(found)]
        assert found == 0
        assert client.counters()["get_misses.checksum"] >= 1


def test_flipped_bits_at_rest_are_found_by_the_scrubber(tmp_path: Path) -> None:
    with (
        node(tmp_path, capacity="40MiB", segment_bytes="2MiB", scrub_rate="1GiB", scrub_interval="200ms") as process,
        kvstore.Client(process.target, timeout=PATIENCE) as client,
    ):
        for at in range(BLOCKS):
            namespace = client.namespace(NamespaceSpec("kept", 4, block_bytes=MIB, tenant=str(at)))
            namespace.put(namespace.keys([at] * 4), [block(at)])
        flip(process, 4)
        wait_for(lambda: process.stat()["counters"].get("scrub_failed_blocks", 0) == 4, "the scrubber")
        stat = process.stat()
        assert stat["blocks"] == BLOCKS - 4
        assert stat["counters"]["dropped_blocks_checksum"] == 4
        assert stat["counters"]["scrubbed_bytes"] >= BLOCKS * MIB


def test_bits_flipped_while_the_node_is_down_are_not_served(running: NodeProcess) -> None:
    with kvstore.Client(running.target, timeout=PATIENCE) as client:
        fill(client.namespace(SPEC))
    running.stop()
    flip(running, 3)
    running.start()
    with kvstore.Client(running.target, timeout=PATIENCE) as client:
        namespace = client.namespace(SPEC)
        into = [bytearray(MIB) for _ in range(BLOCKS)]
        assert namespace.get(chain(namespace), into) == 0
    assert running.stat()["counters"]["dropped_blocks_checksum"] > 0
