"""The way to the node: one session at a time, a new one when it is lost, a back-off when there is none to be had."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kvstore.client.choosing import TransportName, checked, open_transport
from kvstore.client.counters import LOG, Counters, Reporter, Skipped
from kvstore.client.probe import Probe
from kvstore.client.target import Target
from kvstore.core.errors import (
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    KVStoreError,
    SessionLost,
    Unavailable,
)
from kvstore.transport.base import Transport
from kvstore.transport.cancel import cancelled
from kvstore.transport.frame import DEFAULT_LIMITS
from kvstore.transport.late import Silence
from kvstore.transport.wire import Address

T = TypeVar("T")
FIRST_BACKOFF = 0.1
SLOW_BACKOFF = 1.0  # of a node that does not answer, where others do: finding that out again makes readers wait
LONGEST_BACKOFF = 5.0
PROBE_SECONDS = 0.5  # within a back-off: how often a local socket is looked at, or a connection tried
UNBOUNDED = 1 << 62


class Link:
    """Runs actions on the current session. Holds no reference to the Client, so that a forgotten one is collected."""

    def __init__(
        self,
        target: Target,
        transport: TransportName,
        connections: int,
        counters: Counters,
        spare: bool = False,
    ) -> None:
        """``spare``: other nodes can serve what its own does not."""
        self.target = target
        self.counters = counters
        self.reporter = Reporter()
        self._spare = spare
        self._kind = checked(transport)
        self._connections = connections
        self._pid = os.getpid()
        self._closed = False
        self._current: Transport | None = None
        self._boot_ids: dict[Address, bytes] = {}
        self._connecting = threading.Lock()
        self._failures: dict[Address, tuple[float, float]] = {}  # until when it is skipped, and the delay used
        self._probes: dict[Address, Probe] = {}
        self._silences: dict[Address, Silence] = {}  # of nodes that a connection was tried to

    def check_open(self) -> None:
        """Raises Closed."""
        if os.getpid() != self._pid:
            raise Closed(
                f"this Client belongs to process {self._pid}, from which this one was forked; make a new Client here"
            )
        if self._closed:
            raise Closed("the Client is closed")

    def bounds(self) -> tuple[int, int]:
        """Keys and payload bytes that one request may have; a node's defaults before the first session."""
        current = self._current
        if current is None:
            return DEFAULT_LIMITS.max_keys, DEFAULT_LIMITS.max_frame_bytes
        payload = UNBOUNDED if current.capabilities.zero_copy else current.node.max_frame_bytes
        return current.node.max_keys or DEFAULT_LIMITS.max_keys, payload

    def run(self, deadline: float, action: Callable[[Transport], T]) -> T:
        """Runs an action on a session. A session that turns out to be lost is replaced, once.

        Raises what the action raises, or Closed when the Client was closed meanwhile.
        """
        self.check_open()
        transport, fresh = self.session(deadline)
        try:
            return action(transport)
        except KVStoreError as error:
            self._check_wanted()
            if fresh or not self._lost(transport, error):
                self._note(transport, error)
                raise
        transport, _ = self.session(deadline)
        try:
            return action(transport)
        except KVStoreError as error:
            self._check_wanted()
            self._note(transport, error)
            raise

    def _check_wanted(self) -> None:
        """An error that we caused ourselves says nothing about the node. Raises Closed, DeadlineExceeded."""
        self.check_open()
        if cancelled():
            raise DeadlineExceeded("the call was cancelled") from None

    def _lost(self, transport: Transport, error: KVStoreError) -> bool:
        """Whether it was the session that was over, so that a new one may serve the same call."""
        if isinstance(error, (Unavailable, SessionLost)):
            transport.retire()
            return True
        return False

    def _note(self, transport: Transport, error: KVStoreError) -> None:
        """A node that does not answer is not asked again for a while. One late call alone says nothing: other calls
        may have more time."""
        if isinstance(error, DeadlineExceeded) and not transport.silence.hung:
            return
        if isinstance(error, (Unavailable, SessionLost)):
            transport.retire()
        if transport.lost:
            self._failed(transport.address, error)

    @property
    def skipped(self) -> bool:
        """Whether its (one) node failed a moment ago and is left alone."""
        address = self.target.addresses[0]
        until, _ = self._failures.get(address, (0.0, 0.0))
        return time.monotonic() < until and not self._is_back(address)

    @property
    def in_cell(self) -> bool:
        """Whether the node of the current session can get blocks from others."""
        current = self._current
        return current is not None and current.hello.routes

    # --- sessions ----------------------------------------------------------------------------------------

    def session(self, deadline: float) -> tuple[Transport, bool]:
        """The current session, or a new one; whether it is new. Raises NotServed, ProtocolError."""
        current = self._current
        if current is not None and not current.lost:
            return current, False
        if not self._connecting.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise DeadlineExceeded("another thread was still connecting at the deadline")
        try:
            current = self._current
            if current is not None and not current.lost:
                return current, True
            self._current = None
            current = self._connect(deadline)
            if self._closed:
                current.close()
                raise Closed("the Client is closed")
            self._current = current
            return current, True
        finally:
            self._connecting.release()

    def _connect(self, deadline: float) -> Transport:
        failure: KVStoreError | None = None
        for address in self._addresses(deadline):
            until, _ = self._failures.get(address, (0.0, 0.0))
            if time.monotonic() < until and not self._is_back(address):
                failure = failure or Skipped(f"the node at {address} failed and is not tried again yet")
                continue
            began = time.monotonic()
            try:
                transport = self._open(address, deadline)
            except KVStoreError as error:
                if not isinstance(error, DeadlineExceeded) or self._hung(address, began):
                    self._failed(address, error)
                failure = error
                continue
            self._opened(transport)
            return transport
        raise failure or Unavailable(f"the target {self.target.text} has no address")

    def _hung(self, address: Address, began: float) -> bool:
        """Whether it is the node that is late, not the calls that were in a hurry."""
        silence = self._silences.setdefault(address, Silence())
        silence.waited(began)
        if hung := silence.hung:
            silence.failed()
        return hung

    def _is_back(self, address: Address) -> bool:
        """Whether a node that is skipped has come back meanwhile. Cheap: a call must not wait for a dead node."""
        probe = self._probes.get(address)
        return probe is not None and probe.answers()

    def _addresses(self, deadline: float) -> list[Address]:
        wanted = [address for address in self.target.resolved(deadline) if self._kind != "shm" or address.local]
        if not wanted and self._kind == "shm":
            raise InvalidArgument(
                f"transport 'shm' needs the unix socket of a node on this host, not {self.target.text}",
                field="transport",
            )
        return wanted

    def _open(self, address: Address, deadline: float) -> Transport:
        return open_transport(self._kind, address, deadline, self._connections, self.reporter.warn)

    def _opened(self, transport: Transport) -> None:
        self._failures.pop(transport.address, None)
        self._probes.pop(transport.address, None)
        self._silences.pop(transport.address, None)
        self.counters.add("sessions")
        name, boot_id = transport.capabilities.name, transport.node.boot_id
        before = self._boot_ids.get(transport.address)
        if before is None:
            LOG.info("connected to %s by %s (%s)", transport.address, name, transport.node.server)
        elif before != boot_id:
            LOG.warning("the node at %s was restarted; connected again by %s", transport.address, name)
        else:
            LOG.info("connected again to %s by %s", transport.address, name)
        self._boot_ids[transport.address] = boot_id

    def _failed(self, address: Address, error: KVStoreError) -> None:
        _, delay = self._failures.get(address, (0.0, 0.0))
        slow = self._spare and isinstance(error, DeadlineExceeded)
        delay = min(LONGEST_BACKOFF, delay * 2) if delay else SLOW_BACKOFF if slow else FIRST_BACKOFF
        consequence = "other nodes are asked" if self._spare else "everything is a miss"
        self._failures[address] = (time.monotonic() + delay, delay)
        if isinstance(error, Unavailable):  # nobody listens: whoever listens later is news
            self._probes[address] = Probe(address, PROBE_SECONDS)
        else:
            self._probes.pop(address, None)
        self.counters.add("failures")
        self.reporter.warn(
            f"down {address}",
            f"no service from the node at {address}: {error}; {consequence}, next try in {delay:.1f} s",
        )

    def close(self) -> None:
        """Ends the session; calls in progress in other threads end with Closed. Harmless in a forked child."""
        self._closed = True
        current, self._current = self._current, None
        if current is not None and os.getpid() == self._pid:
            current.close()
