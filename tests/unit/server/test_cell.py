"""What a node's settings make of its cell."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kvstore.cluster.discovery.dns import DnsDiscovery
from kvstore.cluster.discovery.etcd import EtcdDiscovery
from kvstore.cluster.discovery.static import StaticDiscovery
from kvstore.core.errors import ConfigError
from kvstore.node.config import load
from kvstore.node.report import Facts
from kvstore.server import cell as module
from kvstore.server.cell import check_cell, open_cell


def opened(data: str = "127.0.0.1:7000", control: str = "127.0.0.1:7001", capacity: int = 1 << 30, **flags: object):  # type: ignore[no-untyped-def]
    """A cell that is not started."""
    chosen = {"discovery": "static://127.0.0.1:7001", "allow_insecure_network": True, **flags}
    facts = Facts(b"n" * 16, b"b" * 16, data, "", control, "", 0.0, False)
    made = open_cell(load(environ={}, flags=chosen), facts, capacity)
    if made is not None:  # a test took the cell away
        made.stop()
    return made


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("static://127.0.0.1:1", StaticDiscovery),
        ("dns://localhost:1", DnsDiscovery),
        ("etcd://127.0.0.1:1", EtcdDiscovery),
        ("etcds://127.0.0.1:1", EtcdDiscovery),
    ],
)
def test_the_url_says_how_nodes_are_found(monkeypatch: pytest.MonkeyPatch, url: str, kind: type) -> None:
    made = []
    monkeypatch.setattr(module, "Cell", lambda member, discovery, *rest: made.append(discovery))
    opened(discovery=url)
    assert [type(one) for one in made] == [kind]


def test_etcd_gets_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    monkeypatch.setattr(module, "EtcdDiscovery", lambda *given: asked.append(given))
    secret = tmp_path / "secret"
    secret.write_text("pass word\n")
    opened(
        discovery="etcds://a:1,b:2/mine", etcd_user="me", etcd_password_file=secret, etcd_ca="/ca", etcd_cert="/c",
        etcd_key="/k",
    )  # fmt: skip
    (settings, cluster) = asked[0]
    assert cluster == "mine"
    assert (settings.endpoints, settings.user, settings.password) == (("https://a:1", "https://b:2"), "me", "pass word")
    assert (settings.ca_file, settings.cert_file, settings.key_file) == (Path("/ca"), Path("/c"), Path("/k"))


@pytest.mark.parametrize("text", [None, ""])
def test_a_password_that_is_not_there_is_an_error_that_names_the_file(tmp_path: Path, text: str | None) -> None:
    secret = tmp_path / "secret"
    if text is not None:
        secret.write_text(text)
    with pytest.raises(ConfigError, match="etcd_password_file") as caught:
        opened(discovery="etcds://127.0.0.1:1", etcd_user="me", etcd_password_file=secret)
    assert str(secret) in str(caught.value)


def test_a_check_finds_what_a_start_would(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def checked(**flags: object) -> None:
        check_cell(load(environ={}, flags={"allow_insecure_network": True, **flags}))

    named(monkeypatch, "127.0.1.1")
    everywhere = {"data_address": "0.0.0.0:0"}
    checked(**everywhere)
    checked(discovery="static://127.0.0.1:1", advertise_host="10.0.0.1", **everywhere)
    with pytest.raises(ConfigError, match="set advertise_host"):
        checked(discovery="static://127.0.0.1:1", **everywhere)
    with pytest.raises(ConfigError, match="etcd_password_file"):
        checked(discovery="etcds://127.0.0.1:1", etcd_user="me", etcd_password_file=tmp_path / "absent")


def test_a_node_says_what_it_is_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    member = opened(data="10.0.0.1:5", control="[::1]:6", zone="z", host_name="h").member
    assert (member.node_id, member.boot_id) == (b"n" * 16, b"b" * 16)
    assert (member.data_address, member.control_address) == ("10.0.0.1:5", "[::1]:6")
    assert (member.host, member.zone, member.capacity_bytes) == ("h", "z", 1 << 30)
    assert opened().member.host == socket.gethostname()
    told = opened(data="0.0.0.0:5", control="[::]:6", advertise_host="node-1").member
    assert (told.data_address, told.control_address) == ("node-1:5", "node-1:6")


def named(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """The machine's name means this address."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]
    monkeypatch.setattr(module.socket, "getaddrinfo", lambda *given, **more: found)


def test_a_node_that_listens_everywhere_is_reached_by_its_machines_name(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "10.9.8.7")
    member = opened(data="0.0.0.0:5", control="[::]:6").member
    assert (member.data_address, member.control_address) == ("10.9.8.7:5", "10.9.8.7:6")
    named(monkeypatch, "127.0.1.1")
    with pytest.raises(ConfigError, match="set advertise_host"):
        opened(data="0.0.0.0:5")


@pytest.mark.parametrize(
    ("capacity", "setting", "entries"),
    [(1 << 20, None, 1 << 20), (64 << 30, None, 16 << 20), (1 << 50, None, 1 << 27), (64 << 30, "5000", 5000)],
)
def test_the_index_is_as_large_as_the_node_unless_told(capacity: int, setting: str | None, entries: int) -> None:
    assert opened(capacity=capacity, cell_index_entries=setting).index.max_entries == entries
