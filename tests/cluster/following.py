"""A subscriber of a real node: what it is told lands in a dict, and who it heard in lists. And a node to look into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from kvstore.cluster.feed import Feed
from kvstore.cluster.loop import LoopThread
from kvstore.cluster.subscriber import Heard, Subscriber
from kvstore.node.config import load
from kvstore.server.node import Node
from kvstore.tiers.memfile import purge
from tests.integration.nodes import wait_for
from tests.unit.cluster.feeding import NODE, DictSink


class Follower:
    """Follows one node from its construction to ``close``."""

    def __init__(self, address: str, node_id: bytes, silence: float = 5.0, roots: tuple[bytes, ...] = ()) -> None:
        self.sink = DictSink()
        self.canonicals: dict[bytes, bytes] = {}
        self.signs: list[Heard] = []
        self.reasons: list[str] = []
        self.goodbyes: list[bytes] = []
        self.feed = Feed(node_id, NODE, self.sink, self.canonicals.__setitem__, roots)
        self._loop = LoopThread("follower")
        self._loop.submit(Subscriber(address, self.feed, self, silence).run())

    def heard(self, heard: Heard) -> None:
        self.signs.append(heard)

    def lost(self, node_id: bytes, boot_id: bytes, reason: str) -> None:
        self.reasons.append(reason)

    def left(self, node_id: bytes, boot_id: bytes) -> None:
        self.goodbyes.append(boot_id)

    def known(self) -> dict[tuple[bytes, bytes], tuple[int, int]]:
        """Blocks that the node is known to hold; nothing while a snapshot comes in."""
        return {} if self.feed.behind else dict(self.sink.blocks)

    def await_snapshot(self, number: int = 1) -> None:
        wait_for(lambda: self.feed.snapshots >= number and not self.feed.behind, f"snapshot {number}")

    def close(self) -> None:
        self._loop.stop()


@contextmanager
def following(address: str, node_id: bytes, **options: float) -> Iterator[Follower]:
    follower = Follower(address, node_id, **options)  # type: ignore[arg-type]
    try:
        yield follower
    finally:
        follower.close()


@contextmanager
def serving(folder: Path, **settings: object) -> Iterator[Node]:
    """A node in the test's own process."""
    addresses = dict.fromkeys(("data_address", "control_address"), "127.0.0.1:0")
    flags = {"socket": str(folder / "sock"), "data_dir": str(folder / "data"), "http_address": "off", **addresses}
    served = Node(load(environ={}, flags={**flags, **settings}))
    try:
        served.start()
        yield served
    finally:
        served.stop()
        purge(served.store.config.memory_file)


def narrow_channel(served: Node) -> grpc.Channel:
    """Takes little before it is read from."""
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
    return grpc.insecure_channel(served.facts.control_address, options)
