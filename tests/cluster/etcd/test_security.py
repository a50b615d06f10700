"""An etcd that wants certificates, and one that wants users."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.cluster.etcd.errors import EtcdRefused, EtcdUnavailable
from tests.cluster.etcd.announcing import announce, wait_until_stored
from tests.cluster.etcd.certificates import Certificates
from tests.cluster.etcd.conftest import Clients, Run
from tests.cluster.etcd.proxy import proxy
from tests.cluster.etcd.servers import Etcd, etcd, wait_for
from tests.cluster.etcd.watching import Watching


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(certificates: Certificates) -> Iterator[Etcd]:
    with etcd(certificates=certificates) as running:
        yield running


def with_files(certificates: Certificates) -> dict[str, Path]:
    return {
        "ca_file": certificates.ca,
        "cert_file": certificates.client_cert,
        "key_file": certificates.client_key,
    }


def test_both_sides_show_certificates(guarded: Etcd, certificates: Certificates, clients: Clients, run: Run) -> None:
    client = clients.make(*guarded.addresses, **with_files(certificates))
    run(client.store(b"a", b"value", 0))
    stored = guarded.gateway.get("a")
    assert stored is not None
    assert stored.value == b"value"
    seen = Watching(clients.loop, client, b"a", stored.revision)
    wait_for(lambda: seen.values == [b"value"], "watches work as well")


def test_without_a_client_certificate_nothing_is_said(
    guarded: Etcd, certificates: Certificates, clients: Clients
) -> None:
    for settings in ({"ca_file": certificates.ca}, {}):
        client = clients.make(*guarded.addresses, **settings)
        with pytest.raises(EtcdUnavailable):
            clients.run(client.get(b"a", deadline=1.0))


def test_a_server_of_another_authority_is_not_spoken_to(
    guarded: Etcd, certificates: Certificates, clients: Clients, tmp_path: Path
) -> None:
    other = Certificates(tmp_path, "other")
    client = clients.make(*guarded.addresses, **{**with_files(certificates), "ca_file": other.ca})
    with pytest.raises(EtcdUnavailable):
        clients.run(client.get(b"a", deadline=1.0))


def test_the_name_in_the_certificate_counts(
    guarded: Etcd, certificates: Certificates, clients: Clients, run: Run
) -> None:
    endpoint = f"https://localhost:{guarded.servers[0].client_port}"  # the certificate says 127.0.0.1 and etcd.test
    client = clients.make(endpoint, **with_files(certificates))
    with pytest.raises(EtcdUnavailable):
        run(client.get(b"a", deadline=1.0))
    client = clients.make(endpoint, server_name="etcd.test", **with_files(certificates))
    assert run(client.get(b"nothing")) is None


def test_new_certificates_are_used_when_a_connection_fails(
    guarded: Etcd, certificates: Certificates, clients: Clients, run: Run, tmp_path: Path
) -> None:
    """Those that the client starts with are of no use: they are of another authority."""
    other = Certificates(tmp_path, "other")
    client = clients.make(*guarded.addresses, **{**with_files(other), "ca_file": certificates.ca})
    with pytest.raises(EtcdUnavailable):
        run(client.get(b"a", deadline=1.0))
    for ours, theirs in (
        (other.client_key, certificates.client_key),
        (other.client_cert, certificates.client_cert),
    ):
        ours.write_bytes(theirs.read_bytes())
    assert run(client.get(b"nothing")) is None


def test_a_file_that_is_missing_is_named(clients: Clients, tmp_path: Path) -> None:
    client = clients.make("127.0.0.1:1", ca_file=tmp_path / "nowhere.pem")
    with pytest.raises(EtcdRefused, match=r"nowhere\.pem"):
        clients.run(client.get(b"a"))


USER = {"user": "node", "password": "secret"}


@pytest.fixture(scope="module")
def with_users() -> Iterator[Etcd]:
    with etcd() as running:
        running.gateway.enable_users("root secret", USER["user"], USER["password"], "ours/")
        yield running


def test_a_user_may_do_what_its_role_says(with_users: Etcd, clients: Clients, run: Run) -> None:
    client = clients.make(*with_users.addresses, **USER)
    run(client.store(b"ours/a", b"value", 0))
    root = with_users.gateway.as_user(with_users.addresses[0], "root", "root secret")
    stored = root.get("ours/a")
    assert stored is not None
    assert stored.value == b"value"
    with pytest.raises(EtcdRefused, match="permission denied"):
        run(client.store(b"theirs/a", b"value", 0))


@pytest.mark.parametrize("settings", [{"user": "node", "password": "wrong"}, {}], ids=["wrong password", "no user"])
def test_who_is_nobody_is_refused_at_once(with_users: Etcd, clients: Clients, settings: dict[str, str]) -> None:
    client = clients.make(*with_users.addresses, **settings)
    with pytest.raises(EtcdRefused, match=r"etcd at 127\.0\.0\.1"):
        clients.run(client.get(b"ours/a"))


def test_users_do_no_harm_where_none_are_wanted(one: Etcd, clients: Clients, run: Run) -> None:
    assert run(clients.make(*one.addresses, **USER).get(b"nothing")) is None


def test_tokens_that_etcd_forgot_are_replaced(with_users: Etcd, clients: Clients) -> None:
    """A restarted server knows none of the tokens it gave."""
    client = clients.make(*with_users.addresses, **USER)
    held = announce(clients.loop, client, "ours/node", b"value", ttl=2)
    address = with_users.addresses[0]
    wait_until_stored(with_users.gateway.as_user(address, "root", "root secret"), "ours/node", b"value")
    start = clients.run(client.get(b"ours/node")).revision
    seen = Watching(clients.loop, client, b"ours/", start)
    wait_for(lambda: seen.values, "the watch works")
    with_users.servers[0].kill()
    with_users.start()
    root = with_users.gateway.as_user(address, "root", "root secret")
    root.put("ours/b", b"later")
    wait_for(lambda: seen.values[-1] == b"later", "the watch goes on")
    wait_until_stored(root, "ours/node", b"value")
    wait_for(held.alive, "the lease is held")


def test_tokens_that_ran_out_are_replaced(clients: Clients, run: Run, tmp_path: Path) -> None:
    """With signed tokens of one second: calls, and watches that have to be made again."""
    private, public = tmp_path / "jwt.key", tmp_path / "jwt.pub"
    for command in (["genrsa", "-out", private, "2048"], ["rsa", "-in", private, "-pubout", "-out", public]):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    token = f"jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=1s"
    with etcd(options=["--auth-token", token]) as short:
        short.gateway.enable_users("root secret", USER["user"], USER["password"], "ours/")
        caller = clients.make(*short.addresses, **USER)
        run(caller.store(b"ours/a", b"0", 0))
        start = run(caller.get(b"ours/a")).revision
        with proxy(short.servers[0].address) as relay:
            seen = Watching(clients.loop, clients.make(relay.address, **USER), b"ours/", start)
            wait_for(lambda: seen.values == [b"0"], "the watch works")
            time.sleep(3.5)
            assert seen.trouble.all == []  # signs of life are asked for with new tokens
            for number in range(2):
                relay.cut()
                there = run(caller.get(b"ours/a")).revision
                time.sleep(1.2)
                assert run(caller.compare_and_put(b"ours/a", b"%d" % (number + 1), there))
            wait_for(lambda: len(seen.values) > 2, "the watch goes on")
    assert seen.values == [b"0", b"1", b"2"]
