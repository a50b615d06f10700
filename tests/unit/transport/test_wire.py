"""A client's connection against peers that misbehave, and the pool that holds connections."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kvstore.core.errors import (
    Busy,
    DeadlineExceeded,
    FrameTooLarge,
    KVStoreError,
    ProtocolError,
    TooManyKeys,
    Unavailable,
    UnknownOp,
)
from kvstore.transport.cancel import Cancel
from kvstore.transport.frame import Flag, Limits, Op, encode_header, recv_frame, send_frame
from kvstore.transport.pool import WirePool
from kvstore.transport.wire import READ_AHEAD, Address, Wire, resolve
from kvstore.transport.wire_error import encode_error


def soon(seconds: float = 30.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def pair() -> Iterator[tuple[Wire, socket.socket]]:
    ours, theirs = socket.socketpair()
    wire = Wire(ours)
    with theirs:
        yield wire, theirs
    wire.close()


def answer(peer: socket.socket, op: Op, message: bytes, payload: bytes = b"", **fields: int) -> None:
    send_frame(peer, op, message, [payload], **{"flags": Flag.REPLY, "request_id": 1, **fields})


def test_a_reply_is_returned_whatever_pieces_it_arrives_in(pair: tuple[Wire, socket.socket]) -> None:
    wire, peer = pair
    message = os.urandom(3 * READ_AHEAD)
    frame = encode_header(Op.MATCH, len(message), flags=Flag.REPLY, request_id=1) + message

    def trickle() -> None:
        assert recv_frame(peer) is not None
        for at in range(0, len(frame), 7000):
            peer.sendall(frame[at : at + 7000])
            time.sleep(0.001)

    thread = threading.Thread(target=trickle)
    thread.start()
    assert wire.request(Op.MATCH, b"question", soon()) == message
    thread.join()
    assert not wire.broken


def test_payload_read_ahead_is_not_lost(pair: tuple[Wire, socket.socket]) -> None:
    wire, peer = pair
    payload = os.urandom(100_000)
    wire.start(Op.GET, b"", soon())
    answer(peer, Op.GET, b"head", payload)
    header, message = wire.reply(Op.GET, soon())
    got = bytearray(header.payload_len)
    view = memoryview(got)
    for at in range(0, len(got), 9_999):
        wire.read_payload(view[at : at + 9_999], soon())
    assert (message, bytes(got)) == (b"head", payload)


@pytest.mark.parametrize(
    ("op", "fields"),
    [(Op.GET, {}), (Op.MATCH, {"request_id": 7}), (Op.MATCH, {"flags": 0})],
    ids=["op", "id", "request"],
)
def test_a_reply_to_something_else_breaks_the_connection(
    pair: tuple[Wire, socket.socket], op: Op, fields: dict[str, int]
) -> None:
    wire, peer = pair
    answer(peer, op, b"", **fields)
    with pytest.raises(ProtocolError, match="answered"):
        wire.request(Op.MATCH, b"", soon())
    assert wire.broken


def test_a_payload_that_nobody_asked_for_breaks_the_connection(pair: tuple[Wire, socket.socket]) -> None:
    wire, peer = pair
    answer(peer, Op.MATCH, b"", b"surplus")
    with pytest.raises(ProtocolError, match="7 bytes of payload"):
        wire.request(Op.MATCH, b"", soon())
    assert wire.broken


def test_a_reply_beyond_the_bounds_is_refused(pair: tuple[Wire, socket.socket]) -> None:
    wire, peer = pair
    wire.limits = Limits(max_header_bytes=10)
    answer(peer, Op.MATCH, bytes(11))
    with pytest.raises(FrameTooLarge):
        wire.request(Op.MATCH, b"", soon())
    assert wire.broken


@pytest.mark.parametrize(("error", "breaks"), [(Busy("full", limit=3), False), (UnknownOp("op 99"), True)])
def test_an_error_reply_is_raised_and_a_protocol_error_ends_the_connection(
    pair: tuple[Wire, socket.socket], error: KVStoreError, breaks: bool
) -> None:
    wire, peer = pair
    send_frame(peer, 0, encode_error(error), flags=Flag.REPLY | Flag.ERROR)  # an op the node could not read
    with pytest.raises(type(error)) as caught:
        wire.request(Op.MATCH, b"", soon())
    assert caught.value.details == error.details
    assert wire.broken is breaks


def test_a_node_that_refuses_a_large_request_and_closes_is_still_heard(pair: tuple[Wire, socket.socket]) -> None:
    wire, peer = pair
    send_frame(peer, Op.PUT, encode_error(TooManyKeys("at most 5")), flags=Flag.REPLY | Flag.ERROR)
    peer.shutdown(socket.SHUT_RD)
    with pytest.raises(TooManyKeys, match="at most 5"):
        wire.send(Op.PUT, [bytes(8 << 20)], soon())
    assert wire.broken


def test_a_closed_or_silent_node_ends_the_call_with_a_typed_error(pair: tuple[Wire, socket.socket]) -> None:
    wire, _ = pair
    with pytest.raises(DeadlineExceeded):
        wire.request(Op.PING, b"", soon(0.02))
    assert wire.broken
    other, theirs = socket.socketpair()
    theirs.close()
    lost = Wire(other)
    with pytest.raises(Unavailable):
        lost.request(Op.PING, b"", soon())
    assert lost.broken
    lost.close()


def test_a_reply_that_came_too_late_is_taken_and_the_connection_is_in_step_again(
    pair: tuple[Wire, socket.socket],
) -> None:
    wire, peer = pair
    for nth, payload in ((1, b""), (3, bytes(100_000))):
        with pytest.raises(DeadlineExceeded):
            wire.request(Op.GET, b"", soon(0.02))
        assert (wire.broken, wire.late) == (True, Op.GET)
        assert wire.overdue(soon()) is None
        thread = threading.Thread(target=answer, args=(peer, Op.GET, b"late", payload), kwargs={"request_id": nth})
        thread.start()
        found = None
        while found is None:
            found = wire.overdue(soon())
        thread.join()
        assert found == (Op.GET, b"late")
        assert (wire.broken, wire.late) == (False, None)
        answer(peer, Op.MATCH, b"in step", request_id=nth + 1)
        assert wire.request(Op.MATCH, b"", soon()) == b"in step"


def test_a_call_whose_deadline_has_passed_sends_nothing_and_breaks_nothing(pair: tuple[Wire, socket.socket]) -> None:
    wire, _ = pair
    with pytest.raises(DeadlineExceeded):
        wire.request(Op.PING, b"", soon(-1.0))
    assert not wire.broken


def test_a_call_can_be_interrupted_from_another_thread(pair: tuple[Wire, socket.socket]) -> None:
    wire, _ = pair
    threading.Timer(0.05, wire.interrupt).start()
    with pytest.raises(Unavailable):
        wire.request(Op.PING, b"", soon())


def test_names_are_resolved_within_the_deadline_or_not_at_all() -> None:
    assert resolve("127.0.0.1", 7000, 0.0)[0][1] == ("127.0.0.1", 7000)
    with pytest.raises((Unavailable, DeadlineExceeded)):
        resolve("no-such-host.invalid", 7000, soon(0.2))
    with pytest.raises(Unavailable, match="cannot connect"):
        Wire.connect(Address(path="/nonexistent/node.sock"), soon())


# --- pool ------------------------------------------------------------------------------------------------


@pytest.fixture
def peers() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for sock in made:
        sock.close()


def made_pool(peers: list[socket.socket], limit: int) -> WirePool:
    def open_wire(deadline: float) -> Wire:
        ours, theirs = socket.socketpair()
        peers.append(theirs)
        return Wire(ours)

    return WirePool(open_wire(0), open_wire, limit)


def closed(pool: WirePool) -> None:
    for wire in pool.close(interrupt=True):
        wire.close()


def test_the_pool_opens_connections_as_needed_up_to_its_bound(peers: list[socket.socket]) -> None:
    pool = made_pool(peers, 2)
    first, second = pool.take(soon()), pool.take(soon())
    assert len(peers) == 2
    with pytest.raises(DeadlineExceeded, match="all 2 connections"):
        pool.take(soon(0.02))
    assert pool.take_idle() is None
    threading.Timer(0.05, pool.give, (first,)).start()
    assert pool.take(soon()) is first
    pool.give(first)
    pool.give(second)
    assert pool.take(soon()) is second  # the warmest one
    pool.give(second)
    closed(pool)


def test_a_broken_connection_makes_room_for_a_new_one(peers: list[socket.socket]) -> None:
    pool = made_pool(peers, 1)
    wire = pool.take(soon())
    wire.broken = True
    assert pool.give(wire) is False
    assert pool.take(soon()) is not wire
    assert len(peers) == 2
    closed(pool)


def test_a_closed_pool_wakes_those_who_wait_and_interrupts_those_who_call(peers: list[socket.socket]) -> None:
    pool = made_pool(peers, 1)
    wire = pool.take(soon())
    errors: list[Exception] = []

    def attempt(call) -> None:  # type: ignore[no-untyped-def]
        try:
            call()
        except KVStoreError as error:
            errors.append(error)

    threads = [
        threading.Thread(target=attempt, args=(lambda: pool.take(soon()),)),
        threading.Thread(target=attempt, args=(lambda: wire.request(Op.PING, b"", soon()),)),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    closed(pool)
    for thread in threads:
        thread.join(10)
    assert [type(error) for error in errors] == [Unavailable, Unavailable]
    pool.give(wire)
    with pytest.raises(Unavailable, match="closed"):
        pool.take(soon())


def test_a_cancel_interrupts_the_connection_in_use_and_later_ones(peers: list[socket.socket]) -> None:
    pool, cancel = made_pool(peers, 2), Cancel()
    threading.Timer(0.05, cancel.cancel).start()
    with cancel.active():
        wire = pool.take(soon())
        with pytest.raises(Unavailable):
            wire.request(Op.PING, b"", soon())
        pool.give(wire)
        assert pool.take(soon()).broken
    closed(pool)
