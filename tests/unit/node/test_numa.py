"""Where a node's memory comes from."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from kvstore.node.numa import memory_nodes
from kvstore.transport.fabric.affinity import Device, Host, Nic

HOST = Host(numa_nodes=(0, 1))


def nics(*nodes: int) -> list[Nic]:
    return [Nic(f"mlx5_{at}", (1,), 100.0, Device(f"0000:{at:02x}:00.0", (), node)) for at, node in enumerate(nodes)]


@pytest.mark.parametrize(
    ("setting", "devices", "found"),
    [
        (None, [], ()),
        (None, [1], (1,)),
        (None, [1, 1], (1,)),
        (None, [0, 1], ()),  # all of them: no reason to choose
        (None, [-1], ()),
        ((), [1], ()),
        ((0,), [1], (0,)),
        ((0, 1), [], (0, 1)),
    ],
)
def test_memory_is_taken_near_the_devices_unless_it_is_told_where(
    setting: tuple[int, ...] | None, devices: list[int], found: tuple[int, ...]
) -> None:
    assert memory_nodes(setting, HOST, nics(*devices)) == found


def test_a_device_without_hardware_says_nothing_of_numa() -> None:
    assert memory_nodes(None, HOST, [Nic("rxe0", (1,), 2.5, None)]) == ()


PROBE = """
import ctypes
from kvstore.node.numa import bind_memory
assert bind_memory((0,)), "refused"
mode = ctypes.c_int()
assert ctypes.CDLL(None).syscall({number}, ctypes.byref(mode), None, 0, None, 0) == 0
assert mode.value == 1, mode.value
assert not bind_memory((1000,))
assert not bind_memory(())
"""


@pytest.mark.skipif(ctypes.CDLL(None).syscall(239, None, None, 0, None, 0) != 0, reason="no NUMA in this kernel")
def test_the_kernel_is_told_and_a_node_that_is_not_there_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE.format(number=239)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
