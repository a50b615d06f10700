"""A sink that is a plain dict, and a watcher that lives in the test's own process."""

from __future__ import annotations

from collections.abc import Generator

from kvstore.cluster.feed import Feed
from kvstore.cluster.prefix_index import PrefixIndex
from kvstore.core.keys import KeyArray
from kvstore.node.events import Events
from kvstore.v1 import events_pb2 as pb

NODE, NODE_ID = 3, bytes(range(16))


class DictSink:
    """``blocks``: (root, key) -> block and tiers."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        self._fresh: set[tuple[bytes, bytes]] | None = None
        self.calls: list[str] = []

    def stored(self, node: int, root: bytes, first_block: int, keys: KeyArray, tiers: int) -> None:
        assert node == NODE
        assert tiers
        self.calls.append("stored")
        for at, key in enumerate(keys):
            self.blocks[root, key.tobytes()] = (first_block + at, tiers)
            if self._fresh is not None:
                self._fresh.add((root, key.tobytes()))

    def removed(self, node: int, root: bytes, keys: KeyArray) -> None:
        assert node == NODE
        self.calls.append("removed")
        for key in keys:
            self.blocks.pop((root, key.tobytes()), None)

    def drop_namespace(self, node: int, root: bytes) -> None:
        assert node == NODE
        self.calls.append("dropped")
        self.blocks = {block: where for block, where in self.blocks.items() if block[0] != root}

    def begin_snapshot(self, node: int) -> None:
        assert node == NODE
        self.calls.append("begin")
        self._fresh = set()

    def end_snapshot(self, node: int) -> None:
        assert node == NODE
        assert self._fresh is not None
        self.calls.append("end")
        self.blocks = {block: where for block, where in self.blocks.items() if block in self._fresh}
        self._fresh = None


class Watcher:
    """Takes messages of ``Events`` when it is told to. It can lose its connection at any message."""

    def __init__(self, roots: tuple[bytes, ...] = (), index: PrefixIndex | None = None) -> None:
        """``index`` takes the events in the place of the dict."""
        self.sink = DictSink()
        self.canonicals: dict[bytes, bytes] = {}
        node = index.add_node(NODE_ID) if index else NODE
        self.feed = Feed(NODE_ID, node, index or self.sink, self.canonicals.__setitem__, roots)
        self.statuses: list[pb.NodeStatus] = []
        self._stream: Generator[pb.EventBatch, None, None] | None = None

    def take(self, events: Events) -> pb.EventBatch:
        """The next message."""
        if self._stream is None:
            sent = pb.WatchEventsRequest.FromString(self.feed.request().SerializeToString())
            self._stream = events.watch(sent)  # type: ignore[assignment]
        message = pb.EventBatch.FromString(next(self._stream).SerializeToString())
        if message.HasField("status"):
            self.statuses.append(message.status)
        self.feed.take(message)
        return message

    def catch_up(self, events: Events) -> None:
        """All that has happened until now."""
        events.journal.flush()
        signs = len(self.statuses)
        while self.feed.behind or (self.feed.boot_id, self.feed.sequence) != (events.boot_id, events.journal.sequence):
            self.take(events)
            assert len(self.statuses) < signs + 5, f"batch {events.journal.sequence} does not come"

    def lose(self) -> None:
        """The connection breaks."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
