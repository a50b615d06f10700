"""Pieces of a node on their own: identity, capacity, counting, HTTP, log lines."""

from __future__ import annotations

import json
import logging
import socket
import threading
import urllib.request
from pathlib import Path

import pytest

from kvstore.core.errors import ConfigError
from kvstore.node import capacity, identity
from kvstore.node.config import load
from kvstore.node.http_server import HttpServer, text
from kvstore.node.identity import InUse
from kvstore.node.layout import Layouts
from kvstore.node.logs import JsonFormatter
from kvstore.node.metrics import BUCKETS, Collector, NodeMetrics, render
from kvstore.node.units import Address
from kvstore.transport.frame import Op

# --- identity -----------------------------------------------------------------------------------------------


def test_a_data_directory_that_is_a_file_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    for path, said in ((tmp_path / "data", "it is a file"), (tmp_path / "data" / "x", f"{tmp_path}/data is a file")):
        with pytest.raises(ConfigError, match=said):
            identity.claim(path)


def test_the_node_id_stays_and_the_boot_lock_does_not(tmp_path: Path) -> None:
    assert identity.peek(tmp_path) is None
    first = identity.claim(tmp_path / "data")
    with pytest.raises(InUse, match="in use by a living node"):
        identity.claim(tmp_path / "data")
    first.close()
    second = identity.claim(tmp_path / "data")
    second.close()
    assert first.node_id == second.node_id == identity.peek(tmp_path / "data")
    assert len(first.node_id) == 16


def test_a_half_written_id_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "node-id").write_text("abc")
    with pytest.raises(ConfigError, match="node-id"):
        identity.claim(tmp_path)


def test_the_memory_file_is_named_by_the_node_or_by_the_configuration(tmp_path: Path) -> None:
    node_id = bytes(range(16))
    assert identity.memory_path(load(environ={}), node_id) == Path(f"/dev/shm/kvstore-{node_id.hex()}.mem")
    chosen = load(environ={}, flags={"memory_file": str(tmp_path / "m")})
    assert identity.memory_path(chosen, node_id) == tmp_path / "m"


# --- capacity -----------------------------------------------------------------------------------------------


