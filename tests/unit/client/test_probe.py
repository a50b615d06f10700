"""A node that comes back is noticed within a back-off, at next to no cost."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from kvstore.client.probe import Probe
from kvstore.transport.wire import Address


def listening(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


def test_a_new_socket_file_is_an_answer_once_and_the_old_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with listening(path):
        probe = Probe(Address(path=str(path)), 0.0)
        assert not probe.answers()
        os.unlink(path)
        assert not probe.answers()
    with listening(path):
        assert probe.answers()
        assert not probe.answers()


def test_a_port_is_tried_now_and_then() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address(host="127.0.0.1", port=server.getsockname()[1])
        assert Probe(address, 0.0).answers()
        assert not Probe(address, 60.0).answers()
    assert not Probe(address, 0.0).answers()


def test_a_host_name_is_not_looked_up() -> None:
    assert not Probe(Address(host="node.example", port=1), 0.0).answers()
