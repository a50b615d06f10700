from kvstore.v1 import events_pb2 as _events_pb2
from kvstore.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ControlOpenNamespaceRequest(_message.Message):
    __slots__ = ("canonical", "root", "strict")
    CANONICAL_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    canonical: bytes
    root: bytes
    strict: bool
    def __init__(self, canonical: _Optional[bytes] = ..., root: _Optional[bytes] = ..., strict: bool = ...) -> None: ...

class NamespaceInfo(_message.Message):
    __slots__ = ("root", "canonical", "blocks", "bytes", "created", "differs", "parts", "idle_seconds", "tiers", "pinned_bytes", "generation")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    CANONICAL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    DIFFERS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    canonical: bytes
    blocks: int
    bytes: int
    created: bool
    differs: _containers.RepeatedScalarFieldContainer[str]
    parts: int
    idle_seconds: float
    tiers: _containers.RepeatedCompositeFieldContainer[TierBytes]
    pinned_bytes: int
    generation: int
    def __init__(self, root: _Optional[bytes] = ..., canonical: _Optional[bytes] = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., created: bool = ..., differs: _Optional[_Iterable[str]] = ..., parts: _Optional[int] = ..., idle_seconds: _Optional[float] = ..., tiers: _Optional[_Iterable[_Union[TierBytes, _Mapping]]] = ..., pinned_bytes: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class TierBytes(_message.Message):
    __slots__ = ("tier", "bytes")
    TIER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    tier: _types_pb2.TierKind
    bytes: int
    def __init__(self, tier: _Optional[_Union[_types_pb2.TierKind, str]] = ..., bytes: _Optional[int] = ...) -> None: ...

class ListNamespacesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNamespacesReply(_message.Message):
    __slots__ = ("namespaces",)
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceInfo]
    def __init__(self, namespaces: _Optional[_Iterable[_Union[NamespaceInfo, _Mapping]]] = ...) -> None: ...

class DropNamespaceRequest(_message.Message):
    __slots__ = ("root",)
    ROOT_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    def __init__(self, root: _Optional[bytes] = ...) -> None: ...

class DropNamespaceReply(_message.Message):
    __slots__ = ("blocks", "leased")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    leased: int
    def __init__(self, blocks: _Optional[int] = ..., leased: _Optional[int] = ...) -> None: ...

class RotateNamespaceRequest(_message.Message):
    __slots__ = ("root", "generation", "rotation", "peer")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    generation: int
    rotation: int
    peer: bool
    def __init__(self, root: _Optional[bytes] = ..., generation: _Optional[int] = ..., rotation: _Optional[int] = ..., peer: bool = ...) -> None: ...

class RotateNamespaceReply(_message.Message):
    __slots__ = ("blocks", "leased", "generation", "rotation", "unreached")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    leased: int
    generation: int
    rotation: int
    unreached: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, blocks: _Optional[int] = ..., leased: _Optional[int] = ..., generation: _Optional[int] = ..., rotation: _Optional[int] = ..., unreached: _Optional[_Iterable[str]] = ...) -> None: ...

class ControlMatchRequest(_message.Message):
    __slots__ = ("root", "keys", "parts", "request_id")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    keys: bytes
    parts: _containers.RepeatedScalarFieldContainer[int]
    request_id: int
    def __init__(self, root: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., parts: _Optional[_Iterable[int]] = ..., request_id: _Optional[int] = ...) -> None: ...

class ControlMatchReply(_message.Message):
    __slots__ = ("blocks", "miss", "remote_blocks")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    REMOTE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    miss: _types_pb2.MissReason
    remote_blocks: int
    def __init__(self, blocks: _Optional[int] = ..., miss: _Optional[_Union[_types_pb2.MissReason, str]] = ..., remote_blocks: _Optional[int] = ...) -> None: ...

