"""Errors on the wire: the message of a frame with the ERROR flag is ``kvstore.v1.Error``."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from kvstore.core.errors import InternalError, KVStoreError, ProtocolError, from_wire
from kvstore.v1 import types_pb2


def encode_error(error: BaseException) -> bytes:
    """The message for an error frame. What is no KVStoreError becomes an InternalError without its text."""
    if not isinstance(error, KVStoreError):
        error = InternalError(f"internal error ({type(error).__name__}); the node's log has the details")
    message = types_pb2.Error(message=error.message, details=error.details)
    message.code = error.code  # type: ignore[assignment]
    return message.SerializeToString()


def decode_error(data: bytes | bytearray) -> KVStoreError:
    """The exception in the message of an error frame."""
    message = types_pb2.Error()
    try:
        message.ParseFromString(bytes(data))
    except DecodeError:
        return ProtocolError("the peer sent an error frame that cannot be decoded")
    return from_wire(message.code, message.message, message.details)
