"""What the HBM tier asks of an accelerator: one allocation, copies in order on streams, events to wait for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple


class DeviceError(OSError):
    """The device refused or failed: out of memory, a copy that did not end well."""


class Allocation(NamedTuple):
    """Memory of a device. ``handle`` means something to that device only; the host cannot look at it."""

    handle: int
    bytes: int


class Event(ABC):
    """A point in a stream: reached when everything queued before it has ended."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is reached, at most ``timeout`` seconds; whether it is. Raises DeviceError when a copy before
        it failed."""


class Stream(ABC):
    """Copies that run one after the other, beside those of other streams. Host buffers belong to the stream until an
    event recorded after them is reached. Used by one thread at a time."""

    @abstractmethod
    def copy_in(self, target: Allocation, offset: int, source: memoryview) -> None:
        """Queues a copy of host bytes to ``offset`` bytes after the start of ``target``."""

    @abstractmethod
    def copy_out(self, source: Allocation, offset: int, target: memoryview) -> None:
        """Queues a copy from ``offset`` bytes after the start of ``source`` to writable host bytes."""

    @abstractmethod
    def record(self) -> Event:
        """An event after everything queued so far."""

    @abstractmethod
    def close(self) -> None:
        """Waits for what is queued, then lets go of the stream."""


class Device(ABC):
    """One accelerator."""

    name: ClassVar[str]

    @abstractmethod
    def allocate(self, size: int) -> Allocation:
        """``size`` bytes of its memory, content undefined. Raises DeviceError when there is not that much."""

    @abstractmethod
    def free(self, memory: Allocation) -> None:
        """Gives an allocation back; no stream uses it any more."""

    @abstractmethod
    def stream(self) -> Stream:
        """A new stream."""
