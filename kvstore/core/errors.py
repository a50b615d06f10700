"""The exception tree of kvstore, and the stable code each error has on the wire.

Everything raised on purpose derives from :class:`KVStoreError`. ``details`` holds machine-readable facts
(``field``, ``got``, ``want`` ...), the message holds the same for people: what is wrong, where, what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class KVStoreError(Exception):
    """Base of every error of kvstore. ``code`` is the number of ``kvstore.v1.ErrorCode``."""

    code: ClassVar[int] = 1

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, str] = {name: str(value) for name, value in details.items()}


class ConfigError(KVStoreError):
    """The configuration is wrong; nothing was started."""

    code = 24


# --- the caller's mistakes: nothing happened, calling again the same way fails the same way ---------------


class InvalidArgument(KVStoreError, ValueError):
    """A value the caller gave cannot be right."""

    code = 2


class WrongBlockSize(InvalidArgument):
    """A buffer does not have the size that the namespace declares for it."""

    code = 3


class BadKey(InvalidArgument):
    """A key is not 16 bytes long, or keys are not a whole number of keys."""

    code = 4


class TooManyKeys(InvalidArgument):
    """One call names more keys than the node accepts."""

    code = 5


class MisalignedRange(InvalidArgument):
    """A byte range does not start and end on chunk boundaries."""

    code = 6


class NamespaceMismatch(InvalidArgument):
    """The namespace differs from the stored one; ``details['fields']`` names the differing fields."""

    code = 12


class UnknownNamespace(InvalidArgument):
    """No namespace has this root or handle."""

    code = 13


class Unsupported(KVStoreError):
    """The node cannot do this as it is configured (an acknowledgement level, a tier, a transport)."""

    code = 14


class Unimplemented(Unsupported):
    """The call is part of the contract, this version does not implement it."""

    code = 15


# --- the other side does not speak our language ------------------------------------------------------------


class ProtocolError(KVStoreError):
    """What arrived is not a valid frame or message. The connection is closed after it."""

    code = 7


class FrameTooLarge(ProtocolError):
    """A frame announces more bytes than the bound."""

    code = 8


class UnknownOp(ProtocolError):
    """The frame names an operation this node does not know."""

    code = 9


class Truncated(ProtocolError):
    """The payload is shorter than announced, or than the operation needs."""

    code = 10


class VersionMismatch(ProtocolError):
    """The two sides share no protocol version."""

    code = 11


# --- the service is in no state to serve: a miss for a cache ----------------------------------------------


class NotServed(KVStoreError):
    """Base of what a cache's user may treat as a miss."""

    code = 18


class NoSpace(NotServed):
    """No room, and none could be made (everything is leased, pinned or being written)."""

    code = 16


class Busy(NotServed):
    """A bound (sessions, leases, queue) is reached. Try later."""

    code = 17


class Unavailable(NotServed):
    """The node cannot be reached, or went away."""

    code = 18


class DeadlineExceeded(NotServed):
    """The call's deadline passed."""

    code = 19


class SessionLost(NotServed):
    """The session ended (node restart, heartbeat missed); its leases and reservations are void."""

    code = 20


class LeaseLost(NotServed):
    """The lease does not exist any more."""

    code = 21


class ChecksumMismatch(NotServed):
    """Bytes failed their check; they were not handed out."""

    code = 22


class Closed(KVStoreError):
    """The client (or store) was closed, or belongs to the parent of a forked process."""

    code = 23


class InternalError(KVStoreError):
    """A bug in the node. Its log has the traceback."""

    code = 1


def _tree(base: type[KVStoreError]) -> list[type[KVStoreError]]:
    found = [base]
    for child in base.__subclasses__():
        found.extend(_tree(child))
    return found


def by_code() -> Mapping[int, type[KVStoreError]]:
    """The most specific class of each wire code."""
    classes: dict[int, type[KVStoreError]] = {}
    for cls in _tree(KVStoreError):
        if cls not in (KVStoreError, NotServed):
            classes.setdefault(cls.code, cls)
    return classes


def from_wire(code: int, message: str, details: Mapping[str, str]) -> KVStoreError:
    """The exception for an error received from a peer. An unknown code gives InternalError."""
    return by_code().get(code, InternalError)(message, **dict(details))
