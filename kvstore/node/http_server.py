"""HTTP for people and machines that watch a node: /metrics, /health, /livez, /startupz, /readyz and an index."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from kvstore.node.units import Address

_log = logging.getLogger(__name__)
_REQUEST_SECONDS = 10.0  # a client that dribbles its request does not hold a thread longer


@dataclass(frozen=True, slots=True)
class Page:
    """A reply: status, content type, body."""

    status: int
    content_type: str
    body: bytes


def text(status: int, body: str) -> Page:
    """A page of plain text."""
    return Page(status, "text/plain; charset=utf-8", body.encode())


def json_page(value: object, status: int = 200) -> Page:
    """A page of JSON."""
    return Page(status, "application/json", (json.dumps(value, indent=1) + "\n").encode())


Routes = Mapping[str, Callable[[], Page]]


class HttpServer:
    """Serves pages by path. At most ``limit`` requests are worked on; ``refused`` is told of each one answered 503."""

    def __init__(
        self, address: Address, routes: Routes, limit: int, refused: Callable[[], None] = lambda: None
    ) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._server = _server_class(family)((address.host, address.port), _handler(routes))
        self._server.slots = threading.BoundedSemaphore(limit)
        self._server.refused = refused
        self.address = Address(address.host, self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops accepting and closes the port. Requests in progress run on in daemon threads."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    allow_reuse_port = False  # two nodes on one port must not both start
    block_on_close = False
    request_queue_size = 64
    slots: threading.BoundedSemaphore
    refused: Callable[[], None]

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own asks the name service for this host's name

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.slots.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:  # no more threads
                self.slots.release()
                raise
            return
        self.refused()
        request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n")
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("http request failed", exc_info=True)


def _server_class(family: int) -> type[_Server]:
    return type("_FamilyServer", (_Server,), {"address_family": family})


def _handler(routes: Routes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_SECONDS
        server_version = "kvstore"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, body: bool) -> None:
            path = self.path.partition("?")[0]
            if path == "/" and "text/html" in self.headers.get("Accept", ""):  # a browser
                path = "/status"
            page = _page(routes, path)
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            if body:
                self.wfile.write(page.body)

        def log_message(self, format: str, *args: Any) -> None:
            _log.debug("http %s", format % args)

    return Handler


def _page(routes: Routes, path: str) -> Page:
    route = routes.get(path)
    if route is None:
        return text(404, f"no page {path}; there are {' '.join(sorted(routes))}\n")
    try:
        return route()
    except Exception:
        _log.exception("page %s failed", path)
        return text(500, "internal error; the node's log has the details\n")
