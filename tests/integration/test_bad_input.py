"""Bad input on the data path: a typed error, no effect on the store, and other sessions live on."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from kvstore.core import errors
from kvstore.core.errors import KVStoreError
from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.transport.frame import HEADER, MAGIC, Op, encode_header
from kvstore.transport.wire_error import decode_error
from kvstore.v1 import data_pb2 as pb
from kvstore.v1 import types_pb2 as types
from tests.integration.nodes import NodeProcess, node
from tests.integration.raw import SPEC, Raw, data_of, keys_of, payload_of, put_request, sums_of

MAX_FRAME = 4 << 20
MAX_KEYS = 100


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("bad-input")
    settings = {"max_frame_bytes": MAX_FRAME, "max_keys": MAX_KEYS, "heartbeat": "60s", "peer_timeout": "60s"}
    with node(folder, **settings) as process:
        yield process


@pytest.fixture(params=["unix", "tcp"])
def address(running: NodeProcess, request: pytest.FixtureRequest) -> str:
    return str(running.socket) if request.param == "unix" else running.data


@pytest.fixture
def witness(running: NodeProcess, address: str) -> Iterator[Raw]:
    """Another session with blocks of its own. After the test they are whole, nothing else came, and it still works."""
    with Raw(address) as raw:
        handle, keys = raw.open(), keys_of(3, salt=99)
        raw.put(handle, 3, salt=99)
        before = running.stat()
        yield raw
        assert raw.get(handle, keys)[1] == b"".join(data_of(keys))
        after = running.stat()
        for same in ("blocks", "writing", "leases", "namespaces"):
            assert _timeless(after[same]) == _timeless(before[same]), same
        assert after["tiers"][0]["used_bytes"] == before["tiers"][0]["used_bytes"]


def _timeless(value: object) -> object:
    if isinstance(value, list):
        return [{key: item for key, item in one.items() if key != "idle_seconds"} for one in value]
    return value


@pytest.fixture
def raw(address: str, witness: Raw) -> Iterator[Raw]:
    with Raw(address) as connection:
        yield connection


@pytest.fixture
def handle(raw: Raw) -> int:
    return raw.open()


def still_works(raw: Raw, handle: int) -> None:
    """The stream is in step."""
    assert raw.match(handle, keys_of(3, salt=99)) == 3


# --- errors after which the connection goes on -----------------------------------------------------------------


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


# --- errors after which the connection is closed ---------------------------------------------------------------


def header(**fields: int) -> bytes:
    values = {
        "magic": MAGIC,
        "version": 1,
        "op": int(Op.PING),
        "flags": 0,
        "header": 0,
        "id": 5,
        "payload": 0,
        "zero": 0,
    }
    return HEADER.pack(*{**values, **fields}.values())


def refused(raw: Raw, data: bytes) -> KVStoreError:
    """What these bytes are answered with; the connection is closed after it."""
    raw.sock.sendall(data)
    error = raw.expect_error()
    raw.sock.shutdown(socket.SHUT_WR)
    assert raw.closed()
    return error


def test_garbage(raw: Raw) -> None:
    assert type(refused(raw, b"GET / HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n")) is errors.ProtocolError


def test_much_garbage(raw: Raw) -> None:
    assert type(refused(raw, np.random.default_rng(1).bytes(300_000))) is errors.ProtocolError


def test_an_unknown_op(raw: Raw) -> None:
    error = refused(raw, header(op=200))
    assert isinstance(error, errors.UnknownOp)
    assert error.details["request_id"] == "5"


def test_a_wrong_protocol_version(raw: Raw) -> None:
    error = refused(raw, header(version=9))
    assert isinstance(error, errors.VersionMismatch)
    assert error.details["got"] == "9"


def test_reserved_bits(raw: Raw) -> None:
    assert type(refused(raw, header(zero=1))) is errors.ProtocolError


@pytest.mark.parametrize("field", ["header", "payload"])
def test_an_oversized_frame_is_refused_before_anything_is_read(raw: Raw, field: str) -> None:
    size = {"header": (16 << 20) + 1, "payload": MAX_FRAME + 1}[field]
    error = refused(raw, header(op=int(Op.PUT), **{field: size}))
    assert isinstance(error, errors.FrameTooLarge)
    assert error.details["got"] == str(size)


def test_a_message_that_does_not_parse(raw: Raw) -> None:
    assert type(refused(raw, encode_header(Op.MATCH, 4) + b"\xff\xff\xff\xff")) is errors.ProtocolError


def test_a_payload_for_an_op_that_takes_none(raw: Raw) -> None:
    assert type(refused(raw, encode_header(Op.PING, 0, 10) + bytes(10))) is errors.ProtocolError


def test_hello_twice(raw: Raw) -> None:
    request = pb.HelloRequest(version=1, min_version=1).SerializeToString()
    assert type(refused(raw, encode_header(Op.HELLO, len(request)) + request)) is errors.ProtocolError


@pytest.mark.parametrize("size", [0, 1, 100_000, 150_000, 200_000, 200_031])
def test_a_truncated_payload_leaves_nothing(running: NodeProcess, witness: Raw, address: str, size: int) -> None:
    keys = keys_of(2, salt=20)
    with Raw(address) as raw:
        handle = raw.open()
        message = put_request(handle, keys).SerializeToString()
        whole = payload_of(keys)
        raw.sock.sendall(encode_header(Op.PUT, len(message), len(whole)) + message + whole[:size])
        raw.sock.shutdown(socket.SHUT_WR)
        assert isinstance(raw.expect_error(), errors.Truncated)
        assert raw.closed()
    assert witness.match(handle, keys) == 0


def test_a_truncated_header_leaves_the_node_alone(address: str, witness: Raw) -> None:
    with Raw(address) as raw:
        raw.sock.sendall(header()[:20])
        raw.sock.shutdown(socket.SHUT_WR)
        raw.sock.recv(1000)
        assert raw.closed()


@pytest.mark.parametrize(("header_bytes", "payload"), [(1 << 20, 0), (0, 1)])
def test_a_stranger_may_not_send_much(address: str, witness: Raw, header_bytes: int, payload: int) -> None:
    with Raw(address, hello=False) as raw:
        data = header(op=int(Op.HELLO), header=header_bytes, payload=payload)
        assert isinstance(refused(raw, data), errors.FrameTooLarge)


def test_a_first_frame_that_is_not_hello(address: str, witness: Raw) -> None:
    with Raw(address, hello=False) as raw:
        assert type(refused(raw, header())) is errors.ProtocolError


@pytest.mark.parametrize(("lowest", "highest"), [(2, 9), (0, 0)])
def test_a_client_without_a_version_in_common(address: str, witness: Raw, lowest: int, highest: int) -> None:
    with Raw(address, hello=False) as raw:
        request = pb.HelloRequest(version=highest, min_version=lowest).SerializeToString()
        error = refused(raw, encode_header(Op.HELLO, len(request)) + request)
    assert isinstance(error, errors.VersionMismatch)
    assert f"{lowest} to {highest}" in str(error)


def test_a_newer_client_that_still_speaks_our_version(address: str, witness: Raw) -> None:
    with Raw(address, version=2, min_version=1) as raw:
        assert raw.greeting is not None
        assert raw.greeting.version == 1


def test_joining_a_session_that_does_not_exist(address: str, witness: Raw) -> None:
    with Raw(address, hello=False) as raw:
        request = pb.HelloRequest(version=1, min_version=1, join_session=bytes(16))
        assert isinstance(raw.error(Op.HELLO, request), errors.SessionLost)


def test_shared_memory_is_not_for_tcp(running: NodeProcess) -> None:
    with Raw(running.data, hello=False) as raw:
        request = pb.HelloRequest(version=1, min_version=1, shared_memory=True)
        assert isinstance(raw.error(Op.HELLO, request), errors.Unsupported)


def test_memory_is_not_given_to_a_session_that_has_not_locked_its_byte(running: NodeProcess) -> None:
    with Raw(str(running.socket), shared_memory=True) as raw:
        for step in (pb.AttachRequest.STEP_READ, pb.AttachRequest.STEP_WRITE):
            assert isinstance(raw.error(Op.ATTACH, pb.AttachRequest(step=step)), errors.SessionLost)
        assert isinstance(raw.error(Op.PUT, pb.PutRequest()), errors.Unsupported)
        assert isinstance(raw.error(Op.WRITE, pb.WriteRequest()), errors.Unsupported)


def test_a_part_larger_than_a_segment_names_the_setting(address: str) -> None:
    spec = NamespaceSpec(model="huge", block_tokens=4, parts=(PartSpec("0", 3 << 20),))
    with Raw(address) as raw:
        chain = types.ChainSlice(keys=keys_of(1, spec=spec))
        error = raw.error(Op.RESERVE, pb.ReserveRequest(namespace=raw.open(spec), chain=chain))
    assert isinstance(error, errors.InvalidArgument)
    assert "segment_bytes" in str(error)


def test_every_error_is_counted_by_its_code(running: NodeProcess, raw: Raw, handle: int) -> None:
    name = 'kvstore_errors_total{code="bad_key"}'
    before = running.metrics().get(name, 0.0)
    raw.error(Op.MATCH, pb.MatchRequest(namespace=handle, keys=b"x"))
    assert running.metrics()[name] == before + 1


def test_noise_of_every_kind_leaves_the_node_serving(address: str, witness: Raw) -> None:
    """Frames with valid headers and random content, and random headers."""
    random = np.random.default_rng(2)
    for _ in range(150):
        with Raw(address, hello=bool(random.integers(2))) as raw:
            op, message = int(random.integers(16)), random.bytes(int(random.integers(60)))
            payload = random.bytes(int(random.integers(60)))
            raw.sock.sendall(encode_header(op, len(message), len(payload)) + message + payload)
            raw.sock.sendall(struct.pack("<I", MAGIC) + random.bytes(28))
            raw.sock.shutdown(socket.SHUT_WR)
            while raw.sock.recv(65_536):
                pass


def test_the_error_frame_carries_code_text_and_details(raw: Raw, handle: int) -> None:
    raw.send(Op.MATCH, pb.MatchRequest(namespace=handle, keys=b"x"))
    found, message, payload = raw.receive()
    assert found.is_error
    assert payload == b""
    assert decode_error(message).details == {"got": "1"}
