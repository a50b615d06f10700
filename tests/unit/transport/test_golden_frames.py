"""Golden wire frames, one of each op: these bytes are the contract with clients in other languages and versions."""

from __future__ import annotations

import socket

import pytest

from kvstore.core.errors import Busy
from kvstore.core.namespace import PartSpec
from kvstore.transport.batch import GetCall, PutCall, commit_request, get_request, reserve_request
from kvstore.transport.frame import Flag, Op, parse_header, send_frame
from kvstore.transport.plan import make_plan
from kvstore.transport.wire_error import decode_error, encode_error
from kvstore.v1 import data_pb2 as pb
from kvstore.v1 import types_pb2 as types

KEYS = bytes(range(32))
PLAN = make_plan((PartSpec("0", 128 << 10),), (), None)
PUT = PutCall(3, KEYS, bytes(16), 1, PLAN, 42, b"\x01\x00\x02\x00", 0, 32)
ATTACH = pb.AttachRequest()
ATTACH.step = pb.AttachRequest.STEP_READ
PREFETCH = pb.PrefetchKeysRequest(namespace=3, keys=KEYS, parts=[0, 2], deadline_ms=250)
PREFETCH.tier = types.TIER_KIND_DRAM

REQUESTS: dict[Op, bytes] = {
    Op.HELLO: pb.HelloRequest(version=1, min_version=1, client="golden", shared_memory=True).SerializeToString(),
    Op.ATTACH: ATTACH.SerializeToString(),
    Op.OPEN_NAMESPACE: pb.OpenNamespaceRequest(canonical=b"{}", root=bytes(16), strict=True).SerializeToString(),
    Op.MATCH: pb.MatchRequest(namespace=3, keys=KEYS, parts=[0, 2], request_id=42).SerializeToString(),
    Op.GET: get_request(GetCall(3, KEYS, 1, PLAN, 42, release=7), 5),
    Op.RELEASE: pb.ReleaseRequest(leases=[7, 300]).SerializeToString(),
    Op.RESERVE: reserve_request(PUT),
    Op.WRITE: pb.WriteRequest(reservation=9, range_offset=65536, range_length=65536).SerializeToString(),
    Op.COMMIT: commit_request(9, [1, (1 << 64) - 1], 0),
    Op.ABORT: pb.AbortRequest(reservation=9).SerializeToString(),
    Op.PUT: reserve_request(PUT),
    Op.EVICT: pb.EvictKeysRequest(namespace=3, keys=KEYS).SerializeToString(),
    Op.PING: b"",
    Op.BYE: b"",
    Op.PIN: pb.PinKeysRequest(namespace=3, keys=KEYS, hard=True, ttl_seconds=1.5).SerializeToString(),
    Op.UNPIN: pb.UnpinKeysRequest(namespace=3, keys=KEYS).SerializeToString(),
    Op.ROTATE: pb.RotateRequest(namespace=3).SerializeToString(),
    Op.PREFETCH: PREFETCH.SerializeToString(),
    Op.FABRIC: pb.FabricRequest(address=b"ucx worker", tag=1 << 40).SerializeToString(),
    Op.ROUTE: pb.RouteRequest(namespace=3, keys=KEYS).SerializeToString(),
}
ERROR = "08111216616c6c2073657373696f6e73206172652074616b656e1a0a0a056c696d6974120134"
GOLDEN: dict[Op, str] = {
    Op.HELLO: ("4b565331010100000e0000000403020100000000000000000000000000000000080110011a06676f6c64656e2001"),
    Op.ATTACH: "4b565331010200000200000004030201000000000000000000000000000000000802",
    Op.OPEN_NAMESPACE: (
        "4b565331010300001800000004030201000000000000000000000000000000000a027b7d121000000000000000000000"
        "0000000000001801"
    ),
    Op.MATCH: (
        "4b565331010400002a000000040302010000000000000000000000000000000008031220000102030405060708090a0b"
        "0c0d0e0f101112131415161718191a1b1c1d1e1f1a020002202a"
    ),
    Op.GET: (
        "4b565331010500002d000000040302010000000000000000000000000000000008031220000102030405060708090a0b"
        "0c0d0e0f101112131415161718191a1b1c1d1e1f1801282a40054a0107"
    ),
    Op.RELEASE: "4b565331010604000500000004030201000000000000000000000000000000000a0307ac02",
    Op.RESERVE: (
        "4b56533101070000440000000403020100000000000000000000000000000000080312360a2000010203040506070809"
        "0a0b0c0d0e0f101112131415161718191a1b1c1d1e1f1210000000000000000000000000000000001801202a2a040100"
        "02003820"
    ),
    Op.WRITE: ("4b565331010800000a0000000403020108000000000000000000000000000000080910808004188080047061796c6f616421"),
    Op.COMMIT: (
        "4b56533101090000140000000403020100000000000000000000000000000000080912100100000000000000ffffffffffffffff"
    ),
    Op.ABORT: "4b565331010a00000200000004030201000000000000000000000000000000000809",
    Op.PUT: (
        "4b565331010b0000440000000403020108000000000000000000000000000000080312360a2000010203040506070809"
        "0a0b0c0d0e0f101112131415161718191a1b1c1d1e1f1210000000000000000000000000000000001801202a2a040100"
        "020038207061796c6f616421"
    ),
    Op.EVICT: (
        "4b565331010c000024000000040302010000000000000000000000000000000008031220000102030405060708090a0b"
        "0c0d0e0f101112131415161718191a1b1c1d1e1f"
    ),
    Op.PING: "4b565331010d0000000000000403020100000000000000000000000000000000",
    Op.BYE: "4b565331010e0000000000000403020100000000000000000000000000000000",
    Op.PIN: (
        "4b565331010f00002f000000040302010000000000000000000000000000000008031220000102030405060708090a0b"
        "0c0d0e0f101112131415161718191a1b1c1d1e1f180121000000000000f83f"
    ),
    Op.UNPIN: (
        "4b5653310110000024000000040302010000000000000000000000000000000008031220000102030405060708090a0b"
        "0c0d0e0f101112131415161718191a1b1c1d1e1f"
    ),
    Op.ROTATE: "4b565331011100000200000004030201000000000000000000000000000000000803",
    Op.PREFETCH: (
        "4b565331011200002d000000040302010000000000000000000000000000000008031220000102030405060708090a0b"
        "0c0d0e0f101112131415161718191a1b1c1d1e1f18012202000228fa01"
    ),
    Op.FABRIC: "4b565331011400001300000004030201000000000000000000000000000000000a0a75637820776f726b657210808080808020",
    Op.ROUTE: (
        "4b5653310113000024000000040302010000000000000000000000000000000008031220000102030405060708090a0b"
        "0c0d0e0f101112131415161718191a1b1c1d1e1f"
    ),
}