def test_the_default_capacity_is_a_quarter_of_ram_or_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    file = Path("/dev/shm/kvstore-absent.mem")
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
    monkeypatch.setattr(capacity, "ram_bytes", lambda: free * 100)
    assert abs(capacity.resolve(None, file) - free // 2) <= free // 8  # others use the filesystem meanwhile
    monkeypatch.setattr(capacity, "ram_bytes", lambda: 64 << 20)
    assert capacity.resolve(None, file) == 16 << 20


def test_a_capacity_that_does_not_fit_names_filesystem_and_setting() -> None:
    with pytest.raises(ConfigError, match=r"capacity = 1024TiB: /dev/shm has .* free"):
        capacity.resolve(1 << 50, Path("/dev/shm/kvstore-absent.mem"))


def test_a_container_s_memory_limit_counts_as_its_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_cgroup_limits", lambda: [1 << 20])
    assert capacity.ram_bytes() == 1 << 20


# --- counting -----------------------------------------------------------------------------------------------


def scraped(metrics: NodeMetrics) -> dict[str, float]:
    body, kind = render(Collector(metrics, lambda: ()))
    assert kind.startswith("text/plain")
    lines = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_numbers_of_living_and_ended_connections_add_up() -> None:
    metrics = NodeMetrics()
    for nth in range(3):
        tally = metrics.tally("tcp")
        tally.request(Op.PUT, 0.001 * (nth + 1), 100, 0)
        if nth < 2:
            metrics.retire(tally)
    metrics.tally("unix").request(Op.PUT, 100.0, 7, 8)
    metrics.count("error", "busy")
    found = scraped(metrics)
    assert found['kvstore_received_bytes_total{op="put",transport="tcp"}'] == 300
    assert found['kvstore_request_seconds_count{op="put",tier="none",transport="tcp"}'] == 3
    assert found['kvstore_request_seconds_sum{op="put",tier="none",transport="tcp"}'] == pytest.approx(0.006)
    assert found['kvstore_request_seconds_bucket{le="0.001",op="put",tier="none",transport="tcp"}'] == 1
    assert found['kvstore_request_seconds_bucket{le="0.0025",op="put",tier="none",transport="tcp"}'] == 2
    assert found['kvstore_request_seconds_bucket{le="10.0",op="put",tier="none",transport="unix"}'] == 0
    assert found['kvstore_request_seconds_bucket{le="+Inf",op="put",tier="none",transport="unix"}'] == 1
    assert found['kvstore_errors_total{code="busy"}'] == 1


def test_buckets_are_sorted_and_cover_a_request_and_a_stall() -> None:
    assert list(BUCKETS) == sorted(BUCKETS)
    assert BUCKETS[0] <= 50e-6
    assert BUCKETS[-1] >= 10


def test_a_scrape_beside_counting_threads_loses_nothing() -> None:
    metrics = NodeMetrics()

    def work() -> None:
        tally = metrics.tally("unix")
        for _ in range(500):
            tally.request(Op.GET, 0.0001, 0, 10)
        metrics.retire(tally)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        scraped(metrics)
    assert scraped(metrics)['kvstore_sent_bytes_total{op="get",transport="unix"}'] == 40_000


# --- layouts ------------------------------------------------------------------------------------------------


def test_layouts_are_computed_once_and_unknown_handles_are_not_kept() -> None:
    from kvstore.core.errors import UnknownNamespace
    from kvstore.core.namespace import NamespaceSpec

    asked: list[int] = []

    def spec(handle: int) -> NamespaceSpec:
        asked.append(handle)
        if handle != 1:
            raise UnknownNamespace("no")
        return NamespaceSpec(model="m", block_tokens=1, block_bytes=300_000)

    layouts = Layouts(spec)
    assert layouts.get(1, []) is layouts.get(1, ())
    assert layouts.get(1, (), 65_536, 65_536).block_bytes == 65_536
    for _ in range(2):
        with pytest.raises(UnknownNamespace):
            layouts.get(2, ())
    assert asked == [1, 1, 2, 2]


# --- HTTP and log -------------------------------------------------------------------------------------------


def test_http_is_bounded_and_survives_a_page_that_fails() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow():  # type: ignore[no-untyped-def]
        entered.set()
        leave.wait(30)
        return text(200, "slow")

    def bad():  # type: ignore[no-untyped-def]
        raise ValueError("secret")

    server = HttpServer(Address("127.0.0.1", 0), {"/slow": slow, "/bad": bad, "/ok": lambda: text(200, "ok")}, limit=1)
    server.start()

    def status(path: str) -> int:
        with socket.create_connection(("127.0.0.1", server.address.port), timeout=30) as sock:
            sock.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            reply = b"".join(iter(lambda: sock.recv(4096), b""))
            assert b"secret" not in reply
            return int(reply.split()[1])

    try:
        waiting = threading.Thread(target=status, args=("/slow",))
        waiting.start()
        entered.wait(30)
        assert status("/ok") == 503
        leave.set()
        waiting.join(30)
        while (found := status("/bad")) == 503:
            pass
        assert found == 500
        while (found := status("/nowhere")) == 503:
            pass
        assert found == 404
        with pytest.raises(OSError, match="in use"):
            HttpServer(server.address, {}, 1)
    finally:
        leave.set()
        server.stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{server.address}/ok", timeout=5)


def test_a_json_log_line_is_one_object_with_the_traceback_inside() -> None:
    import sys

    try:
        raise ValueError("x")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, "f", 1, "said %s", ("y",), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    value = json.loads(line)
    assert (value["message"], value["level"], value["logger"]) == ("said y", "error", "a.b")
    assert "ValueError: x" in value["exception"]
