"""Bad input on the data path: a typed error, no effect on the store, and other sessions live on."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from kvstore.core import errors
from kvstore.transport.frame import Op
from kvstore.v1 import data_pb2 as pb
from kvstore.v1 import types_pb2 as types
from tests.integration.bad_input.conftest import MAX_KEYS, still_works
from tests.integration.raw import SPEC, Raw, data_of, keys_of, payload_of, put_request, sums_of


@pytest.mark.parametrize("cut", [1, 8, 100_000, -8])
def test_a_put_of_the_wrong_block_size(raw: Raw, handle: int, cut: int) -> None:
    keys = keys_of(2)
    payload = payload_of(keys)
    wrong = payload[:-cut] if cut > 0 else payload + bytes(-cut)
    error = raw.error(Op.PUT, put_request(handle, keys), wrong)
    assert isinstance(error, errors.WrongBlockSize)
    assert (error.details["got"], error.details["want"]) == (str(len(wrong)), str(len(payload)))
    still_works(raw, handle)


@pytest.mark.parametrize("op", [Op.MATCH, Op.GET, Op.EVICT])
def test_a_key_of_the_wrong_length(raw: Raw, handle: int, op: Op) -> None:
    request = {Op.MATCH: pb.MatchRequest, Op.GET: pb.GetRequest, Op.EVICT: pb.EvictKeysRequest}[op]
    error = raw.error(op, request(namespace=handle, keys=bytes(17)))
    assert isinstance(error, errors.BadKey)
    still_works(raw, handle)


def test_a_put_with_a_key_of_the_wrong_length(raw: Raw, handle: int) -> None:
    request = pb.PutRequest(namespace=handle, chain=types.ChainSlice(keys=bytes(15)))
    assert isinstance(raw.error(Op.PUT, request, payload_of(keys_of(1))), errors.BadKey)
    still_works(raw, handle)


def test_too_many_keys(raw: Raw, handle: int) -> None:
    keys = os.urandom(16 * (MAX_KEYS + 1))
    requests = [
        (Op.MATCH, pb.MatchRequest(namespace=handle, keys=keys)),
        (Op.GET, pb.GetRequest(namespace=handle, keys=keys)),
        (Op.EVICT, pb.EvictKeysRequest(namespace=handle, keys=keys)),
        (Op.RESERVE, pb.ReserveRequest(namespace=handle, chain=types.ChainSlice(keys=keys))),
        (Op.PUT, put_request(handle, keys)),
    ]
    for op, request in requests:
        error = raw.error(op, request)
        assert isinstance(error, errors.TooManyKeys)
        assert error.details == {"got": str(MAX_KEYS + 1), "want": str(MAX_KEYS)}
    still_works(raw, handle)


def test_a_namespace_that_differs_names_the_field(raw: Raw, handle: int) -> None:
    other = replace(SPEC, kv_dtype="fp8", extra={"tp": "2"})
    error = raw.error(
        Op.OPEN_NAMESPACE, pb.OpenNamespaceRequest(canonical=other.canonical(), root=other.root, strict=True)
    )
    assert isinstance(error, errors.NamespaceMismatch)
    assert error.details["fields"] == "kv_dtype,extra.tp"
    assert "kv_dtype" in str(error)
    still_works(raw, handle)


@pytest.mark.parametrize(
    "canonical",
    [b"", b"{}", b"garbage", b"[1]", b"\xff\xfe", SPEC.canonical() + b" ", SPEC.canonical().replace(b"100000", b"-1")],
)
def test_what_is_no_canonical_form_opens_no_namespace(raw: Raw, handle: int, canonical: bytes) -> None:
    error = raw.error(Op.OPEN_NAMESPACE, pb.OpenNamespaceRequest(canonical=canonical))
    assert isinstance(error, errors.InvalidArgument)
    still_works(raw, handle)


def test_a_root_that_is_not_of_the_namespace(raw: Raw, handle: int) -> None:
    error = raw.error(Op.OPEN_NAMESPACE, pb.OpenNamespaceRequest(canonical=SPEC.canonical(), root=bytes(16)))
    assert isinstance(error, errors.InvalidArgument)
    assert SPEC.root.hex() in str(error)
    still_works(raw, handle)


@pytest.mark.parametrize("op", [Op.MATCH, Op.GET, Op.EVICT, Op.PUT, Op.RESERVE])
def test_an_unknown_namespace(raw: Raw, handle: int, op: Op) -> None:
    keys, unknown = keys_of(2), 4_000_000_000
    request = {
        Op.MATCH: pb.MatchRequest(namespace=unknown, keys=keys),
        Op.GET: pb.GetRequest(namespace=unknown, keys=keys),
        Op.EVICT: pb.EvictKeysRequest(namespace=unknown, keys=keys),
        Op.PUT: put_request(unknown, keys),
        Op.RESERVE: pb.ReserveRequest(namespace=unknown, chain=types.ChainSlice(keys=keys)),
    }[op]
    error = raw.error(op, request, payload_of(keys) if op is Op.PUT else b"")
    assert isinstance(error, errors.UnknownNamespace)
    still_works(raw, handle)


@pytest.mark.parametrize(("offset", "length"), [(1, 10), (0, 1), (65_536, 1), (0, 1 << 40), (1 << 63, 1 << 63)])
def test_a_range_that_is_not_on_chunks(raw: Raw, handle: int, offset: int, length: int) -> None:
    request = pb.GetRequest(namespace=handle, keys=keys_of(1), range_offset=offset, range_length=length)
    assert isinstance(raw.error(Op.GET, request), errors.MisalignedRange)
    still_works(raw, handle)


@pytest.mark.parametrize("parts", [[1], [0, 0], [4_294_967_295]])
def test_a_part_that_does_not_exist_or_comes_twice(raw: Raw, handle: int, parts: list[int]) -> None:
    for op, request in (
        (Op.MATCH, pb.MatchRequest(namespace=handle, keys=keys_of(1), parts=parts)),
        (Op.GET, pb.GetRequest(namespace=handle, keys=keys_of(1), parts=parts)),
        (Op.PUT, put_request(handle, keys_of(1), parts=parts)),
    ):
        error = raw.error(op, request)
        assert type(error) is errors.InvalidArgument
        assert error.details["field"] == "parts"
    still_works(raw, handle)


@pytest.mark.parametrize(
    "chain",
    [
        types.ChainSlice(),
        types.ChainSlice(keys=keys_of(1), parent=bytes(16)),
        types.ChainSlice(keys=keys_of(1), first_block=1),
        types.ChainSlice(keys=keys_of(1), first_block=1, parent=bytes(5)),
        types.ChainSlice(keys=keys_of(1), first_block=4_294_967_295, parent=bytes(16)),
    ],
)
def test_a_slice_that_is_of_no_chain(raw: Raw, handle: int, chain: types.ChainSlice) -> None:
    payload = payload_of(chain.keys)[: len(chain.keys) * 10_000] if chain.keys else b""
    error = raw.error(Op.PUT, pb.PutRequest(namespace=handle, chain=chain), payload)
    assert isinstance(error, errors.InvalidArgument)
    still_works(raw, handle)


@pytest.mark.parametrize("ack", [1, 2, 99])
def test_an_acknowledgement_that_the_node_cannot_keep(raw: Raw, handle: int, ack: int) -> None:
    keys = keys_of(1)
    error = raw.error(Op.PUT, put_request(handle, keys, ack=ack), payload_of(keys))
    assert type(error) is errors.Unsupported
    still_works(raw, handle)


def test_importance_that_is_not_one_number_a_key(raw: Raw, handle: int) -> None:
    keys = keys_of(2)
    error = raw.error(Op.PUT, put_request(handle, keys, importance=b"123"), payload_of(keys))
    assert isinstance(error, errors.InvalidArgument)
    still_works(raw, handle)


def test_what_belongs_to_shared_memory_is_refused_to_a_network_session(raw: Raw, handle: int) -> None:
    for step in (1, 2, 3, 0, 9):
        assert isinstance(raw.error(Op.ATTACH, pb.AttachRequest(step=step)), errors.Unsupported)  # type: ignore[arg-type]
    still_works(raw, handle)


def test_reservations_that_do_not_exist(raw: Raw, handle: int) -> None:
    for op, request in (
        (Op.WRITE, pb.WriteRequest(reservation=12345)),
        (Op.COMMIT, pb.CommitRequest(reservation=12345)),
        (Op.ABORT, pb.AbortRequest(reservation=12345)),
    ):
        assert isinstance(raw.error(op, request), errors.InvalidArgument)
    reply, _ = raw.call(Op.RELEASE, pb.ReleaseRequest(leases=[1, 2, 1 << 63]))
    assert list(reply.unbroken) == [False] * 3  # type: ignore[attr-defined]
    still_works(raw, handle)


def test_a_reservation_that_is_not_written_in_full_is_not_committed(raw: Raw, handle: int) -> None:
    keys = keys_of(2, salt=7)
    data = data_of(keys)
    reply, _ = raw.call(Op.RESERVE, pb.ReserveRequest(namespace=handle, chain=types.ChainSlice(keys=keys)))
    reservation = reply.reservation  # type: ignore[attr-defined]
    sums = sums_of(keys, data)
    commit = pb.CommitRequest(reservation=reservation, checksums=sums.tobytes())
    assert isinstance(raw.error(Op.COMMIT, commit), errors.InvalidArgument)
    half = sums.reshape(2, 2)[:, 0].tobytes()
    write = pb.WriteRequest(reservation=reservation, range_offset=0, range_length=65_536)
    raw.call(Op.WRITE, write, b"".join(block[:65_536] for block in data) + half)
    assert isinstance(raw.error(Op.COMMIT, commit), errors.InvalidArgument)
    assert isinstance(raw.error(Op.WRITE, write, b"short"), errors.WrongBlockSize)
    short = pb.CommitRequest(reservation=reservation, checksums=sums[:1].tobytes())
    assert isinstance(raw.error(Op.COMMIT, short), errors.InvalidArgument)
    assert raw.match(handle, keys) == 0
    raw.call(Op.ABORT, pb.AbortRequest(reservation=reservation))


def test_bytes_that_do_not_match_their_checksums_are_not_stored(raw: Raw, handle: int) -> None:
    keys = keys_of(2, salt=8)
    payload = bytearray(payload_of(keys))
    payload[150_000] ^= 1
    reply, _ = raw.call(Op.PUT, put_request(handle, keys), bytes(payload))
    assert set(reply.outcomes) == {types.PUT_OUTCOME_CHECKSUM}  # type: ignore[attr-defined]
    assert raw.match(handle, keys) == 0


def test_a_block_whose_parent_is_not_here_is_not_stored(raw: Raw, handle: int) -> None:
    keys = keys_of(3, salt=9)
    reply, _ = raw.call(Op.PUT, put_request(handle, keys, first=1), payload_of(keys[16:]))
    assert set(reply.outcomes) == {types.PUT_OUTCOME_PARENT_MISSING}  # type: ignore[attr-defined]
    still_works(raw, handle)
