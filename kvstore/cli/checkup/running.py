"""What the node that runs says of itself, looked at from here."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

from kvstore.cli.control import control, greeting
from kvstore.core.errors import KVStoreError
from kvstore.node.status.findings import Finding
from kvstore.transport.frame import VERSION
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import data_pb2

_SKEW = 2.0  # seconds between two clocks


class Running:
    """A node, asked once. ``ports``: on which it listens; empty when none answers."""

    def __init__(self, target: str, timeout: float) -> None:
        self.ports: set[int] = set()
        self._timeout = timeout
        self._failure = ""
        self._reply = data_pb2.HelloReply()
        self._status: dict[str, Any] | None = None
        self._took = 0.0
        try:
            address, self._reply = greeting(_data_target(target, timeout), timeout)
        except KVStoreError as error:
            self._failure = str(error)
            return
        self._where = str(address)
        self._status, self._took = self._asked()
        own = self._status["node"]["data_address"] if self._status else ""
        known = (address.port, *map(_port, (own, self._reply.control_address, self._reply.http_address)))
        self.ports = {port for port in known if port}

    def findings(self) -> Iterator[Finding]:
        if self._failure:
            yield Finding("warning", f"no node runs here: {self._failure}", "start one: kvstore node")
            return
        yield from self._versions()
        if self._status is not None:
            yield from _told(self._status, self._took)

    def _versions(self) -> Iterator[Finding]:
        yield Finding("ok", f"{self._reply.server} runs at {self._where} and speaks protocol {self._reply.version}")
        if self._reply.version < VERSION:
            yield Finding(
                "note", f"that is below protocol {VERSION} of this program",
                "upgrade the node; until then newer features are not used",
            )  # fmt: skip

    def _asked(self) -> tuple[dict[str, Any] | None, float]:
        """/status.json, and how long it took."""
        address = self._reply.http_address
        if not address:
            return None, 0.0
        began = time.monotonic()
        connection = http.client.HTTPConnection(address, timeout=self._timeout)
        try:
            connection.request("GET", "/status.json")
            reply = connection.getresponse()
            found = json.loads(reply.read()) if reply.status == 200 else None
        except (OSError, ValueError, http.client.HTTPException):
            found = None
        finally:
            connection.close()
        return (found if isinstance(found, dict) else None), time.monotonic() - began


def _told(status: dict[str, Any], took: float) -> Iterator[Finding]:
    skew = time.time() - float(status["now"])
    if abs(skew) > _SKEW + took:
        yield Finding(
            "warning", f"its clock differs by {skew:.0f} s from this machine's",
            "synchronise both (chronyd): pins, leases of etcd and logs depend on it",
        )  # fmt: skip
    reads, node = status["reads"], status["node"]
    if reads["rate"] is None:
        yield Finding("note", "nobody asked it for blocks in the last minutes")
    else:
        yield Finding(
            "ok", f"hit rate {reads['rate']:.1%} of the blocks asked for in the last {reads['seconds']:.0f} s"
        )
    if node["state"] != "ready":
        yield Finding("warning", f"the node is {node['state']}", "see /readyz and `kvstore cluster status`")
    yield from (Finding(**one) for one in status["findings"])


def _data_target(target: str, timeout: float) -> str:
    """A target of the control plane as one of the data path."""
    if not target.startswith("grpc://"):
        return target
    with control(target, timeout) as stub:
        return f"kv://{stub.Stat(pb.StatRequest()).data_address}"


def _port(address: str) -> int:
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0
