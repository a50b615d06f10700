from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_OK: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_ARGUMENT: _ClassVar[ErrorCode]
    ERROR_CODE_WRONG_BLOCK_SIZE: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_KEY: _ClassVar[ErrorCode]
    ERROR_CODE_TOO_MANY_KEYS: _ClassVar[ErrorCode]
    ERROR_CODE_MISALIGNED_RANGE: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_FRAME: _ClassVar[ErrorCode]
    ERROR_CODE_FRAME_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_OP: _ClassVar[ErrorCode]
    ERROR_CODE_TRUNCATED: _ClassVar[ErrorCode]
    ERROR_CODE_VERSION_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_NAMESPACE_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_NAMESPACE: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED: _ClassVar[ErrorCode]
    ERROR_CODE_UNIMPLEMENTED: _ClassVar[ErrorCode]
    ERROR_CODE_NO_SPACE: _ClassVar[ErrorCode]
    ERROR_CODE_BUSY: _ClassVar[ErrorCode]
    ERROR_CODE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_DEADLINE_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_SESSION_LOST: _ClassVar[ErrorCode]
    ERROR_CODE_LEASE_LOST: _ClassVar[ErrorCode]
    ERROR_CODE_CHECKSUM: _ClassVar[ErrorCode]
    ERROR_CODE_CLOSED: _ClassVar[ErrorCode]
    ERROR_CODE_CONFIG: _ClassVar[ErrorCode]

class AckLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACK_LEVEL_VISIBLE: _ClassVar[AckLevel]
    ACK_LEVEL_REPLICATED: _ClassVar[AckLevel]
    ACK_LEVEL_DURABLE: _ClassVar[AckLevel]

class TierKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_KIND_UNSPECIFIED: _ClassVar[TierKind]
    TIER_KIND_DRAM: _ClassVar[TierKind]
    TIER_KIND_NVME: _ClassVar[TierKind]
    TIER_KIND_HBM: _ClassVar[TierKind]

class PutOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT_OUTCOME_UNSPECIFIED: _ClassVar[PutOutcome]
    PUT_OUTCOME_STORED: _ClassVar[PutOutcome]
    PUT_OUTCOME_PRESENT: _ClassVar[PutOutcome]
    PUT_OUTCOME_PENDING: _ClassVar[PutOutcome]
    PUT_OUTCOME_NO_SPACE: _ClassVar[PutOutcome]
    PUT_OUTCOME_PARENT_MISSING: _ClassVar[PutOutcome]
    PUT_OUTCOME_BUSY: _ClassVar[PutOutcome]
    PUT_OUTCOME_CHECKSUM: _ClassVar[PutOutcome]
    PUT_OUTCOME_NOT_DURABLE: _ClassVar[PutOutcome]
    PUT_OUTCOME_NOT_REPLICATED: _ClassVar[PutOutcome]

class MissReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISS_REASON_UNSPECIFIED: _ClassVar[MissReason]
    MISS_REASON_ABSENT: _ClassVar[MissReason]
    MISS_REASON_PENDING: _ClassVar[MissReason]
    MISS_REASON_PART: _ClassVar[MissReason]
    MISS_REASON_CHECKSUM: _ClassVar[MissReason]
    MISS_REASON_BUSY: _ClassVar[MissReason]
    MISS_REASON_EVICTING: _ClassVar[MissReason]
    MISS_REASON_LOADING: _ClassVar[MissReason]
ERROR_CODE_OK: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_INVALID_ARGUMENT: ErrorCode
ERROR_CODE_WRONG_BLOCK_SIZE: ErrorCode
ERROR_CODE_BAD_KEY: ErrorCode
ERROR_CODE_TOO_MANY_KEYS: ErrorCode
ERROR_CODE_MISALIGNED_RANGE: ErrorCode
ERROR_CODE_BAD_FRAME: ErrorCode
ERROR_CODE_FRAME_TOO_LARGE: ErrorCode
ERROR_CODE_UNKNOWN_OP: ErrorCode
ERROR_CODE_TRUNCATED: ErrorCode
ERROR_CODE_VERSION_MISMATCH: ErrorCode
ERROR_CODE_NAMESPACE_MISMATCH: ErrorCode
ERROR_CODE_UNKNOWN_NAMESPACE: ErrorCode
ERROR_CODE_UNSUPPORTED: ErrorCode
ERROR_CODE_UNIMPLEMENTED: ErrorCode
ERROR_CODE_NO_SPACE: ErrorCode
ERROR_CODE_BUSY: ErrorCode
ERROR_CODE_UNAVAILABLE: ErrorCode
ERROR_CODE_DEADLINE_EXCEEDED: ErrorCode
ERROR_CODE_SESSION_LOST: ErrorCode
ERROR_CODE_LEASE_LOST: ErrorCode
ERROR_CODE_CHECKSUM: ErrorCode
ERROR_CODE_CLOSED: ErrorCode
ERROR_CODE_CONFIG: ErrorCode
ACK_LEVEL_VISIBLE: AckLevel
ACK_LEVEL_REPLICATED: AckLevel
ACK_LEVEL_DURABLE: AckLevel
TIER_KIND_UNSPECIFIED: TierKind
TIER_KIND_DRAM: TierKind
TIER_KIND_NVME: TierKind
TIER_KIND_HBM: TierKind
PUT_OUTCOME_UNSPECIFIED: PutOutcome
PUT_OUTCOME_STORED: PutOutcome
PUT_OUTCOME_PRESENT: PutOutcome
PUT_OUTCOME_PENDING: PutOutcome
PUT_OUTCOME_NO_SPACE: PutOutcome
PUT_OUTCOME_PARENT_MISSING: PutOutcome
PUT_OUTCOME_BUSY: PutOutcome
PUT_OUTCOME_CHECKSUM: PutOutcome
PUT_OUTCOME_NOT_DURABLE: PutOutcome
PUT_OUTCOME_NOT_REPLICATED: PutOutcome
MISS_REASON_UNSPECIFIED: MissReason
MISS_REASON_ABSENT: MissReason
MISS_REASON_PENDING: MissReason
MISS_REASON_PART: MissReason
MISS_REASON_CHECKSUM: MissReason
MISS_REASON_BUSY: MissReason
MISS_REASON_EVICTING: MissReason
MISS_REASON_LOADING: MissReason

class Error(_message.Message):
    __slots__ = ("code", "message", "details")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    details: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ChainSlice(_message.Message):
    __slots__ = ("keys", "parent", "first_block")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    parent: bytes
    first_block: int
    def __init__(self, keys: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., first_block: _Optional[int] = ...) -> None: ...
