"""A running announcement, for tests."""

from __future__ import annotations

from kvstore.cluster.etcd.announcement import Announcement
from kvstore.cluster.etcd.client import EtcdClient
from kvstore.cluster.loop import LoopThread
from tests.cluster.etcd.gateway import Gateway
from tests.cluster.etcd.servers import wait_for


def announce(loop: LoopThread, client: EtcdClient, key: str, value: bytes, ttl: int = 5) -> Announcement:
    made = Announcement(client, key.encode(), value, ttl)
    loop.background(made.run())
    return made


def wait_until_stored(gateway: Gateway, key: str, value: bytes) -> None:
    def there() -> bool:
        stored = gateway.get(key)
        return stored is not None and stored.value == value

    wait_for(there, f"{key} is stored")
