"""Targets: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvstore import Client
from kvstore.client.target import default_socket, parse_target
from kvstore.core.errors import InvalidArgument
from kvstore.transport.wire import Address


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("unix:///run/kvstore/node.sock", [Address(path="/run/kvstore/node.sock")]),
        ("kv://host", [Address(host="host", port=7000)]),
        ("kv://host:7100,10.0.0.2", [Address(host="host", port=7100), Address(host="10.0.0.2", port=7000)]),
        ("kv://[::1]:7100", [Address(host="::1", port=7100)]),
        ("kv://::1", [Address(host="::1", port=7000)]),
        ("kv://[::1]", [Address(host="::1", port=7000)]),
    ],
)
def test_targets_name_addresses(text: str, addresses: list[Address]) -> None:
    assert list(parse_target(text).addresses) == addresses


def test_a_dns_name_is_resolved_at_each_connect() -> None:
    target = parse_target("dns://localhost:7100")
    assert (target.name, target.port, target.addresses) == ("localhost", 7100, ())
    assert "127.0.0.1" in {address.host for address in target.resolved(time.monotonic() + 30)}


def test_an_etcd_target_names_servers_and_a_cell() -> None:
    target = parse_target("etcd://10.0.0.9:2379,10.0.0.8:2379/blue")
    assert (target.etcd, target.cell, target.tls, target.routed) == (
        ("10.0.0.9:2379", "10.0.0.8:2379"), "blue", False, True
    )  # fmt: skip
    assert parse_target("etcds://etcd:2379/blue").tls


def test_the_nodes_of_this_machine_come_first() -> None:
    target = parse_target("kv://203.0.113.1:7000,127.0.0.1:7001,203.0.113.2:7000,localhost:7002")
    found = [str(address) for address in target.resolved(time.monotonic() + 1)]
    assert found == [
        "kv://127.0.0.1:7001", "kv://localhost:7002", "kv://203.0.113.1:7000", "kv://203.0.113.2:7000"
    ]  # fmt: skip


def test_auto_is_the_users_socket_and_then_the_data_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert list(parse_target("auto").addresses) == [
        Address(path=str(tmp_path / "kvstore/node.sock")),
        Address(host="127.0.0.1", port=7000),
    ]
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_socket().parent.name.startswith("kvstore-")


@pytest.mark.parametrize(
    "text",
    [
        "etcd://host:2379",
        "etcd://host:2379/",
        "etcd:///cell",
        "etcd://a,,b/cell",
        "etcd://a/b/c",
        "",
        "host:7000",
        "unix://",
        "http://host",
        "kv://",
        "kv://host:99999",
        "kv://host:x",
        "kv://a,,b",
        "dns://:1",
    ],
)
def test_a_bad_target_is_shown_with_good_ones(text: str) -> None:
    with pytest.raises(InvalidArgument, match="use 'auto'"):
        parse_target(text)


@pytest.mark.parametrize("target", [None, "auto"])
def test_a_client_without_a_target_takes_the_one_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, target: str | None
) -> None:
    monkeypatch.setenv("KVSTORE_TARGET", "kv://elsewhere:7100")
    assert list(Client(target).link.target.addresses) == [Address(host="elsewhere", port=7100)]
    assert Client("unix:///x").link.target.text == "unix:///x"
    monkeypatch.setenv("KVSTORE_TARGET", "nowhere")
    with pytest.raises(InvalidArgument, match="KVSTORE_TARGET: target 'nowhere'"):
        Client(target)
    monkeypatch.delenv("KVSTORE_TARGET")
    assert Client(target).link.target.text == "auto"
