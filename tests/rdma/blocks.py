"""Blocks put and got by nixl over soft-RoCE, inside the guest: correct bytes, and proof that RDMA carried them.

python -m tests.rdma.blocks        UCX_NET_DEVICES and UCX_TLS say which device and transports
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from kvstore import Client, NamespaceSpec
from tests.contract.running import NodeProcess

BLOCKS, BLOCK_BYTES = 8, 256 << 10
COUNTERS = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters")


def sent() -> int:
    """Packets that the device has sent."""
    return int((COUNTERS / "sent_pkts").read_text())


def main() -> int:
    node = NodeProcess(Path(tempfile.mkdtemp()), capacity="64MiB", transports="shm,nixl,tcp", control_address="off")
    node.patience = 400.0  # the guest's processors are emulated
    try:
        node.start()
        before = sent()
        move(node)
        packets = sent() - before
    finally:
        print(node.log.read_text()[-2000:])
        node.remove()
    least = 2 * BLOCKS * BLOCK_BYTES // 4096  # put and got, in packets of at most 4 KiB
    print(f"{packets} packets over rxe0, at least {least} are needed")
    return 0 if packets >= least else 1


def move(node: NodeProcess) -> None:
    data = np.random.default_rng(1).integers(0, 256, (BLOCKS, BLOCK_BYTES), dtype=np.uint8)
    with Client(f"kv://127.0.0.1:{node.port}", transport="nixl", timeout=240.0, on_failure="raise") as client:
        namespace = client.namespace(NamespaceSpec("rdma", 4, block_bytes=BLOCK_BYTES))
        keys = namespace.keys(np.arange(4 * BLOCKS, dtype=np.uint32))
        print(namespace.put(keys, data), flush=True)
        into = np.zeros_like(data)
        got = namespace.get(keys, into)
        assert got == BLOCKS, got
        assert np.array_equal(into, data)
        print(f"{got} blocks of {BLOCK_BYTES} bytes are right", flush=True)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # two libnl in one process crash when they are torn down, which says nothing of the blocks
