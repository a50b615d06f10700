"""Where the time of a get by nixl goes, layer by layer, beside memcpy of the same bytes.

    python -m bench.nixl_layers [--runs N]

CPU time of the calling thread, so that what else runs on the machine hardly shows; one thread does all. 16 blocks of
2 MiB at a time, from a node on this host.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from kvstore import Client, NamespaceSpec
from kvstore.cli.bench.node import OwnNode
from kvstore.transport import copying, nixl
from kvstore.transport.fabric.agent import Read
from kvstore.transport.fabric.shared import Fabric

BLOCKS, BLOCK_BYTES, CHAINS = 16, 2 << 20, 6
LAYERS = {
    "read: the kernel's copy by process_vm_readv": (Read, "__init__"),
    "transfer: the read, and NIXL and Python around it": (Fabric, "pull"),
    "hash": (nixl, "_passes"),
    "whole get": (nixl.NixlTransport, "_get"),
}


def watch(spent: dict[str, float]) -> None:
    """Adds the thread's CPU time in each layer to ``spent``."""
    for name, (owner, attribute) in LAYERS.items():
        setattr(owner, attribute, timed(name, getattr(owner, attribute), spent))


def timed(name: str, run: Callable[..., Any], spent: dict[str, float]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        began = time.thread_time()
        try:
            return run(*arguments, **named)
        finally:
            spent[name] += time.thread_time() - began

    return wrapped


def measure(target: str, runs: int) -> dict[str, list[float]]:
    """Seconds of CPU that 16 blocks take, by layer, of each run."""
    found: dict[str, list[float]] = defaultdict(list)
    region = np.random.default_rng(1).integers(0, 256, (CHAINS, BLOCKS, BLOCK_BYTES), dtype=np.uint8)
    into = np.ones((BLOCKS, BLOCK_BYTES), dtype=np.uint8)
    spent: dict[str, float] = defaultdict(float)
    with Client(target, transport="nixl", timeout=60.0, on_failure="raise") as client:
        namespace = client.namespace(NamespaceSpec("nixl-layers", 4, block_bytes=BLOCK_BYTES))
        chains = [namespace.keys(np.arange(4 * BLOCKS, dtype=np.uint32) + 1000 * nth) for nth in range(CHAINS)]
        for keys, blocks in zip(chains, region, strict=True):
            namespace.put(keys, blocks)
            namespace.get(keys, into)
        watch(spent)
        for nth in range(runs * CHAINS):
            spent.clear()
            if namespace.get(chains[nth % CHAINS], into) != BLOCKS:
                raise RuntimeError("a block that was stored was not given")
            for name in LAYERS:
                found[name].append(spent[name])
            began = time.thread_time()
            for block, source in zip(into, region[nth % CHAINS], strict=True):
                np.copyto(block, source)
            found["memcpy alone"].append(time.thread_time() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    setattr(nixl, "spread", lambda count, _, work, deadline: copying._alone(count, work, deadline))  # noqa: B010
    with OwnNode(512 << 20, {"transports": "shm,nixl,tcp"}) as (_, target):
        found = measure(target, options.runs)
    alone = statistics.median(found["memcpy alone"])
    print(f"CPU time of {BLOCKS} blocks of 2 MiB, medians of {len(found['memcpy alone'])}")
    for name in (*LAYERS, "memcpy alone"):
        value = statistics.median(found[name])
        rate = BLOCKS * BLOCK_BYTES / value / 1e9
        print(f"{name:52} {value * 1e3:7.2f} ms  {rate:6.2f} GB/s  memcpy/this {alone / value:.2f}")


if __name__ == "__main__":
    main()
