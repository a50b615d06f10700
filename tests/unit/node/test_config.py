"""The table of settings, and everything that follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.core.errors import ConfigError
from kvstore.node import config as module
from kvstore.node.config import load, markdown, settings
from kvstore.node.units import Address, Discovery, parse_address, parse_duration, parse_size, show_duration, show_size

ROOT = Path(__file__).parents[3]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return path


def test_every_default_works_and_reads_back_from_its_own_spelling(tmp_path: Path) -> None:
    plain = load(environ={})
    spelled = {s.key: s.kind.show(getattr(plain, s.key)) for s in settings()}
    again = load(written(tmp_path, "".join(f'{key} = "{value}"\n' for key, value in spelled.items())), environ={})
    assert again == plain


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'capacity = "64MiB"\nmax_keys = 10\nmax_sessions = 5\n')
    environ = {"KVSTORE_MAX_KEYS": "20", "KVSTORE_MAX_SESSIONS": "6"}
    loaded = load(path, environ=environ, flags={"max_sessions": "7", "heartbeat": None})
    assert (loaded.capacity, loaded.max_keys, loaded.max_sessions) == (64 << 20, 20, 7)


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'capacity = "64MiB"\n')
    assert load(environ={"KVSTORE_CONFIG": str(path)}).capacity == 64 << 20


@pytest.mark.parametrize(
    ("source", "near"),
    [
        ("file", "'capacity'"),
        ("environment", "'KVSTORE_CAPACITY'"),
        ("flags", "'--capacity'"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest_one(tmp_path: Path, source: str, near: str) -> None:
    file = written(tmp_path, 'capcity = "1GiB"\n') if source == "file" else None
    environ = {"KVSTORE_CAPCITY": "1GiB"} if source == "environment" else {}
    flags = {"capcity": "1GiB"} if source == "flags" else {}
    with pytest.raises(ConfigError, match="did you mean") as caught:
        load(file, environ, flags)
    assert near in str(caught.value)
    assert "\n" not in str(caught.value)


def test_variables_that_kubernetes_adds_for_a_service_named_kvstore_are_no_settings() -> None:
    environ = {
        "KVSTORE_SERVICE_HOST": "10.0.0.1",
        "KVSTORE_SERVICE_PORT_DATA": "7000",
        "KVSTORE_PORT": "tcp://10.0.0.1:7000",
        "KVSTORE_PORT_7000_TCP_ADDR": "10.0.0.1",
        "KVSTORE_HEADLESS_SERVICE_HOST": "None",
        "KVSTORE_TARGET": "auto",
    }
    assert load(environ=environ) == load(environ={})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('capacity = "much"', ["capacity", '"8GiB"']),
        ("capacity = -1", ["capacity"]),
        ('capacity = "1MiB"', ["capacity", "4MiB"]),
        ('heartbeat = "soon"', ["heartbeat", '"30s"']),
        ('data_address = "7000"', ["data_address", "127.0.0.1:7000"]),
        ('eviction = "fifo"', ["eviction", "lru", "turnscore"]),
        ("max_keys = 0", ["max_keys"]),
        ("max_keys = true", ["max_keys"]),
        ('socket_mode = "rw"', ["socket_mode", "0600"]),
        ("low_watermark = 0.99", ["low_watermark", "high_watermark"]),
        ('data_address = "off"\nsocket = "off"', ["data_address", "socket"]),
        (f'socket = "/{"x" * 120}"', ["socket", "107"]),
        ("allow_insecure_network = 2", ["allow_insecure_network"]),
        ("[node]\ncapacity = 1", ["[node]", "without sections"]),
        ('segment_bytes = "3MiB"', ["segment_bytes", "power of two", "3MiB"]),
        ('segment_bytes = "64MiB"\ncapacity = "32MiB"', ["segment_bytes", "32MiB"]),
        ('data_address = "127.0.0.1:7001"', ["data_address", "control_address", "7001"]),
        ('heartbeat = "1ms"', ["heartbeat", "100ms"]),
        ('max_frame_bytes = "1k"', ["max_frame_bytes", "1MiB"]),
        ("max_blocks = 1", ["max_blocks", "64"]),
        ("control_threads = 100000", ["control_threads", "1024"]),
        ('zone = ""', ["zone", "text"]),
        ('suspect_after = "1ms"', ["suspect_after", "2s"]),
        ('discovery = "consul://127.0.0.1:1"', ["discovery", "static://HOST:PORT", "etcd://HOST:PORT/CELL"]),
        ('discovery = "static://"', ["discovery"]),
        ('discovery = "static://127.0.0.1"', ["discovery", "127.0.0.1"]),
        ('discovery = "static://127.0.0.1:1,"', ["discovery"]),
        ('discovery = "static://127.0.0.1:0"', ["discovery", "without a port"]),
        ('discovery = "static://127.0.0.1:1/cell"', ["discovery"]),
        ('discovery = "dns://a:1,b:1"', ["discovery", "several names"]),
        ('discovery = "etcd://127.0.0.1:1/a/b"', ["discovery"]),
        ('discovery = "dns://nodes:7001"', ["discovery", "nodes:7001", "allow_insecure_network"]),
        ('discovery = "etcd://10.0.0.1:2379"', ["discovery", "10.0.0.1:2379", "allow_insecure_network"]),
        ('discovery = "static://10.0.0.1:1"\netcd_ca = "/ca.pem"', ["discovery", "allow_insecure_network"]),
        ('discovery = "static://127.0.0.1:1"\ncontrol_address = "off"', ["discovery", "control_address"]),
        ('discovery = "static://127.0.0.1:1"\ndata_address = "off"', ["discovery", "data_address"]),
        ("replicas = 2", ["replicas = 2", "discovery"]),
        ('discovery = "static://127.0.0.1:1"\nreplicas = 9', ["replicas", "at most 8"]),
        ('discovery = "static://127.0.0.1:1"\nrepair_rate = 0', ["repair_rate", "at least 1KiB"]),
        ('discovery = "static://127.0.0.1:1"\nfetch_wait = "15s"', ["fetch_wait", "15", "peer_timeout", "10"]),
        ('fetch = "sometimes"', ["fetch", "on", "off"]),
        ('discovery = "etcds://e:1"\netcd_cert = "/a.pem"', ["etcd_cert", "etcd_key"]),
        ('discovery = "etcds://e:1"\netcd_user = "me"', ["etcd_user", "etcd_password_file"]),
        (
            'discovery = "etcd://127.0.0.1:1"\netcd_user = "me"\netcd_password_file = "/secret"',
            ["discovery", "password without TLS", "etcds://"],
        ),
        ("capacity = ", ["TOML"]),
        ("[capacity]\nbytes = 1", ["capacity"]),
    ],
)
def test_a_bad_value_is_an_error_of_one_line_that_names_the_setting(
    tmp_path: Path, line: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, line + "\n"), environ={})
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("home", ["", "/", "/nonexistent", "relative", None])
def test_without_a_home_the_data_dir_must_be_given(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)
    with pytest.raises(ConfigError, match="set data_dir"):
        load(environ={})
    assert load(environ={}, flags={"data_dir": "/tmp/given"}).data_dir == Path("/tmp/given")


def test_a_file_that_is_not_utf_8_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_bytes(b'capacity = "\xff"')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "node.toml", environ={})


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load(tmp_path / "absent.toml", environ={})


@pytest.mark.parametrize("address", ["0.0.0.0:7000", "10.0.0.1:7000", "[::]:7000", "node.example:7000"])
def test_listening_beyond_loopback_needs_to_be_allowed(address: str) -> None:
    with pytest.raises(ConfigError, match="allow_insecure_network"):
        load(environ={}, flags={"data_address": address})
    assert load(environ={}, flags={"data_address": address, "allow_insecure_network": True}).data_address is not None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("off", None),
        ("static://127.0.0.1:1,[::1]:2", Discovery("static", (Address("127.0.0.1", 1), Address("::1", 2)))),
        ("dns://localhost:7001", Discovery("dns", (Address("localhost", 7001),))),
        ("etcd://127.0.0.1:2379", Discovery("etcd", (Address("127.0.0.1", 2379),), "default")),
        ("etcds://a:1,b:2/cell-1", Discovery("etcds", (Address("a", 1), Address("b", 2)), "cell-1")),
    ],
)
def test_discovery_reads_back_as_it_is_shown(text: str, found: Discovery | None) -> None:
    loaded = load(environ={}, flags={"discovery": text}).discovery
    assert loaded == found
    assert loaded == load(environ={}, flags={"discovery": str(loaded or "off")}).discovery


@pytest.mark.parametrize(
    "flags",
    [
        {"discovery": "dns://nodes:7001"},
        {"discovery": "etcd://10.0.0.1:2379", "etcd_user": "me", "etcd_password_file": "/secret"},
    ],
)
def test_discovery_beyond_loopback_can_be_allowed(flags: dict[str, str]) -> None:
    assert load(environ={}, flags={**flags, "allow_insecure_network": True}).discovery is not None


def test_a_password_goes_to_etcd_by_tls() -> None:
    user = {"etcd_user": "me", "etcd_password_file": "/secret"}
    assert load(environ={}, flags={"discovery": "etcds://10.0.0.1:2379", **user}).discovery is not None
    with_ca = {"discovery": "etcd://10.0.0.1:2379", "etcd_ca": "/ca.pem", **user}
    assert load(environ={}, flags=with_ca).discovery is not None


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.9.9.9:1"])
def test_loopback_is_always_allowed(address: str) -> None:
    assert load(environ={}, flags={"control_address": address}).control_address is not None


def test_the_page_of_the_docs_is_what_the_table_says() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == markdown(), "run python -m kvstore.node.config"


def test_each_setting_has_a_help_and_a_default_for_the_docs() -> None:
    for setting in settings():
        assert setting.help.endswith(".")
        assert setting.default
        assert setting.flag == "--" + setting.key.replace("_", "-")
        assert setting.env == "KVSTORE_" + setting.key.upper()


def test_the_socket_is_found_like_a_client_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvstore.client.target import default_socket

    for runtime in ("/run/user/1", ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert module.default_socket() == default_socket()


@pytest.mark.parametrize(
    ("text", "count"),
    [("8GiB", 8 << 30), ("64 MiB", 64 << 20), ("4k", 4096), ("8GB", 8 * 10**9), ("1.5GiB", 3 << 29), (4096, 4096)],
)
def test_sizes(text: object, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 parsec", True, None, "1e9"])
def test_bad_sizes(text: object) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("500ms", 0.5), ("5m", 300), ("1h", 3600), (2.5, 2.5)])
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(show_duration(seconds)) == seconds


def test_addresses() -> None:
    assert parse_address("off") is None
    assert parse_address("[::1]:7000") == Address("::1", 7000)
    assert str(Address("::1", 7000)) == "[::1]:7000"
    for bad in ("host", "host:", ":1", "host:70000", "host:x"):
        with pytest.raises(ValueError, match="address"):
            parse_address(bad)


def test_sizes_are_shown_exactly_when_they_are_round() -> None:
    assert [show_size(n) for n in (5, 4096, 64 << 20, 3 << 29)] == ["5B", "4KiB", "64MiB", "1.5 GiB"]
