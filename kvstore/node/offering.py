"""What a node's settings mean for the fabric transports."""

from __future__ import annotations

from pathlib import Path

from kvstore.node.config import NodeConfig
from kvstore.node.fabric import Offer
from kvstore.transport.fabric.affinity import fabric_devices, near, read_tree


def offer_of(config: NodeConfig, sysfs: Path = Path("/sys")) -> Offer:
    """Which transports, over which devices."""
    host = read_tree(sysfs)
    address = config.data_address
    local = address is None or address.loopback
    devices = config.fabric_devices or fabric_devices(local, near(host))
    rdma = bool(host.rdma) and not local
    return Offer(
        ("tcp",) if config.transports == () else _with_tcp(config.transports), devices, rdma, config.peer_timeout
    )


def _with_tcp(transports: tuple[str, ...]) -> tuple[str, ...]:
    return transports if "tcp" in transports else (*transports, "tcp")
