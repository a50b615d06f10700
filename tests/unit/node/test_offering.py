"""What a node's settings mean for the fabrics, on a host with RDMA devices and on one without."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kvstore.node.config import load
from kvstore.node.offering import numa_nodes, offer_of

TREES = Path(__file__).parent.parent / "transport" / "sysfs"
FAR = {"data_address": "192.0.2.1:7000", "allow_insecure_network": True}


@pytest.fixture
def rdma(tmp_path: Path) -> Path:
    """The tree of a host with five active devices on two NUMA nodes."""
    for line in (TREES / "four_gpus.txt").read_text().splitlines():
        name, _, target = line.partition(" -> ")
        path, _, text = name.partition("\t")
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if target:
            os.symlink(target, tmp_path / path)
        else:
            (tmp_path / path).write_text(text)
    return tmp_path


def settings(**flags: Any) -> Any:
    return load(environ={}, flags=flags)


def test_a_node_on_loopback_uses_loopback_alone_and_has_no_rdma(rdma: Path) -> None:
    offer = offer_of(settings(transports="nixl"), rdma)
    assert (offer.transports, offer.devices, offer.rdma) == (("nixl", "tcp"), "lo", False)
    assert numa_nodes(settings(), rdma) == ()


def test_a_node_that_others_reach_uses_all_rdma_devices(rdma: Path) -> None:
    offer = offer_of(settings(**FAR, transports="shm,nixl,tcp"), rdma)
    assert offer.transports == ("shm", "nixl", "tcp")
    assert offer.devices == "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1"
    assert offer.rdma
    assert numa_nodes(settings(**FAR), rdma) == ()  # they are on all NUMA nodes


def test_named_devices_are_used_and_memory_comes_from_where_they_are(rdma: Path) -> None:
    named = settings(**FAR, fabric_devices="mlx5_2:1,mlx5_3:1")
    assert offer_of(named, rdma).devices == "mlx5_2:1,mlx5_3:1"
    assert numa_nodes(named, rdma) == (1,)
    assert numa_nodes(settings(**FAR, fabric_devices="mlx5_2:1", memory_numa="0,1"), rdma) == (0, 1)
    assert numa_nodes(settings(**FAR, fabric_devices="mlx5_2:1", memory_numa="off"), rdma) == ()


def test_without_rdma_all_devices_are_used_and_it_is_not_said_to_be_there(tmp_path: Path) -> None:
    offer = offer_of(settings(**FAR), tmp_path)
    assert (offer.transports, offer.devices, offer.rdma) == (("shm", "tcp"), "", False)
