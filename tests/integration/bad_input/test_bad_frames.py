"""Frames that are wrong: a typed error, then the connection is closed, and nothing else happens."""

from __future__ import annotations

import socket
import struct

import numpy as np
import pytest

from kvstore.core import errors
from kvstore.core.errors import KVStoreError
from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.transport.frame import HEADER, MAGIC, Op, encode_header
from kvstore.transport.wire_error import decode_error
from kvstore.v1 import data_pb2 as pb
from tests.integration.bad_input.conftest import MAX_FRAME
from tests.integration.nodes import NodeProcess
from tests.integration.raw import Raw, keys_of, payload_of, put_request


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


@pytest.mark.parametrize(("lowest", "highest"), [(3, 9), (0, 0)])
def test_a_client_without_a_version_in_common(address: str, witness: Raw, lowest: int, highest: int) -> None:
    with Raw(address, hello=False) as raw:
        request = pb.HelloRequest(version=highest, min_version=lowest).SerializeToString()
        error = refused(raw, encode_header(Op.HELLO, len(request)) + request)
    assert isinstance(error, errors.VersionMismatch)
    assert f"{lowest} to {highest}" in str(error)


def test_a_newer_client_that_still_speaks_our_version(address: str, witness: Raw) -> None:
    with Raw(address, version=3, min_version=2) as raw:
        assert raw.greeting is not None
        assert raw.greeting.version == 2


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
        request = pb.OpenNamespaceRequest(canonical=spec.canonical(), root=spec.root)
        error = raw.error(Op.OPEN_NAMESPACE, request)
    assert isinstance(error, errors.InvalidArgument)
    assert "segment_bytes" in str(error)


def test_a_request_with_the_flags_of_a_reply_is_refused(raw: Raw) -> None:
    assert type(refused(raw, encode_header(Op.PING, 0, flags=1))) is errors.ProtocolError


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
