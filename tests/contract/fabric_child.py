"""A client that stops or dies at a chosen moment: ``python -m tests.contract.fabric_child PORT MODEL DO [GUARD]``.

DO: ``get`` stops itself between lease and read; ``put`` dies, ``put-stop`` stops, when the node is to read its memory.
GUARD: what of ``lease`` and ``checksums`` is left to protect it (default: both). Prints what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from kvstore import Client, NamespaceSpec
from kvstore.transport import nixl
from kvstore.transport.frame import Op
from kvstore.transport.wire import Wire
from tests.contract.conftest import empty, payload, tokens

BLOCKS = 4


def main(port: str, model: str, do: str, guard: str = "both") -> None:
    client = Client(f"kv://127.0.0.1:{port}", transport="nixl", timeout=60.0)
    namespace = client.namespace(NamespaceSpec(model=model, block_tokens=4, block_bytes=200_000))
    keys, data, into = namespace.keys(tokens(BLOCKS)), payload(namespace, BLOCKS), empty(namespace, BLOCKS)
    if do == "get":
        read = stop_between_lease_and_read(guard)
        got = namespace.get(keys, into)
        print(json.dumps({"got": got, "reads": len(read), "right": into == data, "touched": any(map(any, into))}))
    else:
        end_when_the_node_is_to_read(signal.SIGKILL if do == "put" else signal.SIGSTOP)
        result = namespace.put(keys, data)
        print(json.dumps({"stored": result.stored}))


def stop_between_lease_and_read(guard: str) -> list[int]:
    fetch: Any = nixl.NixlTransport._fetch
    read: list[int] = []

    def stopping(self: Any, *arguments: Any) -> Any:
        if not read:
            os.kill(os.getpid(), signal.SIGSTOP)
        read.append(1)
        return fetch(self, *arguments)

    setattr(nixl.NixlTransport, "_fetch", stopping)  # noqa: B010  mypy knows no other way
    if guard == "lease":
        setattr(nixl, "_passes", lambda *_: True)  # noqa: B010
    if guard == "checksums":
        setattr(nixl.NixlTransport, "_confirm", lambda *_: None)  # noqa: B010
    return read


def end_when_the_node_is_to_read(number: int) -> None:
    request: Any = Wire.request

    def ending(self: Wire, op: Op, message: bytes, deadline: float) -> Any:
        if op is Op.WRITE:
            self.start(op, message, deadline)
            os.kill(os.getpid(), number)
        return request(self, op, message, deadline)

    setattr(Wire, "request", ending)  # noqa: B010


if __name__ == "__main__":
    main(*sys.argv[1:])
