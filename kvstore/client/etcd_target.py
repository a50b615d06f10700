"""The nodes of a cell, as etcd knows them: asked for once for each connection, nothing is watched."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore.core.errors import ConfigError, DeadlineExceeded, InvalidArgument, KVStoreError, Unavailable

if TYPE_CHECKING:
    from kvstore.cluster.etcd.settings import EtcdSettings
    from kvstore.cluster.member import Member


def data_addresses(endpoints: tuple[str, ...], tls: bool, cell: str, deadline: float) -> list[str]:
    """Of the nodes' data path, those that drain last. Raises Unavailable, DeadlineExceeded, ConfigError."""
    members = _listed(_settings(endpoints, tls), cell, deadline)
    if not members:
        raise Unavailable(f"etcd knows no node of the cell {cell!r}; is the name right, and do its nodes run?")
    return [member.data_address for member in sorted(members, key=lambda member: member.draining)]


def _settings(endpoints: tuple[str, ...], tls: bool) -> EtcdSettings:
    """With what the nodes' settings are called in the environment: KVSTORE_ETCD_USER and so on."""
    from kvstore.cluster.etcd.settings import EtcdSettings

    password = _path("KVSTORE_ETCD_PASSWORD_FILE")
    try:
        secret = password.read_text().rstrip("\n") if password else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read KVSTORE_ETCD_PASSWORD_FILE {password}: {error}") from None
    scheme = "https://" if tls else ""
    return EtcdSettings(
        tuple(scheme + endpoint for endpoint in endpoints),
        os.environ.get("KVSTORE_ETCD_USER", ""),
        secret,
        _path("KVSTORE_ETCD_CA"),
        _path("KVSTORE_ETCD_CERT"),
        _path("KVSTORE_ETCD_KEY"),
    )


def _path(variable: str) -> Path | None:
    found = os.environ.get(variable, "")
    return Path(found) if found and found != "off" else None


def _listed(settings: EtcdSettings, cell: str, deadline: float) -> list[Member]:
    """On a thread of its own: the caller may be within an event loop."""
    found: list[Member] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            found.extend(asyncio.run(_ask(settings, cell, deadline)))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, name="kvstore-etcd", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if thread.is_alive():
        raise DeadlineExceeded("etcd had not answered by the deadline")
    if failures:
        raise failures[0] if isinstance(failures[0], KVStoreError) else Unavailable(f"etcd: {failures[0]}")
    return found


async def _ask(settings: EtcdSettings, cell: str, deadline: float) -> list[Member]:
    from kvstore.cluster.discovery.etcd import cell_prefix
    from kvstore.cluster.etcd.client import EtcdClient
    from kvstore.cluster.member import Member

    client = EtcdClient(settings)
    try:
        listing = await client.list(cell_prefix(cell), max(0.05, deadline - time.monotonic()))
    finally:
        await client.close()
    members: list[Member] = []
    for entry in listing.entries:
        try:
            members.append(Member.from_json(entry.value))
        except InvalidArgument:  # of a later version
            continue
    return members
