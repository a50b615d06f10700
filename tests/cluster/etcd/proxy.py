"""A TCP proxy that fails on purpose."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Proxy:
    """Forwards to a port of this machine, and counts the bytes it gives to its clients."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = {"up": threading.Event(), "down": threading.Event()}
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._cut_at: int | None = None
        self._last_request: bytes | None = None
        self.given = 0
        self.cuts = 0
        self.accepted = 0
        self.heal()
        threading.Thread(target=self._accept, daemon=True).start()

    def blackhole(self, up: bool = True, down: bool = True) -> None:
        """Connections stay open and nothing goes through them: ``up`` to the server, ``down`` to the client."""
        if up:
            self._open["up"].clear()
        if down:
            self._open["down"].clear()

    def lose_answers_from(self, request: bytes) -> None:
        """Nothing goes to clients any more from the moment that one of them sends these bytes, which arrive."""
        self._last_request = request

    def heal(self) -> None:
        for gate in self._open.values():
            gate.set()

    def cut(self) -> None:
        """Breaks all connections. New ones are accepted."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for sock in pair:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()

    def cut_after(self, count: int) -> None:
        """Breaks all connections once, when so many more bytes were given to clients."""
        self._cut_at = self.given + count

    def close(self) -> None:
        self._listener.close()
        self.heal()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                try:
                    server = socket.create_connection(("127.0.0.1", self._upstream))
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._pairs.append((client, server))
                for source, target, way in ((client, server, "up"), (server, client, "down")):
                    threading.Thread(target=self._pump, args=(source, target, way), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                if way == "up" and self._last_request is not None and self._last_request in data:
                    self._last_request = None
                    self.blackhole(up=False)
                self._open[way].wait()
                target.sendall(data)
                if way == "down":
                    self._count(len(data))
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _count(self, size: int) -> None:
        self.given += size
        if self._cut_at is not None and self.given >= self._cut_at:
            self._cut_at = None
            self.cuts += 1
            self.cut()


@contextlib.contextmanager
def proxy(address: str) -> Iterator[Proxy]:
    """To a server's "host:port"."""
    running = Proxy(int(address.rpartition(":")[2]))
    try:
        yield running
    finally:
        running.close()
