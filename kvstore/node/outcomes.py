"""Outcomes of a put, one byte a key."""

from __future__ import annotations

from kvstore.v1 import types_pb2 as types

STORED: int = types.PUT_OUTCOME_STORED
PRESENT: int = types.PUT_OUTCOME_PRESENT
CHECKSUM: int = types.PUT_OUTCOME_CHECKSUM
NOT_REPLICATED: int = types.PUT_OUTCOME_NOT_REPLICATED


def merge(outcomes: bytes, written: bytes) -> bytes:
    """Outcomes of all keys, from those of the reservation and, for the keys that were reserved, of the commit."""
    later = iter(written)
    return bytes(next(later) if outcome == STORED else outcome for outcome in outcomes)
