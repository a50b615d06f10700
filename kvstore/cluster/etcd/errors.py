"""What a failed call to etcd means, and what to do about it."""

from __future__ import annotations

from enum import Enum, auto

import grpc

from kvstore.core.errors import ConfigError, Unavailable


class EtcdUnavailable(Unavailable):
    """No endpoint answered in time. Whether a write took place is not known."""


class TokenRefused(EtcdUnavailable):
    """The token is not known, or not any more: nothing took place, a new one may help."""


class EtcdRefused(ConfigError):
    """etcd answered, and will not do this: credentials, permissions, limits."""


class LeaseGone(Unavailable):
    """The lease ran out, by etcd's word or by our clock."""


class HistoryLost(Unavailable):
    """The events asked for are compacted away, or etcd's history was replaced: list all keys again."""


class Remedy(Enum):
    """What may help after a failed call."""

    OTHER_ENDPOINT = auto()
    NEW_TOKEN = auto()
    NEW_LEASE = auto()
    NONE = auto()


_OTHER_ENDPOINT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


def remedy(code: grpc.StatusCode, details: str) -> Remedy:
    """By status and etcd's text."""
    if code is grpc.StatusCode.UNAUTHENTICATED or "revision of auth store is old" in details:
        return Remedy.NEW_TOKEN
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in details:
        return Remedy.NEW_LEASE
    return Remedy.OTHER_ENDPOINT if code in _OTHER_ENDPOINT else Remedy.NONE