class ControlPutRequest(_message.Message):
    __slots__ = ("root", "chain", "parts", "request_id", "importance", "ack", "data")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    chain: _types_pb2.ChainSlice
    parts: _containers.RepeatedScalarFieldContainer[int]
    request_id: int
    importance: bytes
    ack: _types_pb2.AckLevel
    data: bytes
    def __init__(self, root: _Optional[bytes] = ..., chain: _Optional[_Union[_types_pb2.ChainSlice, _Mapping]] = ..., parts: _Optional[_Iterable[int]] = ..., request_id: _Optional[int] = ..., importance: _Optional[bytes] = ..., ack: _Optional[_Union[_types_pb2.AckLevel, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ControlPutReply(_message.Message):
    __slots__ = ("stored", "outcomes")
    STORED_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    stored: int
    outcomes: bytes
    def __init__(self, stored: _Optional[int] = ..., outcomes: _Optional[bytes] = ...) -> None: ...

class ControlGetRequest(_message.Message):
    __slots__ = ("root", "keys", "first_block", "parts", "request_id")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    keys: bytes
    first_block: int
    parts: _containers.RepeatedScalarFieldContainer[int]
    request_id: int
    def __init__(self, root: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., first_block: _Optional[int] = ..., parts: _Optional[_Iterable[int]] = ..., request_id: _Optional[int] = ...) -> None: ...

class ControlGetReply(_message.Message):
    __slots__ = ("blocks", "miss", "data", "checksums")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    miss: _types_pb2.MissReason
    data: bytes
    checksums: bytes
    def __init__(self, blocks: _Optional[int] = ..., miss: _Optional[_Union[_types_pb2.MissReason, str]] = ..., data: _Optional[bytes] = ..., checksums: _Optional[bytes] = ...) -> None: ...

class ControlEvictRequest(_message.Message):
    __slots__ = ("root", "keys")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    keys: bytes
    def __init__(self, root: _Optional[bytes] = ..., keys: _Optional[bytes] = ...) -> None: ...

class ControlEvictReply(_message.Message):
    __slots__ = ("evicted", "leased", "absent")
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    evicted: int
    leased: int
    absent: int
    def __init__(self, evicted: _Optional[int] = ..., leased: _Optional[int] = ..., absent: _Optional[int] = ...) -> None: ...

class StatRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PinStat(_message.Message):
    __slots__ = ("soft_blocks", "hard_blocks", "hard_bytes", "max_bytes", "max_tenant_bytes")
    SOFT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HARD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HARD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_TENANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    soft_blocks: int
    hard_blocks: int
    hard_bytes: int
    max_bytes: int
    max_tenant_bytes: int
    def __init__(self, soft_blocks: _Optional[int] = ..., hard_blocks: _Optional[int] = ..., hard_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_tenant_bytes: _Optional[int] = ...) -> None: ...

class TierStat(_message.Message):
    __slots__ = ("tier", "capacity_bytes", "used_bytes", "ready_bytes", "segments", "segments_ready", "state", "reason", "advice", "since", "counters")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TIER_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    READY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_READY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    tier: _types_pb2.TierKind
    capacity_bytes: int
    used_bytes: int
    ready_bytes: int
    segments: int
    segments_ready: int
    state: str
    reason: str
    advice: str
    since: float
    counters: _containers.ScalarMap[str, int]
    def __init__(self, tier: _Optional[_Union[_types_pb2.TierKind, str]] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., ready_bytes: _Optional[int] = ..., segments: _Optional[int] = ..., segments_ready: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., advice: _Optional[str] = ..., since: _Optional[float] = ..., counters: _Optional[_Mapping[str, int]] = ...) -> None: ...

class StatReply(_message.Message):
    __slots__ = ("node_id", "boot_id", "version", "uptime_seconds", "tiers", "blocks", "writing", "leased_blocks", "leases", "sessions", "orphan_sessions", "counters", "namespaces", "index_bytes", "data_address", "socket", "pins", "transports")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TransportsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WRITING_FIELD_NUMBER: _ClassVar[int]
    LEASED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    node_id: bytes
    boot_id: bytes
    version: str
    uptime_seconds: float
    tiers: _containers.RepeatedCompositeFieldContainer[TierStat]
    blocks: int
    writing: int
    leased_blocks: int
    leases: int
    sessions: int
    orphan_sessions: int
    counters: _containers.ScalarMap[str, int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceInfo]
    index_bytes: int
    data_address: str
    socket: str
    pins: PinStat
    transports: _containers.ScalarMap[str, int]
    def __init__(self, node_id: _Optional[bytes] = ..., boot_id: _Optional[bytes] = ..., version: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., tiers: _Optional[_Iterable[_Union[TierStat, _Mapping]]] = ..., blocks: _Optional[int] = ..., writing: _Optional[int] = ..., leased_blocks: _Optional[int] = ..., leases: _Optional[int] = ..., sessions: _Optional[int] = ..., orphan_sessions: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceInfo, _Mapping]]] = ..., index_bytes: _Optional[int] = ..., data_address: _Optional[str] = ..., socket: _Optional[str] = ..., pins: _Optional[_Union[PinStat, _Mapping]] = ..., transports: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PrefetchRequest(_message.Message):
    __slots__ = ("root", "keys", "tier", "deadline_ms")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    keys: bytes
    tier: _types_pb2.TierKind
    deadline_ms: int
    def __init__(self, root: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., tier: _Optional[_Union[_types_pb2.TierKind, str]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class PrefetchReply(_message.Message):
    __slots__ = ("started", "present", "absent")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    started: int
    present: int
    absent: int
    def __init__(self, started: _Optional[int] = ..., present: _Optional[int] = ..., absent: _Optional[int] = ...) -> None: ...

class ReplicateRequest(_message.Message):
    __slots__ = ("root", "keys", "to", "copies", "deadline_ms")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    keys: bytes
    to: _containers.RepeatedScalarFieldContainer[str]
    copies: int
    deadline_ms: int
    def __init__(self, root: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., to: _Optional[_Iterable[str]] = ..., copies: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class ReplicateReply(_message.Message):
    __slots__ = ("started", "results")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    started: int
    results: _containers.RepeatedCompositeFieldContainer[CopyResult]
    def __init__(self, started: _Optional[int] = ..., results: _Optional[_Iterable[_Union[CopyResult, _Mapping]]] = ...) -> None: ...

class MigrateRequest(_message.Message):
    __slots__ = ("root", "keys", "to", "deadline_ms")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    keys: bytes
    to: _containers.RepeatedScalarFieldContainer[str]
    deadline_ms: int
    def __init__(self, root: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., to: _Optional[_Iterable[str]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class MigrateReply(_message.Message):
    __slots__ = ("moved", "dropped", "results")
    MOVED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    moved: int
    dropped: int
    results: _containers.RepeatedCompositeFieldContainer[CopyResult]
    def __init__(self, moved: _Optional[int] = ..., dropped: _Optional[int] = ..., results: _Optional[_Iterable[_Union[CopyResult, _Mapping]]] = ...) -> None: ...

class CopyResult(_message.Message):
    __slots__ = ("node", "blocks", "trouble")
    NODE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    node: str
    blocks: int
    trouble: str
    def __init__(self, node: _Optional[str] = ..., blocks: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("root", "keys", "hard", "ttl_seconds")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HARD_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    keys: bytes
    hard: bool
    ttl_seconds: float
    def __init__(self, root: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., hard: bool = ..., ttl_seconds: _Optional[float] = ...) -> None: ...

class PinReply(_message.Message):
    __slots__ = ("pinned",)
    PINNED_FIELD_NUMBER: _ClassVar[int]
    pinned: int
    def __init__(self, pinned: _Optional[int] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("root", "keys")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    keys: bytes
    def __init__(self, root: _Optional[bytes] = ..., keys: _Optional[bytes] = ...) -> None: ...

class UnpinReply(_message.Message):
    __slots__ = ("unpinned",)
    UNPINNED_FIELD_NUMBER: _ClassVar[int]
    unpinned: int
    def __init__(self, unpinned: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("deadline_seconds", "cancel")
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    deadline_seconds: float
    cancel: bool
    def __init__(self, deadline_seconds: _Optional[float] = ..., cancel: bool = ...) -> None: ...

class DrainProgress(_message.Message):
    __slots__ = ("blocks_done", "blocks_total", "bytes_done", "finished", "blocks_left", "trouble")
    BLOCKS_DONE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_LEFT_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    blocks_done: int
    blocks_total: int
    bytes_done: int
    finished: bool
    blocks_left: int
    trouble: str
    def __init__(self, blocks_done: _Optional[int] = ..., blocks_total: _Optional[int] = ..., bytes_done: _Optional[int] = ..., finished: bool = ..., blocks_left: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class WarmRequest(_message.Message):
    __slots__ = ("deadline_seconds", "max_bytes")
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    deadline_seconds: float
    max_bytes: int
    def __init__(self, deadline_seconds: _Optional[float] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class WarmProgress(_message.Message):
    __slots__ = ("blocks_done", "bytes_done", "finished", "trouble")
    BLOCKS_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    blocks_done: int
    bytes_done: int
    finished: bool
    trouble: str
    def __init__(self, blocks_done: _Optional[int] = ..., bytes_done: _Optional[int] = ..., finished: bool = ..., trouble: _Optional[str] = ...) -> None: ...

class HottestRequest(_message.Message):
    __slots__ = ("max_bytes", "max_chains")
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CHAINS_FIELD_NUMBER: _ClassVar[int]
    max_bytes: int
    max_chains: int
    def __init__(self, max_bytes: _Optional[int] = ..., max_chains: _Optional[int] = ...) -> None: ...

class HotChain(_message.Message):
    __slots__ = ("root", "canonical", "keys")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    CANONICAL_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    canonical: bytes
    keys: bytes
    def __init__(self, root: _Optional[bytes] = ..., canonical: _Optional[bytes] = ..., keys: _Optional[bytes] = ...) -> None: ...

class CopyRequest(_message.Message):
    __slots__ = ("canonical", "root", "keys", "source", "owed", "deadline_ms")
    CANONICAL_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OWED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    canonical: bytes
    root: bytes
    keys: bytes
    source: ClusterMember
    owed: bool
    deadline_ms: int
    def __init__(self, canonical: _Optional[bytes] = ..., root: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., source: _Optional[_Union[ClusterMember, _Mapping]] = ..., owed: bool = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class CopyReply(_message.Message):
    __slots__ = ("blocks", "bytes")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    bytes: int
    def __init__(self, blocks: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ClusterStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterMember(_message.Message):
    __slots__ = ("node_id", "boot_id", "data_address", "control_address", "host", "zone", "version", "capacity_bytes", "draining")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONTROL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    node_id: bytes
    boot_id: bytes
    data_address: str
    control_address: str
    host: str
    zone: str
    version: str
    capacity_bytes: int
    draining: bool
    def __init__(self, node_id: _Optional[bytes] = ..., boot_id: _Optional[bytes] = ..., data_address: _Optional[str] = ..., control_address: _Optional[str] = ..., host: _Optional[str] = ..., zone: _Optional[str] = ..., version: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., draining: bool = ...) -> None: ...

class ClusterPeer(_message.Message):
    __slots__ = ("member", "state", "blocks", "free_bytes", "lag_seconds", "trouble")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    member: ClusterMember
    state: str
    blocks: int
    free_bytes: int
    lag_seconds: float
    trouble: str
    def __init__(self, member: _Optional[_Union[ClusterMember, _Mapping]] = ..., state: _Optional[str] = ..., blocks: _Optional[int] = ..., free_bytes: _Optional[int] = ..., lag_seconds: _Optional[float] = ..., trouble: _Optional[str] = ...) -> None: ...

class ClusterStatusReply(_message.Message):
    __slots__ = ("node", "peers", "discovery", "problem", "index_blocks", "index_max_blocks", "index_bytes", "index_dropped", "unanswered")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    DISCOVERY_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    INDEX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INDEX_MAX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_DROPPED_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    node: ClusterMember
    peers: _containers.RepeatedCompositeFieldContainer[ClusterPeer]
    discovery: str
    problem: str
    index_blocks: int
    index_max_blocks: int
    index_bytes: int
    index_dropped: int
    unanswered: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[_Union[ClusterMember, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[ClusterPeer, _Mapping]]] = ..., discovery: _Optional[str] = ..., problem: _Optional[str] = ..., index_blocks: _Optional[int] = ..., index_max_blocks: _Optional[int] = ..., index_bytes: _Optional[int] = ..., index_dropped: _Optional[int] = ..., unanswered: _Optional[_Iterable[str]] = ...) -> None: ...
