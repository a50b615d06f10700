"""What the suites of sessions share."""

from __future__ import annotations

from collections.abc import Callable

from kvstore import Client, Namespace
from tests.contract.conftest import payload, spec, tokens
from tests.contract.running import NodeProcess

Start = Callable[..., NodeProcess]
Connect = Callable[..., Client]


def filled(client: Client, blocks: int, seed: int = 0, **fields: object) -> tuple[Namespace, list[bytes]]:
    namespace = client.namespace(spec(**fields))
    data = payload(namespace, blocks, seed)
    assert namespace.put(namespace.keys(tokens(blocks, seed)), data).stored == blocks
    return namespace, data
