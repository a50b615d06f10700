"""The etcd client's decisions, without an etcd."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from kvstore.cluster.etcd import etcd_min_pb2 as pb
from kvstore.cluster.etcd.announcement import Lease
from kvstore.cluster.etcd.backoff import Backoff, Trouble
from kvstore.cluster.etcd.client import Entry, Listing, prefix_end
from kvstore.cluster.etcd.errors import EtcdUnavailable, HistoryLost, Remedy, remedy
from kvstore.cluster.etcd.mirror import Mirror, Update
from kvstore.cluster.etcd.settings import EtcdSettings
from kvstore.cluster.etcd.watch import Cursor
from kvstore.core.errors import ConfigError


def response(revision: int, *events: int, **fields: object) -> pb.WatchResponse:
    """With events of these revisions."""
    return pb.WatchResponse(
        header=pb.ResponseHeader(revision=revision, cluster_id=1),
        events=[pb.Event(kv=pb.KeyValue(key=b"k", mod_revision=one)) for one in events],
        **fields,
    )


def test_a_watch_resumes_behind_its_last_event_and_not_behind_the_header() -> None:
    """In a long catch-up the header is at etcd's latest revision while thousands of events are still to come."""
    cursor = Cursor(10)
    assert cursor.take(response(500, created=True)) == []
    assert cursor.next == 10
    assert len(cursor.take(response(500, 10, 12, 12))) == 3
    assert cursor.next == 13


def test_word_that_there_is_no_news_moves_the_cursor_forward_only() -> None:
    cursor = Cursor(10)
    cursor.take(response(20))
    assert cursor.next == 21
    cursor.take(response(15))
    assert cursor.next == 21


@pytest.mark.parametrize(
    "answer",
    [
        response(8, created=True),  # a revision went back
        pb.WatchResponse(header=pb.ResponseHeader(revision=99, cluster_id=2), created=True),
        response(99, canceled=True, compact_revision=50),
    ],
    ids=["rewound", "another cluster", "compacted"],
)
def test_a_history_that_is_not_the_same_any_more_is_told(answer: pb.WatchResponse) -> None:
    cursor = Cursor(10)
    cursor.take(response(9, created=True))
    with pytest.raises(HistoryLost):
        cursor.take(answer)


def test_a_watch_that_etcd_ends_is_made_again() -> None:
    with pytest.raises(EtcdUnavailable, match="permission denied"):
        Cursor(10).take(response(9, created=True, canceled=True, cancel_reason="etcdserver: permission denied"))


keys = st.sampled_from([b"a", b"b", b"c"])
states = st.dictionaries(keys, st.tuples(st.binary(max_size=2), st.integers(1, 3)))


def listing(state: dict[bytes, tuple[bytes, int]]) -> Listing:
    return Listing(9, tuple(Entry(key, value, revision) for key, (value, revision) in state.items()))


@given(states, states)
def test_two_listings_differ_by_what_a_mirror_says(before: dict, after: dict) -> None:
    mirror = Mirror()
    mirror.reset(listing(before))
    copy = dict(mirror.entries)
    updates = mirror.reset(listing(after))
    assert len({update.key for update in updates}) == len(updates)
    for update in updates:
        assert copy.get(update.key) != update.entry
        if update.entry is None:
            del copy[update.key]
        else:
            copy[update.key] = update.entry
    assert copy == mirror.entries == {entry.key: entry for entry in listing(after).entries}


def test_events_change_a_mirror_key_by_key() -> None:
    mirror = Mirror()
    put = pb.Event(kv=pb.KeyValue(key=b"a", value=b"1", mod_revision=5, lease=7))
    deleted = pb.Event(type=pb.Event.DELETE, kv=pb.KeyValue(key=b"a", mod_revision=6))
    assert mirror.apply([put, deleted, deleted]) == [Update(b"a", Entry(b"a", b"1", 5, 7)), Update(b"a", None)]
    assert mirror.entries == {}


def test_a_lease_counts_from_when_its_renewal_was_sent() -> None:
    lease = Lease(1, 5.0, sent=100.0)
    assert lease.left(104.0) == pytest.approx(1.0)
    lease.renewed(5.0, sent=103.0)  # whenever the answer came
    assert lease.left(107.0) == pytest.approx(1.0)
    assert lease.left(108.0) == 0.0
    assert lease.left(1000.0) == 0.0


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_the_end_of_a_prefix_is_behind_all_that_start_with_it_and_no_others(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    inside = key >= prefix and (end == b"\0" or key < end)
    assert inside == key.startswith(prefix)


def test_what_helps_after_which_error() -> None:
    code = grpc.StatusCode
    assert remedy(code.UNAVAILABLE, "etcdserver: no leader") is Remedy.OTHER_ENDPOINT
    assert remedy(code.DEADLINE_EXCEEDED, "") is Remedy.OTHER_ENDPOINT
    assert remedy(code.UNAUTHENTICATED, "etcdserver: invalid auth token") is Remedy.NEW_TOKEN
    assert remedy(code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old") is Remedy.NEW_TOKEN
    assert remedy(code.NOT_FOUND, "etcdserver: requested lease not found") is Remedy.NEW_LEASE
    assert remedy(code.PERMISSION_DENIED, "etcdserver: permission denied") is Remedy.NONE
    assert remedy(code.INVALID_ARGUMENT, "etcdserver: authentication failed") is Remedy.NONE


def test_waits_grow_to_a_bound_and_start_small_after_good_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    backoff = Backoff(first=0.1, most=2.0)
    waits = [backoff.wait() for _ in range(12)]
    bounds = [min(2.0, 0.1 * 2**number) for number in range(12)]
    assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    now = 60.0
    assert backoff.wait() <= 0.1


def test_trouble_is_logged_when_it_begins_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trouble = Trouble(logging.getLogger("test"), "following")
    trouble.ends()
    trouble.begins("no answer")
    trouble.begins("no leader")
    assert trouble.text == "following: no leader"
    trouble.ends()
    assert trouble.text == ""
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize(
    ("endpoints", "tls"), [(("a:1", "b:2"), False), (("http://a:1",), False), (("https://a:1", "b:2/"), True)]
)
def test_endpoints_are_addresses_with_or_without_a_scheme(endpoints: tuple[str, ...], tls: bool) -> None:
    settings = EtcdSettings(endpoints)
    assert all("/" not in address for address in settings.addresses)
    assert settings.tls is tls


FILE = Path("/nowhere")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"endpoints": ()}, "no etcd endpoint"),
        ({"endpoints": ("a",)}, "endpoint 'a'"),
        ({"endpoints": ("ftp://a:1",)}, "'ftp'"),
        ({"endpoints": ("http://a:1", "https://b:1")}, "with TLS or without"),
        ({"endpoints": ("http://a:1",), "ca_file": FILE}, "with TLS or without"),
        ({"endpoints": ("a:1",), "cert_file": FILE}, "needs its key"),
        ({"endpoints": ("a:1",), "user": "x"}, "a user with a password"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        EtcdSettings(**settings)  # type: ignore[arg-type]


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(EtcdSettings(("a:1",), user="x", password="secret"))


def test_our_messages_leave_etcds_names_to_other_clients() -> None:
    """Another etcd client in the same process registers them, and two of one name are an error."""
    pool = descriptor_pool.Default()
    assert pb.DESCRIPTOR.package == "kvstore.cluster.etcd"
    for name in ("etcdserverpb.RangeRequest", "mvccpb.KeyValue"):
        with pytest.raises(KeyError):
            pool.FindMessageTypeByName(name)
