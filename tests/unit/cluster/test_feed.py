"""What a feed accepts, what it takes for a gap, and from where it goes on."""

from __future__ import annotations

import pytest

from kvstore.cluster.feed import Feed
from kvstore.core.errors import BadKey, ProtocolError, Unavailable
from kvstore.v1 import events_pb2 as pb
from tests.unit.cluster.feeding import NODE, NODE_ID, DictSink

BOOT, ROOT = b"b" * 16, b"r" * 16
KEYS = bytes(range(64))
FIRST, SECOND = KEYS[:16], KEYS[16:32]


def stored(keys: bytes = KEYS, first: int = 0, tiers: int = 1) -> pb.Event:
    return pb.Event(stored=pb.BlockRun(root=ROOT, first_block=first, keys=keys, tiers=tiers))


BEGUN = pb.Event(snapshot_begun=pb.SnapshotBegun())


def done(entries: int) -> pb.Event:
    return pb.Event(snapshot_done=pb.SnapshotDone(entries=entries))


def batch(sequence: int, *events: pb.Event, boot: bytes = BOOT, node: bytes = NODE_ID) -> pb.EventBatch:
    return pb.EventBatch(node_id=node, boot_id=boot, sequence=sequence, events=events)


class Fed:
    def __init__(self, *batches: pb.EventBatch, roots: tuple[bytes, ...] = ()) -> None:
        self.sink = DictSink()
        self.feed = Feed(NODE_ID, NODE, self.sink, lambda root, canonical: None, roots)
        for one in batches:
            self.feed.take(one)

    @property
    def asks(self) -> tuple[bytes, int]:
        request = self.feed.request()
        return request.boot_id, request.after_sequence


def test_the_first_request_asks_for_all_and_the_next_for_what_is_missing() -> None:
    fed = Fed(roots=(ROOT,))
    assert fed.asks == (b"", 0)
    assert list(fed.feed.request().roots) == [ROOT]
    fed.feed.take(batch(5, BEGUN, stored(), done(4)))
    assert fed.asks == (BOOT, 5)
    assert not fed.feed.behind
    fed.feed.take(batch(6, stored(first=4)))
    fed.feed.take(batch(6))  # a sign of life
    assert fed.asks == (BOOT, 6)
    assert len(fed.sink.blocks) == 4


def test_a_batch_may_have_nothing_for_this_watcher() -> None:
    fed = Fed(batch(5, BEGUN, stored(), done(4)), batch(6), batch(6), batch(7, stored(first=4)))
    assert fed.asks == (BOOT, 7)


def test_half_a_snapshot_is_none() -> None:
    fed = Fed(batch(5, BEGUN, stored()))
    assert fed.feed.behind
    assert fed.asks == (b"", 0)
    assert fed.sink.calls == ["begin", "stored"]


def test_a_snapshot_replaces_what_was_there_when_it_is_complete() -> None:
    fed = Fed(batch(5, BEGUN, stored(), done(4)), batch(1, BEGUN, stored(SECOND, 1, 2), boot=b"c" * 16))
    assert len(fed.sink.blocks) == 4
    fed.feed.take(batch(1, done(1), boot=b"c" * 16))
    assert fed.sink.blocks == {(ROOT, SECOND): (1, 2)}
    assert fed.asks == (b"c" * 16, 1)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (batch(7, stored()), "batch 7 came where 6"),
        (batch(5, stored()), "batch 5 came where 6"),
        (batch(8), "batch 8 came where 6"),
        (batch(6, stored(), boot=b"c" * 16), "without a snapshot"),
        (batch(6, boot=b"c" * 16), "without a snapshot"),
        (batch(5, BEGUN, stored(), done(5)), "5 blocks ended after 4"),
        (batch(6, done(0)), "ended after"),
    ],
)
def test_what_does_not_follow_is_a_gap(wrong: pb.EventBatch, what: str) -> None:
    fed = Fed(batch(5, BEGUN, stored(), done(4)))
    with pytest.raises(ProtocolError, match=what):
        fed.feed.take(wrong)
    fed.feed.broken()
    assert fed.asks == (b"", 0)


def test_keys_that_are_none_are_refused() -> None:
    fed = Fed(batch(5, BEGUN, done(0)))
    with pytest.raises(BadKey):
        fed.feed.take(batch(6, stored(KEYS[:15])))


def test_another_node_is_not_listened_to() -> None:
    fed = Fed(batch(5, BEGUN, stored(), done(4)))
    with pytest.raises(Unavailable, match="addresses have changed"):
        fed.feed.take(batch(6, stored(), node=bytes(16)))
    assert fed.asks == (BOOT, 5)


def test_removals_moves_and_drops_reach_the_sink() -> None:
    fed = Fed(
        batch(5, BEGUN, stored(), done(4)),
        batch(
            6,
            pb.Event(removed=pb.BlockRun(root=ROOT, keys=KEYS[32:])),
            pb.Event(moved=pb.BlockRun(root=ROOT, keys=SECOND, first_block=1, tiers=2)),
            pb.Event(),  # of a later version
        ),
    )
    assert fed.sink.blocks == {(ROOT, FIRST): (0, 1), (ROOT, SECOND): (1, 2)}
    fed.feed.take(batch(7, pb.Event(namespace_dropped=pb.NamespaceDropped(root=ROOT))))
    assert fed.sink.blocks == {}
