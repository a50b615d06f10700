"""What a node's settings mean for the fabric transports, and for where its memory comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvstore.node.config import NodeConfig
from kvstore.node.fabric import Offer
from kvstore.node.numa import memory_nodes
from kvstore.transport.fabric.affinity import Host, Nic, fabric_devices, near, read_tree

_SYSFS = Path("/sys")


def offer_of(config: NodeConfig, sysfs: Path = _SYSFS) -> Offer:
    """Which transports, over which devices."""
    nics = _used(config, read_tree(sysfs))
    devices = config.fabric_devices or fabric_devices(_local(config), nics)
    transports = config.transports if "tcp" in config.transports else (*config.transports, "tcp")
    return Offer(transports, devices, bool(nics), config.peer_timeout)


def numa_nodes(config: NodeConfig, sysfs: Path = _SYSFS) -> tuple[int, ...]:
    """Where the node's memory is to come from."""
    host = read_tree(sysfs)
    return memory_nodes(config.memory_numa, host, _used(config, host))


def _local(config: NodeConfig) -> bool:
    """Whether only this host reaches the node."""
    return config.data_address is None or config.data_address.loopback


def _used(config: NodeConfig, host: Host) -> Sequence[Nic]:
    """The RDMA devices in use: those that were named, else all; none where nobody else reaches the node."""
    if _local(config):
        return ()
    named = {device.partition(":")[0] for device in (config.fabric_devices or "").split(",")} - {""}
    return [nic for nic in near(host) if not named or nic.name in named]
