"""Which RDMA devices are chosen, on recorded trees of /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvstore.transport.fabric.affinity import Host, fabric_devices, near, numbers, read_tree

TREES = Path(__file__).parent / "sysfs"
# In four_gpus each GPU shares a switch with one NIC: gpu at bus 12 with mlx5_0, 22 with 1, 92 with 2, a2 with 3.
GPUS = {"0000:12:00.0": "mlx5_0", "0000:22:00.0": "mlx5_1", "0000:92:00.0": "mlx5_2", "0000:a2:00.0": "mlx5_3"}


@pytest.fixture
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """A tree as it was recorded, read."""
    for line in (TREES / f"{request.param}.txt").read_text().splitlines():
        name, _, target = line.partition(" -> ")
        path, _, text = name.partition("\t")
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if target:
            os.symlink(target, tmp_path / path)
        else:
            (tmp_path / path).write_text(text + "\n")
    return read_tree(tmp_path)


def names(host: Host, **place: object) -> list[str]:
    return [nic.name for nic in near(host, **place)]  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["four_gpus"], indirect=True)
def test_a_gpu_gets_the_device_under_its_own_switch(host: Host) -> None:
    assert {gpu.address for gpu in host.gpus} == set(GPUS)
    assert {address: names(host, gpu=address) for address in GPUS} == {gpu: [nic] for gpu, nic in GPUS.items()}


@pytest.mark.parametrize("host", ["four_gpus"], indirect=True)
def test_memory_gets_the_devices_of_its_numa_node_the_faster_first(host: Host) -> None:
    assert host.numa_nodes == (0, 1)
    assert names(host, numa=0) == ["mlx5_0", "mlx5_1", "mlx5_4"]
    assert names(host, numa=1) == ["mlx5_2", "mlx5_3"]
    assert names(host) == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4"]
    assert names(host, numa=7) == names(host)


@pytest.mark.parametrize("host", ["four_gpus"], indirect=True)
def test_a_device_whose_port_is_down_is_not_there(host: Host) -> None:
    assert "mlx5_5" not in names(host)


@pytest.mark.parametrize("host", ["four_gpus"], indirect=True)
def test_an_unknown_gpu_gets_what_memory_gets(host: Host) -> None:
    assert names(host, gpu="0000:ff:00.0") == names(host)
    assert names(host, gpu="0000:ff:00.0", numa=1) == ["mlx5_2", "mlx5_3"]


@pytest.mark.parametrize("host", ["soft_roce"], indirect=True)
def test_a_device_without_hardware_is_used_where_there_is_no_other(host: Host) -> None:
    assert names(host, numa=0) == ["rxe0"]
    assert host.rdma[0].device is None
    assert fabric_devices(False, near(host)) == "rxe0:1"


@pytest.mark.parametrize("host", ["plain"], indirect=True)
def test_without_rdma_all_devices_are_used_and_on_loopback_nothing_else(host: Host) -> None:
    assert host == Host((), (), (0,))
    assert fabric_devices(False, near(host)) == ""
    assert fabric_devices(True, near(host)) == "lo"


def test_a_tree_that_is_not_there_is_an_empty_host(tmp_path: Path) -> None:
    assert read_tree(tmp_path / "none") == Host()


@pytest.mark.parametrize(("text", "found"), [("", ()), ("0", (0,)), ("0-2,5\n", (0, 1, 2, 5))])
def test_lists_of_numbers_are_read(text: str, found: tuple[int, ...]) -> None:
    assert numbers(text) == found
