"""Whether the settings of a node make sense, each and together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvstore.core.errors import ConfigError
from kvstore.node.kinds import Kind
from kvstore.node.units import Address, Discovery, show_size
from kvstore.tiers.layout import MIN_SEGMENT

if TYPE_CHECKING:
    from kvstore.node.config import NodeConfig

_ANY = {"0.0.0.0", "::"}  # hosts that take a port on all others too
# Bounds of settings that are read as any number of their kind: least, most (None: no bound)
_BOUNDS: dict[str, tuple[float, float | None]] = {
    "max_blocks": (64, 1 << 31),
    "max_frame_bytes": (1 << 20, 1 << 40),
    "max_sessions": (1, 65_535),
    "max_connections": (1, 65_535),
    "heartbeat": (0.1, 86_400),
    "peer_timeout": (0.1, 86_400),
    "shutdown_grace": (0, 3600),
    "room_wait": (0, 3600),
    "scrub_interval": (0.1, 30 * 86_400),
    "nvme_io_threads": (1, 256),
    "control_threads": (1, 1024),
    "control_message_bytes": (1 << 20, (1 << 31) - 1),
    "http_connections": (1, 1024),
    "cell_index_entries": (1, 1 << 31),
    "suspect_after": (2, 3600),
    "gone_after": (1, 30 * 86_400),
    "replicas": (1, 8),
    "repair_rate": (1 << 10, 1 << 40),
}


def _check_bounds(config: NodeConfig, kinds: Mapping[str, Kind]) -> None:
    for key, (least, most) in _BOUNDS.items():
        value = getattr(config, key)
        if value is None or (value >= least and (most is None or value <= most)):
            continue
        show = kinds[key].show
        bound = f"at least {show(least)}" if value < least else f"at most {show(most)}"
        raise ConfigError(f"{key} must be {bound}, not {show(value)}", key=key)


def _check_segments(config: NodeConfig) -> None:
    size = config.segment_bytes
    if size is None:
        return
    if size < MIN_SEGMENT or size & (size - 1):
        raise ConfigError(
            f"segment_bytes must be a power of two from {show_size(MIN_SEGMENT)} up, not {show_size(size)}",
            key="segment_bytes",
        )
    if config.capacity is not None and size >= config.capacity:
        raise ConfigError(
            f"segment_bytes ({show_size(size)}) must be below capacity ({show_size(config.capacity)}): tables and at "
            "least one segment have to fit",
            key="segment_bytes",
        )


def _check_ports(config: NodeConfig) -> None:
    seen: dict[int, tuple[str, Address]] = {}
    for key in ("data_address", "control_address", "http_address"):
        address = getattr(config, key)
        if address is None or not address.port:
            continue
        before = seen.setdefault(address.port, (key, address))
        if before[0] != key and (before[1].host == address.host or {before[1].host, address.host} & _ANY):
            raise ConfigError(f"{before[0]} and {key} have the same port {address.port}; give each its own", key=key)


def _check_network(config: NodeConfig, key: str, address: Address | None) -> None:
    if address is None or address.loopback or config.allow_insecure_network:
        return
    raise ConfigError(
        f"{key} = {address} is reachable from other machines without transport security; "
        "listen on 127.0.0.1, or set allow_insecure_network = true if all who reach it may read and write all blocks",
        key=key,
    )


def _check_cell(config: NodeConfig) -> None:
    found = config.discovery
    if found is None:
        if config.replicas > 1:
            raise ConfigError(
                f"replicas = {config.replicas} needs discovery: a node that stands alone has nobody to copy blocks to",
                key="replicas",
            )
        return
    for key in ("data_address", "control_address"):
        if getattr(config, key) is None:
            raise ConfigError(f"discovery = {found} needs {key}: other nodes reach this one there", key=key)
    if (config.etcd_cert is None) != (config.etcd_key is None):
        raise ConfigError("etcd_cert and etcd_key go together: set both, or neither", key="etcd_cert")
    if (config.etcd_user is None) != (config.etcd_password_file is None):
        raise ConfigError("etcd_user and etcd_password_file go together: set both, or neither", key="etcd_user")
    if config.fetch_wait >= config.peer_timeout:
        raise ConfigError(
            f"fetch_wait ({config.fetch_wait:g} s) must be below peer_timeout ({config.peer_timeout:g} s): "
            "a connection whose request takes longer is closed",
            key="fetch_wait",
        )
    if not config.allow_insecure_network:
        _check_cell_network(config, found)


def _check_cell_network(config: NodeConfig, found: Discovery) -> None:
    tls = found.scheme == "etcds" or config.etcd_ca is not None or config.etcd_cert is not None
    if found.scheme in ("etcd", "etcds") and tls:
        return
    if config.etcd_user is not None and found.scheme == "etcd":
        raise ConfigError(
            f"discovery = {found} would send etcd_user's password without TLS; use etcds:// or etcd_ca, "
            "or set allow_insecure_network = true",
            key="discovery",
        )
    if beyond := [address for address in found.addresses if not address.loopback]:
        raise ConfigError(
            f"discovery = {found} goes to {beyond[0]} without transport security; "
            "set allow_insecure_network = true if all who are on that network may read and write all blocks",
            key="discovery",
        )


def check(config: NodeConfig, kinds: Mapping[str, Kind]) -> None:
    """Raises ConfigError, one line, naming the setting. ``kinds``: of each setting, to show values."""
    _check_bounds(config, kinds)
    _check_segments(config)
    _check_ports(config)
    _check_cell(config)
    if config.low_watermark >= config.high_watermark:
        raise ConfigError(
            f"low_watermark ({config.low_watermark:g}) must be below high_watermark ({config.high_watermark:g})",
            key="low_watermark",
        )
    if config.capacity is not None and config.capacity < 4 << 20:
        raise ConfigError(f"capacity must be at least 4MiB, not {show_size(config.capacity)}", key="capacity")
    if config.data_address is None and config.socket is None:
        raise ConfigError("data_address and socket are both off: no client could reach this node", key="data_address")
    for key in ("data_address", "control_address", "http_address"):
        _check_network(config, key, getattr(config, key))
    if config.socket is not None and len(os.fsencode(config.socket)) > 107:
        raise ConfigError(f"socket {config.socket} is longer than the 107 bytes a unix socket allows", key="socket")
