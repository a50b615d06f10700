"""One node's events, in their order, into a sink: what is new, what is missing, where to go on. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvstore.cluster.received import Received
from kvstore.cluster.sink import BlockSink
from kvstore.core.errors import ProtocolError, Unavailable
from kvstore.core.keys import KEY_BYTES, key_array
from kvstore.transport.batch import Generation
from kvstore.v1 import events_pb2 as pb

OnNamespace = Callable[[bytes, bytes], None]  # root, canonical form
OnNew = Callable[[bytes, int], None]  # root, blocks
OnGeneration = Callable[[bytes, bytes, Generation], None]  # root, canonical form; only of namespaces ever rotated


class Feed:
    """``boot_id`` and ``sequence``: what was taken last. ``behind``: the sink lacks some, a snapshot must come."""

    def __init__(
        self,
        node_id: bytes,
        node: int,
        sink: BlockSink,
        on_namespace: OnNamespace,
        roots: Iterable[bytes] = (),
        on_new: OnNew = lambda root, blocks: None,
        on_generation: OnGeneration = lambda root, canonical, generation: None,
    ) -> None:
        """``node``: the sink's number of the node ``node_id``. ``roots``: namespaces wanted, none: all. ``on_new`` is
        told of blocks that came now: neither moved, nor of a snapshot."""
        self.node_id = node_id
        self.boot_id = b""
        self.sequence = 0
        self.behind = True
        self.snapshots = 0  # received whole
        self.received = Received()
        self._node = node
        self._sink = sink
        self._on_namespace = on_namespace
        self._on_new = on_new
        self._on_generation = on_generation
        self.generations: dict[bytes, Generation] = {}  # of namespaces that were ever rotated there
        self._roots = tuple(roots)
        self._loading = False
        self._told = 0  # blocks of the snapshot that is coming in

    def request(self) -> pb.WatchEventsRequest:
        """Asks for what is missing; for a snapshot where that is not known."""
        if self.behind:
            return pb.WatchEventsRequest(roots=self._roots)
        return pb.WatchEventsRequest(boot_id=self.boot_id, after_sequence=self.sequence, roots=self._roots)

    def broken(self) -> None:
        """What comes next cannot follow what came before: a snapshot must."""
        self.received.gaps += not self.behind
        self.behind = True

    def take(self, batch: pb.EventBatch) -> None:
        """Raises ProtocolError when something is missing or makes no sense, Unavailable when it is of another node."""
        if batch.node_id != self.node_id:
            raise Unavailable(
                f"node {batch.node_id.hex()} answers where {self.node_id.hex()} was expected: addresses have changed",
                got=batch.node_id.hex(),
                want=self.node_id.hex(),
            )
        if batch.events and batch.events[0].HasField("snapshot_begun"):
            self._begin(batch)
        elif self._loading or (not batch.events and batch.sequence == self.sequence):  # the latter: a sign of life
            self._check(batch, self.sequence)
        else:
            self._check(batch, self.sequence + 1)
        self.received.batches += bool(batch.events)
        for event in batch.events:
            self._apply(event)
        self.sequence = batch.sequence

    def _begin(self, batch: pb.EventBatch) -> None:
        self.received.gaps += not self.behind and batch.boot_id == self.boot_id
        self._loading = self.behind = True
        self.generations = {}
        self.boot_id, self.sequence, self._told = batch.boot_id, batch.sequence, 0
        self._sink.begin_snapshot(self._node)

    def _check(self, batch: pb.EventBatch, sequence: int) -> None:
        if batch.boot_id != self.boot_id:
            raise ProtocolError(f"events of boot {batch.boot_id.hex()} without a snapshot before them")
        if batch.sequence != sequence:
            raise ProtocolError(f"event batch {batch.sequence} came where {sequence} was expected")

    def _apply(self, event: pb.Event) -> None:
        match event.WhichOneof("what"):
            case "stored":
                self._stored(event.stored)
                if not self._loading:
                    self._on_new(event.stored.root, len(event.stored.keys) // KEY_BYTES)
            case "moved":
                self._stored(event.moved)
            case "removed":
                self._sink.removed(self._node, event.removed.root, key_array(event.removed.keys))
            case "namespace_dropped":
                self._sink.drop_namespace(self._node, event.namespace_dropped.root)
            case "namespace_known":
                self._introduced(event.namespace_known)
            case "snapshot_done":
                self._end(event.snapshot_done.entries)
            case _:
                pass  # snapshot_begun; of a later version what this one does not know

    def _introduced(self, known: pb.NamespaceKnown) -> None:
        self._on_namespace(known.root, known.canonical)
        if known.generation:
            generation = known.generation, known.rotation
            self.generations[known.root] = generation
            self._on_generation(known.root, known.canonical, generation)
        else:
            self.generations.pop(known.root, None)

    def _stored(self, run: pb.BlockRun) -> None:
        keys = key_array(run.keys)
        self._told += len(keys)
        self.received.blocks += len(keys)
        self._sink.stored(self._node, run.root, run.first_block, keys, run.tiers)

    def _end(self, entries: int) -> None:
        if not self._loading or entries != self._told:
            raise ProtocolError(f"a snapshot of {entries} blocks ended after {self._told}")
        self._sink.end_snapshot(self._node)
        self._loading = self.behind = False
        self.snapshots += 1
        self.received.snapshots += 1
