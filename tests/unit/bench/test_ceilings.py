"""A ceiling that moves other bytes than we do would flatter us or not: each way moves exactly the region."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore.cli.bench import ceilings
from kvstore.cli.bench.cases import all_cases, full_cases, wanted

SIZE, BATCH = 64 << 10, 4


def pattern(length: int) -> ceilings.Bytes:
    return np.random.default_rng(7).integers(0, 256, length, np.uint8)


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("way", ["numpy.copyto", "memmove", "memmove, 2 threads"])
def test_every_way_of_memcpy_moves_the_whole_region_both_ways(tmp_path: Path, way: str, batch: int) -> None:
    region = ceilings.shared_region(str(tmp_path / "region"), 2 * SIZE * batch)
    data = pattern(SIZE * batch)
    buffers = [data[nth * SIZE : (nth + 1) * SIZE].copy() for nth in range(batch)]
    assert ceilings.memcpy_passes(region, buffers, to_region=True)[way]() == region.nbytes
    assert (region == np.concatenate([data, data])).all()
    into = [ceilings.prefaulted(SIZE) for _ in range(batch)]
    assert ceilings.memcpy_passes(region, into, to_region=False)[way]() == region.nbytes
    assert (np.concatenate(into) == data).all()


@pytest.fixture
def lanes() -> Iterator[tuple[ceilings.SocketPeer, list[socket.socket]]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = ceilings.SocketPeer(listener, 2 * SIZE * BATCH)
        threading.Thread(target=peer.serve, daemon=True).start()
        connections = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        yield peer, connections
        for connection in connections:
            connection.close()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("way", ["1 socket", "2 sockets"])
def test_every_way_of_sockets_moves_the_whole_region_both_ways(
    lanes: tuple[ceilings.SocketPeer, list[socket.socket]], way: str
) -> None:
    peer, connections = lanes
    data = pattern(SIZE * BATCH)
    buffers = [data[nth * SIZE : (nth + 1) * SIZE].copy() for nth in range(BATCH)]
    length = peer.region.nbytes
    assert ceilings.socket_passes(connections, length, buffers, put=True)[way]() == length
    assert (peer.region == np.concatenate([data, data])).all()
    into = [ceilings.prefaulted(SIZE) for _ in range(BATCH)]
    assert ceilings.socket_passes(connections, length, into, put=False)[way]() == length
    assert (np.concatenate(into) == data).all()


def test_case_names_are_unique_and_say_what_is_measured() -> None:
    names = [case.name for case in all_cases(8)]
    names += [case.name for label in ("2MiB", "64KiB") for case in full_cases(label, 8)]
    assert len(set(names)) == len(names)
    assert {"shm.get.2MiB.x16", "tcp.put.64KiB.x1", "shm.put.2MiB.x16.c8", "shm.put.2MiB.x16.full"} <= set(names)
    assert [name for name in names if wanted(name, ("tcp.get.2MiB.x1*",))] == [
        "tcp.get.2MiB.x16",
        "tcp.get.2MiB.x1",
        "tcp.get.2MiB.x16.c8",
        "tcp.get.2MiB.x1.c8",
        "tcp.get.2MiB.x16.full",
        "tcp.get.2MiB.x16.full.c8",
    ]


def test_a_region_takes_no_memory_once_its_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "region"
    region = ceilings.shared_region(str(path), SIZE)
    os.unlink(path)
    region[:] = 3
    assert int(region.sum()) == 3 * SIZE
