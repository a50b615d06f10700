"""A router in front of a prefill and a decode server, as small as one can be: the convention of vLLM's own proxies.

Each request goes to the prefill server first, for one token and with ``do_remote_decode``; the ``kv_transfer_params``
of its answer go with the unchanged request to the decode server, whose answer is passed on as it comes."""

from __future__ import annotations

import http.client
import http.server
import json
import threading
import uuid
from typing import Any

# What vLLM's proxies send to the prefill server; a connector that does not need a field must not mind it.
ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
PREFILL = {"stream": False, "max_tokens": 1, "kv_transfer_params": ASK}
DECODE_ONLY = ("stream_options", "min_tokens", "max_completion_tokens")  # make no sense for one token


def post(port: int, path: str, body: dict[str, Any], request_id: str = "") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if request_id:
        headers["X-Request-Id"] = request_id
    connection.request("POST", path, json.dumps(body), headers)
    return connection.getresponse()


class Proxy:
    """``handed_over``: the ``kv_transfer_params`` of each request so far."""

    def __init__(self, prefill: int, decode: int) -> None:
        self.prefill, self.decode = prefill, decode
        self.handed_over: list[dict[str, Any]] = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = proxy.route(self.path, body)
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.end_headers()
                while piece := answer.read1(1 << 16):
                    self.wfile.write(piece)

            def log_message(self, format: str, *args: Any) -> None:
                return

        return Handler

    def route(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        request_id = str(uuid.uuid4())
        first = {key: value for key, value in body.items() if key not in DECODE_ONLY} | PREFILL
        answer = post(self.prefill, path, first, request_id)
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"prefill server: {answer.status} {content[:500]!r}")
        params = json.loads(content)["kv_transfer_params"]
        self.handed_over.append(params)
        return post(self.decode, path, {**body, "kv_transfer_params": params}, request_id)
