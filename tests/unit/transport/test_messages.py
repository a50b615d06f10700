"""Payloads cut into UCX messages, over a wire in memory: both sides cut alike, whatever they are given in."""

from __future__ import annotations

import random
import time
from collections import defaultdict, deque
from typing import Any

import numpy as np
import pytest

from kvstore.core.errors import DeadlineExceeded, Unavailable
from kvstore.transport.fabric.messages import IN_FLIGHT, SEGMENT, Channel


class Request:
    """Of a message. ``completed`` looks whether there is one."""

    def __init__(self, wire: Wire, tag: int, buffer: Any) -> None:
        self.wire, self.tag, self.buffer, self.done = wire, tag, buffer, buffer is None

    @property
    def completed(self) -> bool:
        if not self.done and self.wire.waiting[self.tag][0] is self and self.wire.sent[self.tag]:
            message = self.wire.sent[self.tag].popleft()
            assert len(message) == len(self.buffer)  # UCX would cut or refuse it
            self.buffer[:] = message
            self.wire.waiting[self.tag].popleft()
            self.done = True
        return self.done

    def check_error(self) -> None:
        if self.wire.broken:
            raise ConnectionError("reset")


class Wire:
    """What a UcxWorker offers a channel."""

    def __init__(self) -> None:
        self.sent: dict[int, deque[Any]] = defaultdict(deque)
        self.waiting: dict[int, deque[Request]] = defaultdict(deque)
        self.broken = False
        self.closed: list[Any] = []

    def connect(self, address: bytes) -> Any:
        return address

    def send(self, endpoint: Any, buffer: Any, tag: int) -> Request:
        self.sent[tag].append(buffer.copy())
        return Request(self, tag, None)

    def receive(self, endpoint: Any, buffer: Any, tag: int) -> Request:
        request = Request(self, tag, buffer)
        self.waiting[tag].append(request)
        return request

    def close(self, endpoint: Any, held: Any) -> None:
        self.closed.append((endpoint, held))


def pair(alive: bool = True) -> tuple[Wire, Channel, Channel]:
    wire: Any = Wire()
    one = Channel(wire, b"b", send_tag=1, recv_tag=2, alive=lambda: alive)
    return wire, one, Channel(wire, b"a", send_tag=2, recv_tag=1, alive=lambda: alive)


def soon() -> float:
    return time.monotonic() + 5


def pieces(total: int, rng: random.Random) -> list[int]:
    sizes = []
    while total:
        sizes.append(min(total, rng.choice((1, 7, 4096, 65_536, SEGMENT - 1, SEGMENT, 3 * SEGMENT))))
        total -= sizes[-1]
    return sizes


@pytest.mark.parametrize("seed", range(12))
def test_what_is_sent_arrives_however_either_side_cuts_it(seed: int) -> None:
    rng = random.Random(seed)
    _, sender, receiver = pair()
    for _ in range(3):  # payloads follow one another on a channel
        total = rng.choice((1, SEGMENT, SEGMENT + 1, 5 * SEGMENT + 12_345, rng.randrange(1, 9 * SEGMENT)))
        data = np.random.default_rng(seed).integers(0, 256, total, dtype=np.uint8)
        into = np.zeros(total, np.uint8)
        sender.begin(total)
        at = 0
        for size in pieces(total, rng):
            sender.send([memoryview(data[at : at + size])], soon())
            at += size
        receiver.expect(total)
        at = 0
        for size in pieces(total, rng):
            receiver.receive(memoryview(into[at : at + size]), soon())
            at += size
        assert np.array_equal(into, data)


def test_no_more_segments_are_awaited_at_a_time_than_the_bound() -> None:
    wire, _, receiver = pair()
    receiver.expect(50 * SEGMENT)
    assert len(wire.waiting[1]) == IN_FLIGHT


def test_a_message_that_does_not_come_ends_at_the_deadline() -> None:
    _, _, receiver = pair()
    receiver.expect(10)
    with pytest.raises(DeadlineExceeded):
        receiver.receive(memoryview(bytearray(10)), time.monotonic() + 0.02)


def test_a_peer_that_is_gone_is_noticed_before_the_deadline() -> None:
    _, _, receiver = pair(alive=False)
    receiver.expect(10)
    with pytest.raises(Unavailable, match="went away"):
        receiver.receive(memoryview(bytearray(10)), time.monotonic() + 3600)


def test_a_message_that_failed_is_a_lost_connection() -> None:
    wire, sender, receiver = pair()
    sender.begin(10)
    sender.send([bytes(10)], soon())
    wire.broken = True
    receiver.expect(10)
    with pytest.raises(Unavailable, match="lost"):
        receiver.receive(memoryview(bytearray(10)), soon())


def test_buffers_of_messages_in_flight_are_handed_over_when_a_channel_closes() -> None:
    wire, _, receiver = pair()
    receiver.expect(3 * SEGMENT)
    receiver.close()
    receiver.close()  # again: harmless
    assert [(endpoint, len(held)) for endpoint, held in wire.closed] == [(b"a", 3)]
