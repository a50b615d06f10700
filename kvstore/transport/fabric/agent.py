"""A NIXL agent: registered memory, peers, and one-sided reads whose every wait has a deadline.

Only READ is ever asked for. Calls go to NIXL's bindings, because its Python class cannot set how long the progress
thread sleeps: at its default that thread takes a whole core, here it sleeps until something arrives.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import DeadlineExceeded, Unavailable
from kvstore.transport.fabric.library import load_nixl

_SLEEP_US = 100_000  # of the progress thread, unless something arrives
_SPIN = 0.0002  # seconds a read is looked at without sleeping
_NAPS = (0.00005, 0.001)  # seconds between looks after that: at first, at last
Spans = npt.NDArray[np.uint64]  # rows of address, length, device


def spans(addresses: Sequence[int], lengths: Sequence[int]) -> Spans:
    """Places in host memory, as NIXL takes them."""
    rows = np.zeros((len(addresses), 3), dtype=np.uint64)
    rows[:, 0], rows[:, 1] = addresses, lengths
    return rows


class _Stopped:
    """In place of an agent that is gone."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("NIXL was stopped: the process ends")


def always() -> bool:
    return True


def _options(devices: str) -> dict[str, str]:
    """Of the backend. A list goes into another option than a single device, and without port 1, which that adds."""
    if not devices or "UCX_NET_DEVICES" in os.environ:
        return {}
    if "," in devices:
        return {"device_list": ",".join(device.removesuffix(":1") for device in devices.split(","))}
    return {"engine_config": f"NET_DEVICES={devices}"}


