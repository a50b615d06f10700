"""A device made of host memory: as asynchronous and as closed as a real one, for tests and machines without any."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import column
from kvstore.tiers.hbm.device import Allocation, Device, DeviceError, Event, Stream

_Bytes = npt.NDArray[np.uint8]
_Job = Callable[[], None]


class _HostEvent(Event):
    def __init__(self) -> None:
        self.reached = threading.Event()
        self.error: BaseException | None = None

    def wait(self, timeout: float | None = None) -> bool:
        if not self.reached.wait(timeout):
            return False
        if self.error is not None:
            raise DeviceError(errno.EIO, f"a copy before this event failed: {self.error}") from self.error
        return True


class _HostStream(Stream):
    """A thread that runs what is queued. After a failure the next event says so."""

    def __init__(self, memory: Callable[[Allocation, int, int], _Bytes]) -> None:
        self._memory = memory
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="host-device", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                self._error = error

    def copy_in(self, target: Allocation, offset: int, source: memoryview) -> None:
        there, here = self._memory(target, offset, source.nbytes), np.frombuffer(source, np.uint8)
        self._jobs.put(lambda: np.copyto(there, here))

    def copy_out(self, source: Allocation, offset: int, target: memoryview) -> None:
        there, here = self._memory(source, offset, target.nbytes), np.frombuffer(target, np.uint8)
        self._jobs.put(lambda: np.copyto(here, there))

    def record(self) -> Event:
        event = _HostEvent()

        def reach() -> None:
            event.error, self._error = self._error, None
            event.reached.set()

        self._jobs.put(reach)
        return event

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()


class HostMemoryDevice(Device):
    """``capacity`` bytes in all. Nothing but its streams can reach the memory."""

    name: ClassVar[str] = "host memory"

    def __init__(self, capacity: int) -> None:
        self._left = capacity
        self._lock = threading.Lock()
        self._memory: dict[int, _Bytes] = {}
        self._last = 0

    def allocate(self, size: int) -> Allocation:
        with self._lock:
            if size > self._left:
                raise DeviceError(errno.ENOMEM, f"{size} bytes wanted, the device has {self._left} left")
            self._left -= size
            self._last += 1
            self._memory[self._last] = column(size, np.uint8)
            return Allocation(self._last, size)

    def free(self, memory: Allocation) -> None:
        with self._lock:
            if self._memory.pop(memory.handle, None) is None:
                raise DeviceError(errno.EINVAL, "freed twice, or never allocated here")
            self._left += memory.bytes

    def stream(self) -> Stream:
        return _HostStream(self._range)

    def _range(self, memory: Allocation, offset: int, length: int) -> _Bytes:
        found = self._memory.get(memory.handle)
        if found is None or not 0 <= offset <= offset + length <= memory.bytes:
            raise DeviceError(errno.EFAULT, f"bytes {offset} to {offset + length} are not in this allocation")
        return found[offset : offset + length]
