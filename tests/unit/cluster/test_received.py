"""What is counted of events that come from other nodes."""

from __future__ import annotations

import pytest

from kvstore.cluster.feed import Feed
from kvstore.core.errors import ProtocolError
from kvstore.v1 import events_pb2 as pb

NODE = bytes(16)
ROOT = b"r" * 16


class Sink:
    """Takes everything."""

    def __getattr__(self, name: str) -> object:
        return lambda *arguments: None


def batch(sequence: int, *events: pb.Event, boot: bytes = b"b" * 16) -> pb.EventBatch:
    return pb.EventBatch(node_id=NODE, boot_id=boot, sequence=sequence, events=events)


def snapshot(sequence: int, blocks: int, boot: bytes = b"b" * 16) -> pb.EventBatch:
    begun, done = pb.Event(snapshot_begun=pb.SnapshotBegun()), pb.Event(snapshot_done=pb.SnapshotDone(entries=blocks))
    return batch(sequence, begun, *([stored(blocks)] if blocks else []), done, boot=boot)


def stored(blocks: int) -> pb.Event:
    return pb.Event(stored=pb.BlockRun(root=ROOT, keys=bytes(16) * blocks))


@pytest.fixture
def feed() -> Feed:
    return Feed(NODE, 1, Sink(), lambda root, canonical: None)  # type: ignore[arg-type]


def test_batches_blocks_and_snapshots_are_counted_and_signs_of_life_are_not(feed: Feed) -> None:
    feed.take(snapshot(4, 3))
    feed.take(batch(5, stored(2)))
    feed.take(batch(5))
    got = feed.received
    assert (got.batches, got.blocks, got.snapshots, got.gaps) == (2, 5, 1, 0)


def test_a_missing_batch_is_one_gap_however_often_it_is_noticed(feed: Feed) -> None:
    feed.take(snapshot(4, 0))
    with pytest.raises(ProtocolError):
        feed.take(batch(7, stored(1)))
    feed.broken()
    feed.broken()
    assert feed.received.gaps == 1


def test_a_snapshot_in_the_middle_of_a_boot_is_a_gap_and_one_of_a_new_boot_is_not(feed: Feed) -> None:
    feed.take(snapshot(4, 0))
    feed.take(snapshot(0, 0, boot=b"c" * 16))
    assert feed.received.gaps == 0
    feed.take(snapshot(9, 0, boot=b"c" * 16))
    assert (feed.received.gaps, feed.received.snapshots) == (1, 3)
