"""Which RDMA devices are near to which memory: chosen from what sysfs says, by pure functions over a recorded tree."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_GPU_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers
_NVIDIA = "0x10de"


@dataclass(frozen=True, slots=True)
class Device:
    """A PCI device. ``path``: the bridges above it and itself, from the root on; two devices are the nearer the longer
    a beginning their paths share. ``numa``: -1 where there is none."""

    address: str
    path: tuple[str, ...]
    numa: int


@dataclass(frozen=True, slots=True)
class Nic:
    """An RDMA device. ``ports``: those that are active. ``gigabits``: of its fastest port. ``device``: None for one
    without hardware (soft-RoCE)."""

    name: str
    ports: tuple[int, ...]
    gigabits: float
    device: Device | None

    @property
    def ucx(self) -> tuple[str, ...]:
        """Its ports in UCX's words."""
        return tuple(f"{self.name}:{port}" for port in self.ports)


@dataclass(frozen=True, slots=True)
class Host:
    """RDMA devices with an active port, NVIDIA GPUs, and NUMA nodes that have memory."""

    rdma: tuple[Nic, ...] = ()
    gpus: tuple[Device, ...] = ()
    numa_nodes: tuple[int, ...] = ()


def near(host: Host, gpu: str | None = None, numa: int | None = None) -> tuple[Nic, ...]:
    """The RDMA devices to use for the memory of a GPU (its PCI address) or a NUMA node; without either, all.

    Of a GPU those that share most of its PCI path, if more than the root; else, as for a NUMA node, those of
    its node; else all. The faster ones first.
    """
    found = sorted(host.rdma, key=lambda nic: (-nic.gigabits, nic.name))
    of_gpu = next((one for one in host.gpus if one.address == gpu), None) if gpu else None
    if of_gpu is not None:
        shared = [shared_path(nic.device, of_gpu) for nic in found]
        if found and max(shared) > 1:
            return tuple(nic for nic, length in zip(found, shared, strict=True) if length == max(shared))
        numa = of_gpu.numa if numa is None else numa
    if numa is not None and numa >= 0:
        here = tuple(nic for nic in found if nic.device is not None and nic.device.numa == numa)
        return here or tuple(found)
    return tuple(found)


def shared_path(one: Device | None, other: Device) -> int:
    """How many steps from the root two devices share."""
    if one is None:
        return 0
    length = 0
    for left, right in zip(one.path, other.path, strict=False):
        if left != right:
            break
        length += 1
    return length


def fabric_devices(local: bool, nics: Sequence[Nic]) -> str:
    """Network devices in UCX's words: loopback alone for a node that only this host reaches, RDMA where there is some,
    else empty (all)."""
    return "lo" if local else ",".join(port for nic in nics for port in nic.ucx)


# --- reading ---------------------------------------------------------------------------------------------


def read_tree(sysfs: Path) -> Host:
    """What a host has, from its /sys (or a copy of one). What cannot be read is not there."""
    infiniband = sysfs / "class" / "infiniband"
    nics = [nic for path in _listed(infiniband) if (nic := _nic(path)).ports]
    pci = _listed(sysfs / "bus" / "pci" / "devices")
    gpus = [
        _device(path) for path in pci if _text(path / "vendor") == _NVIDIA and _text(path / "class")[:6] in _GPU_CLASSES
    ]
    nodes = _text(sysfs / "devices" / "system" / "node" / "has_memory")
    return Host(tuple(nics), tuple(gpus), numbers(nodes))


def _is_gpu(path: Path) -> bool:
    return _text(path / "vendor") == _NVIDIA and _text(path / "class")[:6] in _GPU_CLASSES


def numbers(text: str) -> tuple[int, ...]:
    """``0-2,5`` as 0, 1, 2, 5."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _nic(path: Path) -> Nic:
    ports = [port for port in _listed(path / "ports") if "ACTIVE" in _text(port / "state")]
    rates = [float(match[0]) for port in ports if (match := re.match(r"[\d.]+", _text(port / "rate")))]
    device = _device(path / "device") if (path / "device").exists() else None
    return Nic(path.name, tuple(sorted(int(port.name) for port in ports)), max(rates, default=0.0), device)


def _device(path: Path) -> Device:
    real = Path(os.path.realpath(path))
    parts = tuple(part for part in real.parts if part.startswith("pci") or re.fullmatch(r"[\da-f]{4}:.*", part))
    numa = _text(real / "numa_node")
    return Device(real.name, parts, int(numa) if re.fullmatch(r"-?\d+", numa) else -1)


def _listed(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
