from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BlockRun(_message.Message):
    __slots__ = ("root", "parent", "first_block", "keys", "tiers")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    parent: bytes
    first_block: int
    keys: bytes
    tiers: int
    def __init__(self, root: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., first_block: _Optional[int] = ..., keys: _Optional[bytes] = ..., tiers: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("stored", "moved", "removed", "namespace_dropped", "snapshot_done", "snapshot_begun", "namespace_known")
    STORED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_DROPPED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_DONE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BEGUN_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_KNOWN_FIELD_NUMBER: _ClassVar[int]
    stored: BlockRun
    moved: BlockRun
    removed: BlockRun
    namespace_dropped: NamespaceDropped
    snapshot_done: SnapshotDone
    snapshot_begun: SnapshotBegun
    namespace_known: NamespaceKnown
    def __init__(self, stored: _Optional[_Union[BlockRun, _Mapping]] = ..., moved: _Optional[_Union[BlockRun, _Mapping]] = ..., removed: _Optional[_Union[BlockRun, _Mapping]] = ..., namespace_dropped: _Optional[_Union[NamespaceDropped, _Mapping]] = ..., snapshot_done: _Optional[_Union[SnapshotDone, _Mapping]] = ..., snapshot_begun: _Optional[_Union[SnapshotBegun, _Mapping]] = ..., namespace_known: _Optional[_Union[NamespaceKnown, _Mapping]] = ...) -> None: ...

class NamespaceDropped(_message.Message):
    __slots__ = ("root",)
    ROOT_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    def __init__(self, root: _Optional[bytes] = ...) -> None: ...

class SnapshotBegun(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotDone(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: int
    def __init__(self, entries: _Optional[int] = ...) -> None: ...

class NamespaceKnown(_message.Message):
    __slots__ = ("root", "canonical", "generation", "rotation")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    CANONICAL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    canonical: bytes
    generation: int
    rotation: int
    def __init__(self, root: _Optional[bytes] = ..., canonical: _Optional[bytes] = ..., generation: _Optional[int] = ..., rotation: _Optional[int] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("boot_id", "after_sequence", "roots", "member")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    boot_id: bytes
    after_sequence: int
    roots: _containers.RepeatedScalarFieldContainer[bytes]
    member: bytes
    def __init__(self, boot_id: _Optional[bytes] = ..., after_sequence: _Optional[int] = ..., roots: _Optional[_Iterable[bytes]] = ..., member: _Optional[bytes] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("node_id", "boot_id", "sequence", "events", "status", "leaving", "member", "peers")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    node_id: bytes
    boot_id: bytes
    sequence: int
    events: _containers.RepeatedCompositeFieldContainer[Event]
    status: NodeStatus
    leaving: bool
    member: bytes
    peers: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, node_id: _Optional[bytes] = ..., boot_id: _Optional[bytes] = ..., sequence: _Optional[int] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., status: _Optional[_Union[NodeStatus, _Mapping]] = ..., leaving: bool = ..., member: _Optional[bytes] = ..., peers: _Optional[_Iterable[bytes]] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("capacity_bytes", "free_bytes", "draining", "eviction_age")
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    EVICTION_AGE_FIELD_NUMBER: _ClassVar[int]
    capacity_bytes: int
    free_bytes: int
    draining: bool
    eviction_age: float
    def __init__(self, capacity_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., draining: bool = ..., eviction_age: _Optional[float] = ...) -> None: ...
