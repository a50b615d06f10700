"""The frame codec: golden bytes, typed errors, partial sends, descriptors, a fuzz of the decoder."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.errors import (
    DeadlineExceeded,
    FrameTooLarge,
    KVStoreError,
    ProtocolError,
    Truncated,
    Unavailable,
    UnknownOp,
    VersionMismatch,
)
from kvstore.transport.frame import (
    HEADER_BYTES,
    MAGIC,
    Flag,
    Limits,
    Op,
    discard,
    encode_header,
    parse_header,
    recv_exact,
    recv_frame,
    recv_frame_descriptors,
    send_buffers,
    send_frame,
)

SMALL = Limits(max_header_bytes=1000, max_frame_bytes=2000)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_header_is_read_back_as_it_was_written() -> None:
    header = parse_header(encode_header(Op.PUT, 7, 99, flags=Flag.REPLY, request_id=0xFFFFFFFF))
    assert (header.op, header.flags, header.message_len, header.request_id, header.payload_len) == (
        Op.PUT,
        Flag.REPLY,
        7,
        0xFFFFFFFF,
        99,
    )


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1])
def test_short_header_is_truncated(length: int) -> None:
    with pytest.raises(Truncated, match="32 bytes"):
        parse_header(encode_header(Op.PING, 0)[:length])


def test_foreign_bytes_are_no_frame() -> None:
    with pytest.raises(ProtocolError, match="not a kvstore frame"):
        parse_header(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n______")


@pytest.mark.parametrize("version", [0, 2, 255])
def test_other_version_names_both_and_the_request(version: int) -> None:
    data = bytearray(encode_header(Op.PING, 0, request_id=5))
    data[4] = version
    with pytest.raises(VersionMismatch, match=f"version {version}.*speaks 1;") as caught:
        parse_header(data)
    assert caught.value.details["request_id"] == "5"


@pytest.mark.parametrize("op", [0, max(Op) + 1, 255])
def test_unknown_op_is_told_with_its_request(op: int) -> None:
    with pytest.raises(UnknownOp, match=str(op)) as caught:
        parse_header(encode_header(op, 0, request_id=9))
    assert caught.value.details == {"op": str(op), "request_id": "9"}


@pytest.mark.parametrize(("message", "payload"), [(1001, 0), (0, 2001), (0xFFFFFFFF, 0), (0, (1 << 64) - 1)])
def test_sizes_beyond_the_bounds_are_refused_before_anything_is_allocated(message: int, payload: int) -> None:
    with pytest.raises(FrameTooLarge, match="at most") as caught:
        parse_header(encode_header(Op.PUT, message, payload, request_id=3), SMALL)
    assert caught.value.details["request_id"] == "3"


def test_sizes_at_the_bounds_are_accepted() -> None:
    assert parse_header(encode_header(Op.PUT, 1000, 2000), SMALL).payload_len == 2000


@pytest.mark.parametrize("where", ["flags", "reserved"])
def test_bits_without_meaning_are_refused(where: str) -> None:
    data = bytearray(encode_header(Op.PING, 0))
    data[7 if where == "flags" else 31] = 0x80
    with pytest.raises(ProtocolError, match="unknown flags" if where == "flags" else "reserved bytes"):
        parse_header(data)


@given(st.binary(max_size=80))
def test_fuzz_any_bytes_give_a_header_within_bounds_or_a_typed_error(data: bytes) -> None:
    try:
        header = parse_header(data, SMALL)
    except ProtocolError:
        return
    assert header.message_len <= 1000
    assert header.payload_len <= 2000


@given(
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, 65_535),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
)
def test_fuzz_headers_with_the_right_magic(version: int, op: int, flags: int, message: int, payload: int) -> None:
    data = struct.pack("<IBBHIIQQ", MAGIC, version, op, flags, message, 1, payload, 0)
    try:
        header = parse_header(data, SMALL)
    except ProtocolError:
        return
    assert encode_header(header.op, header.message_len, header.payload_len, flags=header.flags, request_id=1) == data


@given(st.binary(max_size=200))
def test_fuzz_a_stream_of_garbage_ends_in_a_typed_error_or_a_clean_close(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        try:
            while (frame := recv_frame(theirs, SMALL, time.monotonic() + 10)) is not None:
                discard(theirs, frame[0].payload_len, time.monotonic() + 10)
        except KVStoreError:
            return
        assert not data or data.startswith(MAGIC.to_bytes(4, "little"))


def test_a_payload_of_more_pieces_than_one_call_takes_arrives_in_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    payload = [os.urandom(1 + index % 4000) for index in range(2500)]
    sender = threading.Thread(target=send_frame, args=(ours, Op.PUT, b"message", payload), kwargs={"request_id": 4})
    sender.start()
    frame = recv_frame(theirs, deadline=time.monotonic() + 30)
    assert frame is not None
    header, message = frame
    assert (header.request_id, bytes(message)) == (4, b"message")
    got = memoryview(bytearray(header.payload_len))
    recv_exact(theirs, got, time.monotonic() + 30)
    sender.join()
    assert got == b"".join(payload)


def test_a_message_too_large_to_be_joined_to_its_header_arrives(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    message = os.urandom(1 << 20)
    sender = threading.Thread(target=send_frame, args=(ours, Op.MATCH, message))
    sender.start()
    frame = recv_frame(theirs, deadline=time.monotonic() + 30)
    sender.join()
    assert frame is not None
    assert frame[1] == message


def test_announced_payload_may_follow_in_further_sends(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    send_frame(ours, Op.PUT, b"m", payload_len=6)
    send_buffers(ours, [b"ab", b"", memoryview(b"cdef")])
    frame = recv_frame(theirs)
    assert frame is not None
    assert frame[0].payload_len == 6
    view = memoryview(bytearray(6))
    recv_exact(theirs, view)
    assert view == b"abcdef"


def test_descriptors_travel_with_their_frame_and_are_close_on_exec(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    reader, writer = os.pipe()
    send_frame(ours, Op.ATTACH, b"memory-ro", descriptors=[reader], flags=Flag.REPLY)
    frame = recv_frame_descriptors(theirs)
    assert frame is not None
    header, message, descriptors = frame
    assert (header.op, bytes(message), len(descriptors)) == (Op.ATTACH, b"memory-ro", 1)
    assert not os.get_inheritable(descriptors[0])
    os.write(writer, b"x")
    assert os.read(descriptors[0], 1) == b"x"
    for descriptor in (reader, writer, *descriptors):
        os.close(descriptor)


def test_descriptors_of_a_bad_frame_are_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    reader, writer = os.pipe()
    ours.sendmsg([b"x" * 32], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", writer))])
    os.close(writer)
    with pytest.raises(ProtocolError):
        recv_frame_descriptors(theirs)
    assert os.read(reader, 1) == b""  # no writer is left
    os.close(reader)


def test_end_between_frames_is_none_and_within_one_is_truncated(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    send_frame(ours, Op.PING)
    ours.sendall(encode_header(Op.PING, 10)[:20])
    ours.close()
    assert recv_frame(theirs) is not None
    with pytest.raises(Truncated, match="20 of 32"):
        recv_frame(theirs)
    assert recv_frame(theirs) is None


def test_a_deadline_ends_a_receive_and_a_send_that_nobody_serves(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with pytest.raises(DeadlineExceeded):
        recv_frame(theirs, deadline=time.monotonic() + 0.02)
    with pytest.raises(DeadlineExceeded):
        send_frame(ours, Op.PUT, b"", [bytes(64 << 20)], deadline=time.monotonic() + 0.02)
    with pytest.raises(DeadlineExceeded):
        recv_frame(theirs, deadline=time.monotonic() - 1)


def test_a_lost_connection_is_unavailable(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(Unavailable, match="lost"):
        send_frame(ours, Op.PUT, b"", [bytes(1 << 20)])
