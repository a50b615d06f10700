from kvstore.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HelloRequest(_message.Message):
    __slots__ = ("version", "min_version", "client", "shared_memory", "join_session", "node_id", "transport")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    JOIN_SESSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    version: int
    min_version: int
    client: str
    shared_memory: bool
    join_session: bytes
    node_id: bytes
    transport: str
    def __init__(self, version: _Optional[int] = ..., min_version: _Optional[int] = ..., client: _Optional[str] = ..., shared_memory: bool = ..., join_session: _Optional[bytes] = ..., node_id: _Optional[bytes] = ..., transport: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("version", "node_id", "boot_id", "session", "session_index", "lock_dev", "lock_ino", "memory_bytes", "segment_bytes", "heartbeat_ms", "max_frame_bytes", "max_keys", "control_address", "http_address", "server", "routes", "transports", "rdma")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOCK_DEV_FIELD_NUMBER: _ClassVar[int]
    LOCK_INO_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_KEYS_FIELD_NUMBER: _ClassVar[int]
    CONTROL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    RDMA_FIELD_NUMBER: _ClassVar[int]
    version: int
    node_id: bytes
    boot_id: bytes
    session: bytes
    session_index: int
    lock_dev: int
    lock_ino: int
    memory_bytes: int
    segment_bytes: int
    heartbeat_ms: int
    max_frame_bytes: int
    max_keys: int
    control_address: str
    http_address: str
    server: str
    routes: bool
    transports: _containers.RepeatedScalarFieldContainer[str]
    rdma: bool
    def __init__(self, version: _Optional[int] = ..., node_id: _Optional[bytes] = ..., boot_id: _Optional[bytes] = ..., session: _Optional[bytes] = ..., session_index: _Optional[int] = ..., lock_dev: _Optional[int] = ..., lock_ino: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., segment_bytes: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ..., max_frame_bytes: _Optional[int] = ..., max_keys: _Optional[int] = ..., control_address: _Optional[str] = ..., http_address: _Optional[str] = ..., server: _Optional[str] = ..., routes: bool = ..., transports: _Optional[_Iterable[str]] = ..., rdma: bool = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("step",)
    class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STEP_UNSPECIFIED: _ClassVar[AttachRequest.Step]
        STEP_LOCK_FILE: _ClassVar[AttachRequest.Step]
        STEP_READ: _ClassVar[AttachRequest.Step]
        STEP_WRITE: _ClassVar[AttachRequest.Step]
    STEP_UNSPECIFIED: AttachRequest.Step
    STEP_LOCK_FILE: AttachRequest.Step
    STEP_READ: AttachRequest.Step
    STEP_WRITE: AttachRequest.Step
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: AttachRequest.Step
    def __init__(self, step: _Optional[_Union[AttachRequest.Step, str]] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("fds",)
    FDS_FIELD_NUMBER: _ClassVar[int]
    fds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fds: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenNamespaceRequest(_message.Message):
    __slots__ = ("canonical", "root", "strict")
    CANONICAL_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    canonical: bytes
    root: bytes
    strict: bool
    def __init__(self, canonical: _Optional[bytes] = ..., root: _Optional[bytes] = ..., strict: bool = ...) -> None: ...

class OpenNamespaceReply(_message.Message):
    __slots__ = ("handle", "created", "differs", "nearest_root", "part_count")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    DIFFERS_FIELD_NUMBER: _ClassVar[int]
    NEAREST_ROOT_FIELD_NUMBER: _ClassVar[int]
    PART_COUNT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    created: bool
    differs: _containers.RepeatedScalarFieldContainer[str]
    nearest_root: bytes
    part_count: int
    def __init__(self, handle: _Optional[int] = ..., created: bool = ..., differs: _Optional[_Iterable[str]] = ..., nearest_root: _Optional[bytes] = ..., part_count: _Optional[int] = ...) -> None: ...

class MatchRequest(_message.Message):
    __slots__ = ("namespace", "keys", "parts", "request_id")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    keys: bytes
    parts: _containers.RepeatedScalarFieldContainer[int]
    request_id: int
    def __init__(self, namespace: _Optional[int] = ..., keys: _Optional[bytes] = ..., parts: _Optional[_Iterable[int]] = ..., request_id: _Optional[int] = ...) -> None: ...

class TierPrefix(_message.Message):
    __slots__ = ("tier", "blocks")
    TIER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    tier: _types_pb2.TierKind
    blocks: int
    def __init__(self, tier: _Optional[_Union[_types_pb2.TierKind, str]] = ..., blocks: _Optional[int] = ...) -> None: ...

class PartPrefix(_message.Message):
    __slots__ = ("part", "blocks", "present")
    PART_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    part: int
    blocks: int
    present: bytes
    def __init__(self, part: _Optional[int] = ..., blocks: _Optional[int] = ..., present: _Optional[bytes] = ...) -> None: ...

class MatchReply(_message.Message):
    __slots__ = ("blocks", "tiers", "parts", "miss", "remote_blocks")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    REMOTE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    tiers: _containers.RepeatedCompositeFieldContainer[TierPrefix]
    parts: _containers.RepeatedCompositeFieldContainer[PartPrefix]
    miss: _types_pb2.MissReason
    remote_blocks: int
    def __init__(self, blocks: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[TierPrefix, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[PartPrefix, _Mapping]]] = ..., miss: _Optional[_Union[_types_pb2.MissReason, str]] = ..., remote_blocks: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("namespace", "keys", "first_block", "parts", "request_id", "range_offset", "range_length", "max_blocks", "release", "deadline_ms", "whole", "here", "generation", "rotation")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RANGE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RANGE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    keys: bytes
    first_block: int
    parts: _containers.RepeatedScalarFieldContainer[int]
    request_id: int
    range_offset: int
    range_length: int
    max_blocks: int
    release: _containers.RepeatedScalarFieldContainer[int]
    deadline_ms: int
    whole: bool
    here: bool
    generation: int
    rotation: int
    def __init__(self, namespace: _Optional[int] = ..., keys: _Optional[bytes] = ..., first_block: _Optional[int] = ..., parts: _Optional[_Iterable[int]] = ..., request_id: _Optional[int] = ..., range_offset: _Optional[int] = ..., range_length: _Optional[int] = ..., max_blocks: _Optional[int] = ..., release: _Optional[_Iterable[int]] = ..., deadline_ms: _Optional[int] = ..., whole: bool = ..., here: bool = ..., generation: _Optional[int] = ..., rotation: _Optional[int] = ...) -> None: ...

class GetReply(_message.Message):
    __slots__ = ("blocks", "lease", "offsets", "generations", "checksums", "miss", "prefix_blocks", "nodes", "generation", "rotation")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    lease: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    checksums: bytes
    miss: _types_pb2.MissReason
    prefix_blocks: int
    nodes: _containers.RepeatedCompositeFieldContainer[RouteNode]
    generation: int
    rotation: int
    def __init__(self, blocks: _Optional[int] = ..., lease: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., checksums: _Optional[bytes] = ..., miss: _Optional[_Union[_types_pb2.MissReason, str]] = ..., prefix_blocks: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[RouteNode, _Mapping]]] = ..., generation: _Optional[int] = ..., rotation: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, leases: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ("unbroken",)
    UNBROKEN_FIELD_NUMBER: _ClassVar[int]
    unbroken: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, unbroken: _Optional[_Iterable[bool]] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("namespace", "chain", "parts", "request_id", "importance", "ack", "appended_tokens", "deadline_ms", "before")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    APPENDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    chain: _types_pb2.ChainSlice
    parts: _containers.RepeatedScalarFieldContainer[int]
    request_id: int
    importance: bytes
    ack: _types_pb2.AckLevel
    appended_tokens: int
    deadline_ms: int
    before: bytes
    def __init__(self, namespace: _Optional[int] = ..., chain: _Optional[_Union[_types_pb2.ChainSlice, _Mapping]] = ..., parts: _Optional[_Iterable[int]] = ..., request_id: _Optional[int] = ..., importance: _Optional[bytes] = ..., ack: _Optional[_Union[_types_pb2.AckLevel, str]] = ..., appended_tokens: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., before: _Optional[bytes] = ...) -> None: ...

class ReserveReply(_message.Message):
    __slots__ = ("reservation", "outcomes", "offsets", "generations")
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    reservation: int
    outcomes: bytes
    offsets: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, reservation: _Optional[int] = ..., outcomes: _Optional[bytes] = ..., offsets: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("reservation", "range_offset", "range_length", "first_block", "addresses", "deadline_ms")
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    RANGE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RANGE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    reservation: int
    range_offset: int
    range_length: int
    first_block: int
    addresses: _containers.RepeatedScalarFieldContainer[int]
    deadline_ms: int
    def __init__(self, reservation: _Optional[int] = ..., range_offset: _Optional[int] = ..., range_length: _Optional[int] = ..., first_block: _Optional[int] = ..., addresses: _Optional[_Iterable[int]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class WriteReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("reservation", "checksums", "ack", "deadline_ms")
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    reservation: int
    checksums: bytes
    ack: _types_pb2.AckLevel
    deadline_ms: int
    def __init__(self, reservation: _Optional[int] = ..., checksums: _Optional[bytes] = ..., ack: _Optional[_Union[_types_pb2.AckLevel, str]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("stored", "outcomes")
    STORED_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    stored: int
    outcomes: bytes
    def __init__(self, stored: _Optional[int] = ..., outcomes: _Optional[bytes] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("reservation",)
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    reservation: int
    def __init__(self, reservation: _Optional[int] = ...) -> None: ...

class AbortReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("namespace", "chain", "parts", "request_id", "importance", "ack", "appended_tokens", "deadline_ms", "before")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    APPENDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    chain: _types_pb2.ChainSlice
    parts: _containers.RepeatedScalarFieldContainer[int]
    request_id: int
    importance: bytes
    ack: _types_pb2.AckLevel
    appended_tokens: int
    deadline_ms: int
    before: bytes
    def __init__(self, namespace: _Optional[int] = ..., chain: _Optional[_Union[_types_pb2.ChainSlice, _Mapping]] = ..., parts: _Optional[_Iterable[int]] = ..., request_id: _Optional[int] = ..., importance: _Optional[bytes] = ..., ack: _Optional[_Union[_types_pb2.AckLevel, str]] = ..., appended_tokens: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., before: _Optional[bytes] = ...) -> None: ...

class PutReply(_message.Message):
    __slots__ = ("stored", "outcomes")
    STORED_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    stored: int
    outcomes: bytes
    def __init__(self, stored: _Optional[int] = ..., outcomes: _Optional[bytes] = ...) -> None: ...

class EvictKeysRequest(_message.Message):
    __slots__ = ("namespace", "keys")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    keys: bytes
    def __init__(self, namespace: _Optional[int] = ..., keys: _Optional[bytes] = ...) -> None: ...

class EvictKeysReply(_message.Message):
    __slots__ = ("evicted", "leased", "absent")
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    evicted: int
    leased: int
    absent: int
    def __init__(self, evicted: _Optional[int] = ..., leased: _Optional[int] = ..., absent: _Optional[int] = ...) -> None: ...

class PinKeysRequest(_message.Message):
    __slots__ = ("namespace", "keys", "hard", "ttl_seconds")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HARD_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    keys: bytes
    hard: bool
    ttl_seconds: float
    def __init__(self, namespace: _Optional[int] = ..., keys: _Optional[bytes] = ..., hard: bool = ..., ttl_seconds: _Optional[float] = ...) -> None: ...

class PinKeysReply(_message.Message):
    __slots__ = ("pinned",)
    PINNED_FIELD_NUMBER: _ClassVar[int]
    pinned: int
    def __init__(self, pinned: _Optional[int] = ...) -> None: ...

class UnpinKeysRequest(_message.Message):
    __slots__ = ("namespace", "keys")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    keys: bytes
    def __init__(self, namespace: _Optional[int] = ..., keys: _Optional[bytes] = ...) -> None: ...

class UnpinKeysReply(_message.Message):
    __slots__ = ("unpinned",)
    UNPINNED_FIELD_NUMBER: _ClassVar[int]
    unpinned: int
    def __init__(self, unpinned: _Optional[int] = ...) -> None: ...

class RotateRequest(_message.Message):
    __slots__ = ("namespace", "deadline_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    deadline_ms: int
    def __init__(self, namespace: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class RotateReply(_message.Message):
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

class PrefetchKeysRequest(_message.Message):
    __slots__ = ("namespace", "keys", "tier", "parts", "deadline_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    keys: bytes
    tier: _types_pb2.TierKind
    parts: _containers.RepeatedScalarFieldContainer[int]
    deadline_ms: int
    def __init__(self, namespace: _Optional[int] = ..., keys: _Optional[bytes] = ..., tier: _Optional[_Union[_types_pb2.TierKind, str]] = ..., parts: _Optional[_Iterable[int]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class PrefetchKeysReply(_message.Message):
    __slots__ = ("started", "present", "absent")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    started: int
    present: int
    absent: int
    def __init__(self, started: _Optional[int] = ..., present: _Optional[int] = ..., absent: _Optional[int] = ...) -> None: ...

class PingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PingReply(_message.Message):
    __slots__ = ("boot_id",)
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    boot_id: bytes
    def __init__(self, boot_id: _Optional[bytes] = ...) -> None: ...

class ByeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ByeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ("namespace", "keys", "place", "block_bytes", "host", "parts")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    keys: bytes
    place: bool
    block_bytes: int
    host: str
    parts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, namespace: _Optional[int] = ..., keys: _Optional[bytes] = ..., place: bool = ..., block_bytes: _Optional[int] = ..., host: _Optional[str] = ..., parts: _Optional[_Iterable[int]] = ...) -> None: ...

class RouteNode(_message.Message):
    __slots__ = ("node_id", "data_address", "blocks")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    node_id: bytes
    data_address: str
    blocks: int
    def __init__(self, node_id: _Optional[bytes] = ..., data_address: _Optional[str] = ..., blocks: _Optional[int] = ...) -> None: ...

class RouteRun(_message.Message):
    __slots__ = ("node", "first", "end")
    NODE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    node: int
    first: int
    end: int
    def __init__(self, node: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class RouteReply(_message.Message):
    __slots__ = ("nodes", "runs", "generation", "rotation")
    NODES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[RouteNode]
    runs: _containers.RepeatedCompositeFieldContainer[RouteRun]
    generation: int
    rotation: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[RouteNode, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[RouteRun, _Mapping]]] = ..., generation: _Optional[int] = ..., rotation: _Optional[int] = ...) -> None: ...

class FabricRequest(_message.Message):
    __slots__ = ("address", "tag")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    address: bytes
    tag: int
    def __init__(self, address: _Optional[bytes] = ..., tag: _Optional[int] = ...) -> None: ...

class FabricReply(_message.Message):
    __slots__ = ("address", "tag", "memory_address", "memory_bytes")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    MEMORY_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    address: bytes
    tag: int
    memory_address: int
    memory_bytes: int
    def __init__(self, address: _Optional[bytes] = ..., tag: _Optional[int] = ..., memory_address: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...