class NixlAgent:
    """Safe for threads. ``progress``: answer peers that cannot reach our memory without us (TCP) from a thread."""

    def __init__(self, role: str, devices: str = "", *, progress: bool = True) -> None:
        """``devices``: network devices in UCX's words ("lo", "mlx5_0:1"); empty: all, or what UCX_NET_DEVICES says.

        Raises Unsupported (not installed), Unavailable (no transport works).
        """
        self._nixl = nixl = load_nixl()
        config = nixl.nixlAgentConfig()
        config.useProgThread, config.pthrDelay = progress, _SLEEP_US
        config.syncMode = nixl.NIXL_THREAD_SYNC_STRICT
        self.name = f"kvstore-{role}-{uuid.uuid4().hex}"
        try:
            self._agent = nixl.nixlAgent(self.name, config)
            self._agent.createBackend("UCX", _options(devices))
        except Exception as error:  # what NIXL raises has no common base
            raise Unavailable(
                f"NIXL cannot start ({type(error).__name__}); UCX_LOG_LEVEL=diag tells why no device of "
                f"{os.environ.get('UCX_NET_DEVICES') or devices or 'this host'} works"
            ) from error
        self._pid = os.getpid()
        atexit.register(self.stop)
        self._lock = threading.Lock()
        self._peers: Counter[str] = Counter()
        self._abandoned: list[tuple[Read, Callable[[], None]]] = []  # and what is called at the end of each

    # --- memory ------------------------------------------------------------------------------------------

    def register(self, address: int, size: int) -> Any:
        """Registers host memory, to read into and for peers to read. Raises Unavailable."""
        try:
            listed = self._nixl.nixlRegDList(self._nixl.DRAM_SEG, spans([address], [size]))
            self._agent.registerMem(listed, [])
        except Exception as error:
            raise Unavailable(
                f"{size} bytes cannot be registered ({type(error).__name__}); with RDMA devices the limit on locked "
                "memory (ulimit -l) must be above that"
            ) from error
        return listed

    def metadata(self, registration: Any) -> bytes:
        """What a peer needs to read this registration's memory, and no other."""
        return bytes(self._agent.getLocalPartialMD(registration, True, []))

    # --- peers -------------------------------------------------------------------------------------------

    def add_peer(self, metadata: bytes) -> str:
        """Its name. Every call needs a :meth:`remove_peer`. Raises Unavailable."""
        with self._lock:
            try:
                name = str(_text(self._agent.loadRemoteMD(metadata)))
            except Exception as error:
                raise Unavailable(f"the peer's fabric address is of no use here ({type(error).__name__})") from error
            self._peers[name] += 1
        return name

    def remove_peer(self, name: str) -> None:
        """With the last one that added it the connections to a peer are closed."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._peers[name] -= 1
            if self._peers[name] > 0:
                return
            del self._peers[name]
            with contextlib.suppress(Exception):  # it may be gone already
                self._agent.invalidateRemoteMD(name)

    # --- reads -------------------------------------------------------------------------------------------

    def read(self, peer: str, into: Spans, source: Spans) -> Read:
        """Begins to read. Raises Unavailable (the peer is gone)."""
        nixl = self._nixl
        self._tidy()
        local = nixl.nixlXferDList(nixl.DRAM_SEG, into)
        remote = nixl.nixlXferDList(nixl.DRAM_SEG, source)
        try:
            handle = self._agent.createXferReq(nixl.NIXL_READ, local, remote, peer, "", [])
        except Exception as error:
            raise Unavailable(f"the peer's memory cannot be read ({type(error).__name__})") from error
        return Read(nixl, self._agent, handle)

    def abandon(self, read: Read, ended: Callable[[], None]) -> None:
        """``read`` is overdue; calls ``ended`` when nothing writes to its memory any more."""
        with self._lock:
            self._abandoned.append((read, ended))

    def _tidy(self) -> None:
        if not self._abandoned:
            return
        with self._lock:
            ended = [pair for pair in self._abandoned if pair[0].ended()]
            self._abandoned = [pair for pair in self._abandoned if pair not in ended]
        for _, tell in ended:
            tell()

    def stop(self) -> None:
        """At the end of the process: its thread ends before the libraries that it runs in are torn down."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            for name in self._peers:
                with contextlib.suppress(Exception):
                    self._agent.invalidateRemoteMD(name)
            self._peers.clear()
            self._agent = _Stopped()

    def leak(self) -> None:
        """Makes sure that it is never destroyed: in a forked child that would wait for threads that are not there."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._agent))


class Read:
    """One transfer in progress. For one thread."""

    def __init__(self, nixl: Any, agent: Any, handle: int) -> None:
        self._nixl = nixl
        self._agent = agent
        self._handle = handle
        self._open = True
        try:
            self._state = agent.postXferReq(handle, b"")
        except Exception as error:
            self._release()
            raise Unavailable(f"the peer's memory cannot be read ({type(error).__name__})") from error

    def ended(self) -> bool:
        """Whether nothing writes to its memory any more."""
        if self._open and self._state == self._nixl.NIXL_IN_PROG:
            try:
                self._state = self._agent.getXferStatus(self._handle)
            except Exception:  # it failed, which is an end as well
                self._state = self._nixl.NIXL_ERR_BACKEND
        if self._open and self._state != self._nixl.NIXL_IN_PROG:
            self._release()
        return not self._open

    def wait(self, deadline: float, alive: Callable[[], bool] = always) -> None:
        """Until the bytes are here. Raises Unavailable (also once ``alive`` says no) and DeadlineExceeded: what has
        not :meth:`ended` then is to be abandoned."""
        began, nap = time.monotonic(), _NAPS[0]
        while not self.ended():
            now = time.monotonic()
            if now >= deadline:
                raise DeadlineExceeded("the deadline passed while the peer's memory was read")
            if now - began > _SPIN:
                if not alive():
                    raise Unavailable("the peer went away while its memory was read")
                time.sleep(nap)
                nap = min(2 * nap, _NAPS[1])
        if self._state != self._nixl.NIXL_SUCCESS:
            raise Unavailable("the peer went away while its memory was read")

    def _release(self) -> None:
        self._open = False
        with contextlib.suppress(Exception):
            self._agent.releaseXferReq(self._handle)


def _text(name: Any) -> Any:
    return name.decode() if isinstance(name, bytes) else name
