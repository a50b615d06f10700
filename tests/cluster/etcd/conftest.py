from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, Protocol

import pytest

from kvstore.cluster.etcd.client import EtcdClient
from kvstore.cluster.etcd.settings import EtcdSettings
from kvstore.cluster.loop import LoopThread
from tests.cluster.etcd.servers import PATIENCE, Etcd, etcd


class Clients:
    """Clients on one loop, closed at the end."""

    def __init__(self) -> None:
        self.loop = LoopThread("test-etcd")
        self._made: list[EtcdClient] = []

    def make(self, *endpoints: str, **settings: Any) -> EtcdClient:
        client = EtcdClient(EtcdSettings(endpoints, **settings))
        self._made.append(client)
        return client

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result, waited for."""
        return self.loop.submit(work).result(PATIENCE)

    def close(self) -> None:
        for client in self._made:
            self.run(client.close())
        self.loop.stop()


class Run(Protocol):
    def __call__(self, work: Coroutine[Any, Any, Any]) -> Any: ...


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    made.close()


@pytest.fixture
def run(clients: Clients) -> Run:
    return clients.run


@pytest.fixture(scope="module")
def one() -> Iterator[Etcd]:
    """An etcd of one server for the tests of a module, which use keys of their own."""
    with etcd() as running:
        yield running