def frame(op: Op, message: bytes, payload: bytes = b"", flags: int = 0) -> bytes:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_frame(ours, op, message, [payload], flags=flags, request_id=0x01020304)
        return theirs.recv(1 << 16)


@pytest.mark.parametrize("op", list(Op))
def test_each_request_is_written_as_it_always_was(op: Op) -> None:
    payload = b"payload!" if op in (Op.PUT, Op.WRITE) else b""
    flags = Flag.ONE_WAY if op is Op.RELEASE else 0
    assert frame(op, REQUESTS[op], payload, flags).hex() == GOLDEN[op]


@pytest.mark.parametrize("op", list(Op))
def test_each_golden_frame_is_read(op: Op) -> None:
    data = bytes.fromhex(GOLDEN[op])
    header = parse_header(data)
    assert header.op is op
    assert header.request_id == 0x01020304
    assert len(data) == 32 + header.message_len + header.payload_len


def test_put_and_reserve_have_the_same_fields() -> None:
    put, reserve = pb.PutRequest(), pb.ReserveRequest()
    put.ParseFromString(REQUESTS[Op.PUT])
    reserve.ParseFromString(REQUESTS[Op.RESERVE])
    for name in ("namespace", "chain", "parts", "request_id", "importance", "ack", "appended_tokens"):
        assert getattr(put, name) == getattr(reserve, name)


def test_error_frame_carries_code_text_and_details() -> None:
    data = encode_error(Busy("all sessions are taken", limit=4))
    assert data.hex() == ERROR
    error = decode_error(data)
    assert type(error) is Busy
    assert (error.message, error.details) == ("all sessions are taken", {"limit": "4"})


def test_an_unexpected_exception_does_not_leak_its_text() -> None:
    error = decode_error(encode_error(RuntimeError("secret path")))
    assert "secret" not in str(error)
    assert "RuntimeError" in str(error)
