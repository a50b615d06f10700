"""The NIXL agent of this process for clients: starting one takes half a second, so all sessions share it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstore.core.errors import DeadlineExceeded, KVStoreError, Unavailable
from kvstore.transport.fabric.agent import NixlAgent, always, spans
from kvstore.transport.fabric.arena import Arena, Slab
from kvstore.transport.fabric.library import forked

ARENA_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Fabric:
    """An agent, the only memory of this process that transfers go through, and what a peer needs to read it."""

    agent: NixlAgent
    arena: Arena
    metadata: bytes

    def pull(
        self, peer: str, sources: Sequence[tuple[int, int]], deadline: float, alive: Callable[[], bool] = always
    ) -> Slab:
        """Reads (address, length) places of a peer's memory, one behind the other, into a slab that the caller gives
        back. Raises DeadlineExceeded, Unavailable."""
        lengths = [length for _, length in sources]
        slab = self.arena.take(sum(lengths), deadline)
        try:
            at, into = slab.address, []
            for length in lengths:
                into.append(at)
                at += length
            read = self.agent.read(peer, spans(into, lengths), spans([address for address, _ in sources], lengths))
        except BaseException:
            slab.give_back()
            raise
        try:
            read.wait(deadline, alive)
        except BaseException:
            if read.ended():
                slab.give_back()
            else:
                self.agent.abandon(read, slab.give_back)
            raise
        return slab


def open_fabric(role: str, devices: str, *, progress: bool) -> Fabric:
    """A new agent with an arena. Raises Unsupported, Unavailable. Takes half a second."""
    agent = NixlAgent(role, devices, progress=progress)
    arena = Arena(ARENA_BYTES)
    return Fabric(agent, arena, agent.metadata(agent.register(arena.address, arena.size)))


class _Opening:
    """A fabric that a thread is opening, because NIXL knows no deadline."""

    def __init__(self, devices: str) -> None:
        self._devices = devices
        self._done = threading.Event()
        self._fabric: Fabric | None = None
        self.error: KVStoreError | None = None
        threading.Thread(target=self._open, name="kvstore-nixl", daemon=True).start()

    def _open(self) -> None:
        try:
            # Connections that the node opens to read our memory have to be answered.
            self._fabric = open_fabric("client", self._devices, progress=True)
        except KVStoreError as error:
            self.error = error
        except Exception as error:
            self.error = Unavailable(f"NIXL cannot start: {error}")
        finally:
            self._done.set()

    def result(self, deadline: float) -> Fabric:
        if not self._done.wait(max(0.0, deadline - time.monotonic())):
            raise DeadlineExceeded("NIXL was still starting at the deadline; later calls find it ready")
        if self._fabric is None:
            raise self.error or Unavailable("NIXL cannot start")
        return self._fabric

    @property
    def agent(self) -> NixlAgent | None:
        return self._fabric.agent if self._fabric is not None else None


_lock = threading.Lock()
_openings: dict[str, _Opening] = {}
_inherited: list[_Opening] = []


def client_fabric(devices: str, deadline: float) -> Fabric:
    """This process's fabric over these devices. Raises Unsupported, Unavailable, DeadlineExceeded."""
    if _inherited:
        raise forked("nixl")
    with _lock:
        found = _openings.get(devices)
        if found is None or found.error is not None:
            found = _openings[devices] = _Opening(devices)
    return found.result(deadline)


def _after_fork() -> None:
    """What was inherited is of no use, and must not be destroyed: its threads are not here."""
    global _lock, _openings
    _lock = threading.Lock()
    for opening in _openings.values():
        if opening.agent is not None:
            opening.agent.leak()
        _inherited.append(opening)
    _openings = {}


os.register_at_fork(after_in_child=_after_fork)
