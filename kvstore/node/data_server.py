"""The data path's server: accepts connections on the unix socket and TCP, a blocking thread for each."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from pathlib import Path

from kvstore.core.errors import Busy, KVStoreError, ProtocolError, Truncated, Unavailable
from kvstore.node.config import NodeConfig
from kvstore.node.handlers import Handlers
from kvstore.node.lane import Lane, Reply, closes, request_id_of
from kvstore.node.listen import listen_tcp, listen_unix, remove_unix
from kvstore.node.logs import Seldom
from kvstore.node.metrics import DRAM, NONE, NodeMetrics
from kvstore.node.replies import code_name
from kvstore.node.sessions import Sessions
from kvstore.node.units import Address
from kvstore.transport.frame import Header, Limits, Op

_log = logging.getLogger(__name__)
_WATCH_SECONDS = 0.5
_REFUSERS = 16  # threads that tell connections beyond the bound so; further ones are just closed
_NO_PAYLOAD = frozenset(Op) - {Op.PUT, Op.WRITE}


class DataServer:
    """Listens from construction on, serves from :meth:`start` on. Raises what :mod:`kvstore.node.listen` raises."""

    def __init__(self, config: NodeConfig, handlers: Handlers, sessions: Sessions, metrics: NodeMetrics) -> None:
        self._config = config
        self._handlers = handlers
        self._sessions = sessions
        self._metrics = metrics
        self._limits = Limits(max_frame_bytes=config.max_frame_bytes, max_keys=config.max_keys)
        self._lock = threading.Lock()
        self._lanes: set[Lane] = set()
        self._seldom = Seldom(_log)
        self._refusing = threading.BoundedSemaphore(_REFUSERS)
        self._stopping = threading.Event()
        self._acceptors: list[threading.Thread] = []
        self._listeners: dict[str, socket.socket] = {}
        self.address: Address | None = None
        self.socket: Path | None = None
        try:
            self._listen()
        except BaseException:
            self._close_listeners()
            raise

    def _listen(self) -> None:
        if self._config.socket is not None:
            self._listeners["unix"] = listen_unix(self._config.socket, self._config.socket_mode)
            self.socket = self._config.socket
            self._socket_inode = os.stat(self.socket).st_ino
        if self._config.data_address is not None:
            sock = listen_tcp(self._config.data_address, "data_address")
            self._listeners["tcp"] = sock
            self.address = Address(self._config.data_address.host, sock.getsockname()[1])

    def start(self) -> None:
        """Begins to accept."""
        for transport, listener in self._listeners.items():
            self._spawn(f"accept-{transport}", self._accept, listener, transport, keep=True)
        self._spawn("watch", self._watch, keep=True)

    def stop(self, grace: float) -> None:
        """No new connections and requests; those in progress get ``grace`` seconds, then their connections close."""
        self._stopping.set()
        self._close_listeners()
        end = time.monotonic() + grace
        for lane in self._living():
            lane.end_when_idle()
        self._join(end)
        for lane in self._living():
            lane.cut("shutdown")
        self._join(time.monotonic() + 1.0)
        for thread in self._acceptors:
            thread.join(1.0)

    @property
    def connections(self) -> int:
        return len(self._lanes)

    # --- accepting ------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, transport: str) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if self._stopping.is_set():
                    return
                _log.warning("accepting on %s failed: %s", transport, error)  # out of descriptors, most likely
                time.sleep(0.2)
                continue
            try:
                self._admit(sock, transport)
            except RuntimeError as error:  # no more threads
                _log.warning("a connection on %s was not served: %s", transport, error)
                sock.close()

    def _admit(self, sock: socket.socket, transport: str) -> None:
        if transport == "tcp":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lane = Lane(sock, transport, self._limits, self._config.peer_timeout, self._metrics.tally(transport))
        with self._lock:
            room = len(self._lanes) < self._config.max_connections and not self._stopping.is_set()
            if room:
                self._lanes.add(lane)
        self._metrics.count("connection" if room else "refused", transport)
        if room:
            try:
                self._spawn(f"lane-{lane.number}", self._serve, lane)
            except RuntimeError:
                self._forget(lane)
                raise
        elif self._refusing.acquire(blocking=False):
            self._spawn("refuse", self._refuse, lane)
        else:
            self._forget(lane)

    def _refuse(self, lane: Lane) -> None:
        """Reads the first request, so that the answer names it, and says that the node is full."""
        try:
            lane.sock.settimeout(1.0)
            header = lane.next_header()
            if header is not None:
                lane.read_message(header)
                self._metrics.error(code_name(self._full()), self._full())
                self._seldom.warn("full", str(self._full()))
                lane.send_error(header.op, self._full(), header.request_id)
                lane.linger()
        except KVStoreError:
            pass
        finally:
            self._refusing.release()
            self._forget(lane)

    def _full(self) -> Busy:
        return Busy(
            f"the node has its {self._config.max_connections} connections; try later, or raise max_connections",
            want=self._config.max_connections,
            bound="max_connections",
        )

    # --- serving --------------------------------------------------------------------------------------------

    def _serve(self, lane: Lane) -> None:
        try:
            while not self._stopping.is_set() and self._next(lane):
                lane.idle()
        except (Unavailable, Truncated) as error:
            _log.debug("lane %d (%s) lost: %s", lane.number, lane.transport, error)
        except Exception:
            _log.exception("lane %d failed", lane.number)
        finally:
            if lane.cut_cause:
                self._metrics.count("cut", lane.cut_cause)
            self._sessions.leave(lane)
            self._forget(lane)

    def _next(self, lane: Lane) -> bool:
        """Serves one request. False: the connection is to be closed."""
        try:
            header = lane.next_header()
        except ProtocolError as error:
            self._fail(lane, Op.HELLO, error, request_id_of(error))  # an op that every client can parse
            lane.linger()
            return False
        if header is None:
            return False
        return self._request(lane, header)

    def _request(self, lane: Lane, header: Header) -> bool:
        start = time.perf_counter()
        sent = 0
        try:
            message = lane.read_message(header)
            if header.payload_len and header.op in _NO_PAYLOAD:
                raise ProtocolError(f"op {header.op.name} takes no payload, the frame has {header.payload_len} bytes")
            reply = self._handlers.handle(lane, header.op, message)
        except Unavailable:
            raise
        except Exception as error:
            return self._answer_error(lane, header, error, start)
        sent = self._answer(lane, header, reply)
        self._count(lane, header, reply, time.perf_counter() - start, sent)
        self._handlers.after()
        return header.op is not Op.BYE

    def _count(self, lane: Lane, header: Header, reply: Reply, seconds: float, sent: int) -> None:
        if header.op is Op.HELLO:
            lane.tally.transport = lane.carrier
        taken, given = header.payload_len + reply.taken, sent + reply.given
        tier = reply.tier or (DRAM if taken or given else NONE)
        lane.tally.request(header.op, seconds, taken, given, tier)
        if reply.damaged:
            self._metrics.count("damaged", lane.tally.transport, reply.damaged)

    def _answer(self, lane: Lane, header: Header, reply: Reply) -> int:
        try:
            return 0 if header.one_way else lane.send(header.op, reply, header.request_id)
        finally:
            reply.sent()

    def _answer_error(self, lane: Lane, header: Header, error: Exception, start: float) -> bool:
        """Answers an error; the payload that nobody wanted is read first, so that the stream stays in step."""
        if not isinstance(error, KVStoreError):
            _log.error("%s failed", header.op.name, exc_info=error)
        in_step = not closes(error) and lane.drain()
        if header.one_way:  # nobody waits for an answer
            self._metrics.error(code_name(error), error)
        else:
            self._fail(lane, header.op, error, header.request_id)
        lane.tally.request(header.op, time.perf_counter() - start, header.payload_len - lane.payload_left, 0)
        if not in_step:
            lane.linger()
        return in_step

    def _fail(self, lane: Lane, op: int, error: Exception, request_id: int) -> None:
        self._metrics.error(code_name(error), error)
        if isinstance(error, ProtocolError) or (isinstance(error, Busy) and op == Op.HELLO):
            self._seldom.warn(code_name(error), f"a client on {lane.transport} was refused: {error}")
        with contextlib.suppress(Unavailable):
            lane.send_error(op, error, request_id)

    # --- ending ---------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Cuts peers that stall within a request, and network sessions that have fallen silent."""
        while not self._stopping.wait(min(_WATCH_SECONDS, self._config.heartbeat, self._config.peer_timeout)):
            now = time.monotonic()
            for lane in self._living():
                if lane.deadline < now:
                    lane.cut("stalled")
            for session in self._sessions.silent(3 * self._config.heartbeat):
                self._sessions.expire(session, "silent")

    def _living(self) -> list[Lane]:
        with self._lock:
            return list(self._lanes)

    def _forget(self, lane: Lane) -> None:
        lane.close()
        self._metrics.retire(lane.tally)
        with self._lock:
            self._lanes.discard(lane)

    def _join(self, end: float) -> None:
        while self._living() and time.monotonic() < end:
            time.sleep(0.01)

    def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
            listener.close()
        if self.socket is not None:
            remove_unix(self.socket, self._socket_inode)

    def _spawn(self, name: str, run, *args, keep: bool = False) -> threading.Thread:  # type: ignore[no-untyped-def]
        thread = threading.Thread(target=run, args=args, name=name, daemon=True)
        if keep:
            self._acceptors.append(thread)
        thread.start()
        return thread
