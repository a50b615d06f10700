"""A node as its operator meets it: starting, refusing to start, stopping, coming back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.transport.frame import Op, encode_header
from tests.integration.nodes import NodeProcess, cli, node, wait_for
from tests.integration.raw import Raw, data_of, keys_of, payload_of, put_request


@pytest.fixture
def running(tmp_path: Path) -> Iterator[NodeProcess]:
    with node(tmp_path) as process:
        yield process


def refused(folder: Path, *words: str, status: int, **settings: object) -> str:
    """A node that must not start: exit status, and one line that has these words; nothing is left behind."""
    folder.mkdir(exist_ok=True)
    process = NodeProcess(folder, **settings)
    done = cli("node", "--config", str(process.config))
    try:
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, done.stderr
        for word in words:
            assert word in lines[0], lines[0]
        if (folder / "data" / "node-id").exists():
            assert not process.memory_file.exists()
        return lines[0]
    finally:
        if (folder / "data" / "node-id").exists():
            process.remove()


# --- refusing to start --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["data_address", "control_address", "http_address"])
def test_a_port_in_use_is_named_with_its_setting(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(tmp_path, str(port), key, "in use", status=1, **{key: f"127.0.0.1:{port}"})
    assert not (tmp_path / "node.sock").exists()


def test_two_nodes_do_not_share_a_port(running: NodeProcess, tmp_path: Path) -> None:
    for key, address in (
        ("data_address", running.data),
        ("control_address", running.control),
        ("http_address", running.http),
    ):
        refused(tmp_path / "other", key, "in use", status=1, **{key: address})


def test_the_socket_of_a_living_node_is_not_taken(running: NodeProcess, tmp_path: Path) -> None:
    refused(tmp_path / "other", "in use by a living node", str(running.socket), status=1, socket=str(running.socket))
    with Raw(str(running.socket)) as raw:
        assert raw.greeting is not None


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "node.sock"))
    with node(tmp_path) as process, Raw(str(process.socket)) as raw:
        assert raw.greeting is not None


def test_a_file_in_the_socket_s_place_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "node.sock").write_text("mine")
    refused(tmp_path, "node.sock", "no socket", status=2)
    assert (tmp_path / "node.sock").read_text() == "mine"


def test_a_data_directory_serves_one_node(running: NodeProcess, tmp_path: Path) -> None:
    message = refused(tmp_path / "other", "in use by a living node", status=1, data_dir=running.settings["data_dir"])
    assert running.process is not None
    assert f"process {running.process.pid}" in message


def test_a_memory_file_serves_one_node(running: NodeProcess, tmp_path: Path) -> None:
    refused(tmp_path / "other", "in use by a living node", status=2, memory_file=str(running.memory_file))


def test_a_memory_file_on_a_disk_is_refused(tmp_path: Path) -> None:
    disk = tmp_path if _on_disk(tmp_path) else Path(__file__).parent
    refused(tmp_path, "tmpfs", "hugetlbfs", str(disk), status=2, memory_dir=str(disk))


def _on_disk(path: Path) -> bool:
    from kvstore.tiers.memfile import TMPFS_MAGIC, file_system_type

    return file_system_type(path) != TMPFS_MAGIC


def test_too_little_memory_names_the_size_of_dev_shm(tmp_path: Path) -> None:
    from kvstore.node.units import show_size

    stat = os.statvfs("/dev/shm")
    size = show_size(stat.f_blocks * stat.f_frsize)
    refused(tmp_path, "too little memory", "/dev/shm", size, "capacity", status=2, capacity="900TiB")


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path, "data_dir", str(tmp_path / "file"), status=2, data_dir=str(tmp_path / "file" / "data"))


def test_a_damaged_node_id_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "node-id").write_text("oops\n")
    process = NodeProcess(tmp_path)
    done = cli("node", "--config", str(process.config))
    assert done.returncode == 2
    assert "node-id" in done.stderr


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    refused(tmp_path, "unknown setting", "did you mean 'max_keys'", status=2, max_kyes=1)


def test_an_address_beyond_loopback_is_refused_and_when_allowed_shows(tmp_path: Path) -> None:
    refused(tmp_path, "http_address", "allow_insecure_network", status=2, http_address="0.0.0.0:0")
    with node(tmp_path, http_address="0.0.0.0:0", allow_insecure_network=True) as process:
        assert "WARNING" in process.log()
        process.http = process.http.replace("0.0.0.0", "127.0.0.1")
        assert process.metrics()["kvstore_insecure_network"] == 1


def test_check_says_what_is_wrong_and_starts_nothing(tmp_path: Path) -> None:
    good, bad = NodeProcess(tmp_path), NodeProcess(tmp_path / "bad", capacity="900TiB")
    bad.folder.mkdir()
    done = cli("node", "--config", str(good.config), "--check", "--max-keys", "7")
    assert done.returncode == 0, done.stderr
    assert "max_keys = 7" in done.stdout
    assert not (tmp_path / "data").exists()
    assert cli("node", "--config", str(bad.config), "--check").returncode == 2


def test_an_unknown_flag_is_one_line_and_a_hint() -> None:
    done = cli("node", "--capcity", "1GiB")
    assert done.returncode == 2
    assert "--capacity" in done.stderr
    assert done.stderr.count("\n") == 2


# --- running ------------------------------------------------------------------------------------------------


def test_importing_a_node_loads_neither_torch_nor_grpc() -> None:
    program = "import sys, kvstore.server.run; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"torch", "grpc", "typer", "rich", "asyncio", "lmdb"}


def test_health_and_index_pages(running: NodeProcess) -> None:
    assert running.get("/health/live") == (200, "live\n")
    assert running.get("/health/ready") == (200, "ready\n")
    status, page = running.get("/health")
    assert (status, json.loads(page)) == (200, {"state": "ok", "tiers": {"dram": {"state": "ok", "reason": ""}}})
    assert json.loads(running.get("/")[1])["node_id"] == running.node_id
    assert running.get("/nothing")[0] == 404


def test_metrics_have_what_a_dashboard_needs(running: NodeProcess) -> None:
    with Raw(str(running.socket)) as unix, Raw(running.data) as tcp:
        handle = unix.open()
        unix.put(handle, 3)
        tcp.get(tcp.open(), keys_of(5))
        found = running.metrics()
    assert found["kvstore_blocks"] == 3
    assert found["kvstore_hits_total"] == 3
    assert found['kvstore_misses_total{reason="absent"}'] == 2
    assert found['kvstore_received_bytes_total{op="put",transport="unix"}'] == len(payload_of(keys_of(3)))
    assert found['kvstore_sent_bytes_total{op="get",transport="tcp"}'] == 300_000
    assert found['kvstore_request_seconds_count{op="get",tier="dram",transport="tcp"}'] == 1
    assert found['kvstore_request_seconds_bucket{le="+Inf",op="get",tier="dram",transport="tcp"}'] == 1
    assert found['kvstore_tier_used_bytes{tier="dram"}'] >= 300_000
    assert found["kvstore_sessions"] == 2
    assert found["kvstore_connections"] == 2
    assert found["kvstore_leases"] == 0


def test_the_log_can_be_json(tmp_path: Path) -> None:
    with node(tmp_path, log_format="json") as process:
        lines = [json.loads(line) for line in process.log().splitlines()]
    assert any(process.node_id in line["message"] and line["level"] == "info" for line in lines)


def test_the_socket_is_private(running: NodeProcess, tmp_path: Path) -> None:
    assert running.socket.stat().st_mode & 0o777 == 0o600
    with node(tmp_path / "shared", socket=str(tmp_path / "shared" / "run" / "s"), socket_mode="0660") as process:
        path = Path(str(process.settings["socket"]))
        assert path.stat().st_mode & 0o777 == 0o660
        assert path.parent.stat().st_mode & 0o777 == 0o700


# --- stopping and coming back -------------------------------------------------------------------------------


def test_sigterm_keeps_the_blocks_and_removes_the_socket(running: NodeProcess) -> None:
    keys = keys_of(3)
    with Raw(str(running.socket)) as raw:
        raw.put(raw.open(), 3)
        first = raw.greeting
    assert running.stop() == 0
    assert not running.socket.exists()
    assert running.memory_file.exists()
    running.start()
    with Raw(str(running.socket)) as raw:
        assert raw.get(raw.open(), keys)[1] == b"".join(data_of(keys))
        assert first is not None
        assert raw.greeting is not None
        assert raw.greeting.node_id == first.node_id
        assert raw.greeting.boot_id != first.boot_id


def test_sigkill_keeps_the_blocks_too(running: NodeProcess) -> None:
    keys = keys_of(3)
    with Raw(str(running.socket)) as raw:
        raw.put(raw.open(), 3)
    running.kill()
    running.start()
    with Raw(str(running.socket)) as raw:
        assert raw.get(raw.open(), keys)[1] == b"".join(data_of(keys))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_in_progress_is_finished_before_the_node_stops(tmp_path: Path, number: int) -> None:
    patient = {"shutdown_grace": "60s", "peer_timeout": "60s"}
    with node(tmp_path, **patient) as process, Raw(str(process.socket)) as raw, Raw(process.data) as idle:
        keys = keys_of(2)
        message, payload = put_request(raw.open(), keys).SerializeToString(), payload_of(keys)
        raw.sock.sendall(encode_header(Op.PUT, len(message), len(payload), request_id=77) + message + payload[:150_000])
        wait_for(lambda: process.stat()["writing"] == 2)
        assert process.process is not None
        process.process.send_signal(number)
        assert idle.closed()
        raw.sock.sendall(payload[150_000:])
        reply, _ = raw.answer()
        assert reply.stored == 2  # type: ignore[attr-defined]
        assert process.process.wait(60) == 0
        process.start()
        with Raw(str(process.socket)) as again:
            assert again.match(again.open(), keys) == 2


def test_a_second_signal_ends_the_node_at_once(tmp_path: Path) -> None:
    with node(tmp_path, shutdown_grace="1h") as process, Raw(str(process.socket)) as raw:
        keys = keys_of(2)
        message, payload = put_request(raw.open(), keys).SerializeToString(), payload_of(keys)
        raw.sock.sendall(encode_header(Op.PUT, len(message), len(payload)) + message + payload[:150_000])
        wait_for(lambda: process.stat()["writing"] == 2)
        assert process.process is not None
        process.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "stopping" in process.log())
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(60) == 128 + signal.SIGTERM
        process.start()
        with Raw(str(process.socket)) as again:
            assert again.match(again.open(), keys) == 0


# --- bounds -------------------------------------------------------------------------------------------------


def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    with node(tmp_path, max_connections=2) as process:
        with Raw(process.data), Raw(process.data), Raw(process.data, hello=False) as third:
            from kvstore.core import errors
            from kvstore.v1 import data_pb2 as pb

            error = third.error(Op.HELLO, pb.HelloRequest(version=1, min_version=1))
            assert isinstance(error, errors.Busy)
            assert third.closed()
        wait_for(lambda: process.metrics()["kvstore_connections"] == 0)
        with Raw(process.data) as after:
            assert after.greeting is not None
        found = process.metrics()
        assert found['kvstore_connections_refused_total{transport="tcp"}'] == 1
        assert found['kvstore_busy_total{bound="max_connections"}'] == found['kvstore_errors_total{code="busy"}'] == 1


def test_one_session_too_many_is_told_so(tmp_path: Path) -> None:
    from kvstore.core import errors
    from kvstore.v1 import data_pb2 as pb

    with node(tmp_path, max_sessions=1) as process:
        with Raw(process.data), Raw(process.data, hello=False) as second:
            assert isinstance(second.error(Op.HELLO, pb.HelloRequest(version=1, min_version=1)), errors.Busy)
        wait_for(lambda: process.stat()["sessions"] == 0)
        with Raw(process.data) as after:
            assert after.greeting is not None


def test_a_silent_network_session_ends_and_one_that_pings_lives(tmp_path: Path) -> None:
    with node(tmp_path, heartbeat="200ms") as process, Raw(process.data) as silent, Raw(process.data) as lively:
        ended = threading.Event()
        threading.Thread(target=lambda: silent.closed() and ended.set(), daemon=True).start()
        while not ended.wait(0.05):
            lively.call(Op.PING)
        lively.call(Op.PING)
        assert process.metrics()['kvstore_connections_cut_total{cause="silent"}'] == 1
        assert process.stat()["sessions"] == 1


def test_a_shared_memory_session_may_be_silent(tmp_path: Path) -> None:
    with node(tmp_path, heartbeat="100ms") as process, Raw(str(process.socket), shared_memory=True) as raw:
        with Raw(process.data) as other:
            assert other.closed()
        raw.call(Op.PING)


def test_a_writer_that_stalls_is_cut_and_its_slots_come_back(tmp_path: Path) -> None:
    with node(tmp_path, peer_timeout="300ms", heartbeat="60s") as process, Raw(process.data) as raw:
        keys = keys_of(2)
        message, payload = put_request(raw.open(), keys).SerializeToString(), payload_of(keys)
        raw.sock.sendall(encode_header(Op.PUT, len(message), len(payload)) + message + payload[:150_000])
        assert raw.closed()
        wait_for(lambda: process.stat()["tiers"][0]["used_bytes"] == 0)
        assert process.metrics()['kvstore_connections_cut_total{cause="stalled"}'] == 1


def test_a_reader_that_stalls_is_cut_and_its_lease_ends(tmp_path: Path) -> None:
    with node(tmp_path, peer_timeout="300ms", heartbeat="60s", capacity="64MiB") as process:
        keys = keys_of(200)
        with Raw(process.data) as writer:
            writer.put(writer.open(), 200)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, _, port = process.data.rpartition(":")
            slow.connect((host, int(port)))
            raw = Raw.__new__(Raw)
            raw.sock = slow
            slow.settimeout(60)
            raw.hello()
            from kvstore.v1 import data_pb2 as pb

            raw.send(Op.GET, pb.GetRequest(namespace=raw.open(), keys=keys))
            wait_for(lambda: process.stat()["leases"] == 1, "a lease while the reader stalls")
            wait_for(lambda: process.stat()["leases"] == 0, "the end of the lease")
            with contextlib.suppress(ConnectionResetError):
                while slow.recv(1 << 20):
                    pass


def test_a_connection_that_never_speaks_is_closed(tmp_path: Path) -> None:
    with node(tmp_path, peer_timeout="300ms") as process, Raw(process.data, hello=False) as mute:
        start = time.monotonic()
        assert mute.closed()
        assert time.monotonic() - start >= 0.3
