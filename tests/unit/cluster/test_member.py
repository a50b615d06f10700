"""What a node says of itself, as text that other versions read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.cluster.member import Member, join_address, split_address
from kvstore.core.errors import InvalidArgument

ids = st.binary(min_size=16, max_size=16)
hosts = st.sampled_from(["10.0.0.1", "node-1.example", "[::1]", "[fe80::1]"])
addresses = st.builds("{}:{}".format, hosts, st.integers(1, 65_535))
words = st.text(max_size=255)
counts = st.integers(0, 1 << 60)
members = st.builds(
    Member,
    node_id=ids,
    boot_id=ids,
    data_address=addresses,
    control_address=addresses,
    host=words,
    zone=words,
    capacity_bytes=counts,
    version=words,
    protocol=counts,
    draining=st.booleans(),
)
ONE = Member(bytes(16), b"\x01" * 16, "10.0.0.1:7000", "10.0.0.1:7001")


@given(members)
def test_what_is_written_is_read(member: Member) -> None:
    assert Member.from_json(member.to_json()) == member


@given(members, st.dictionaries(st.text(min_size=1).map("later_{}".format), st.integers() | st.text(), max_size=3))
def test_fields_of_later_versions_are_ignored(member: Member, later: dict[str, object]) -> None:
    text = json.dumps({**later, **json.loads(member.to_json())}).encode()
    assert Member.from_json(text) == member


@pytest.mark.parametrize("name", ["host", "zone", "capacity_bytes", "version", "protocol", "draining"])
def test_fields_of_earlier_versions_may_be_missing(name: str) -> None:
    fields = json.loads(ONE.to_json())
    del fields[name]
    assert Member.from_json(json.dumps(fields).encode()) == ONE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node_id", "00"),
        ("node_id", None),
        ("boot_id", "no hex" * 4),
        ("boot_id", 7),
        ("data_address", "host"),
        ("control_address", "host:0"),
        ("control_address", ":7001"),
        ("control_address", ""),
        ("control_address", 7001),
        ("host", "x" * 256),
        ("zone", None),
        ("capacity_bytes", -1),
        ("capacity_bytes", True),
        ("capacity_bytes", 1.5),
        ("protocol", "1"),
        ("draining", 1),
    ],
)
def test_a_field_that_cannot_be_right_is_named(field: str, value: object) -> None:
    fields = {**json.loads(ONE.to_json()), field: value}
    with pytest.raises(InvalidArgument, match=field) as caught:
        Member.from_json(json.dumps(fields).encode())
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("name", ["node_id", "boot_id", "data_address", "control_address"])
def test_who_and_where_must_not_be_missing(name: str) -> None:
    fields = json.loads(ONE.to_json())
    del fields[name]
    with pytest.raises(InvalidArgument, match=name):
        Member.from_json(json.dumps(fields).encode())


@pytest.mark.parametrize("text", [b"", b"\xff", b"7", b"[]", b'"x"', b"[" * 8000, b"{" + b" " * 9000 + b"}"])
def test_what_is_no_member_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArgument, match="text"):
        Member.from_json(text)


@pytest.mark.parametrize("text", ["::1:7000", "[::1]", "a b:1", "host:65536", "host:-1", "host:٣", "http://host:1", ""])
def test_an_address_that_cannot_be_right_is_shown(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"must be like") as caught:
        split_address(text)
    assert repr(text) in caught.value.message


@given(st.sampled_from(["10.0.0.1", "name", "::1", "fe80::2"]), st.integers(1, 65_535))
def test_addresses_survive_being_written(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)
