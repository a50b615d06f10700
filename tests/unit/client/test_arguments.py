"""Wrong types in calls are InvalidArgument that names the argument; closed and unentered things say so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvstore import Client, NamespaceSpec
from kvstore.client.namespace import Namespace
from kvstore.core.errors import Closed, InvalidArgument, TooManyKeys

SPEC = NamespaceSpec("m", 4, 4096)


@pytest.fixture
def space() -> Namespace:
    return Namespace(Client("unix:///nonexistent/socket"), SPEC)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Client(7),
        lambda: Client(timeout="1"),
        lambda: Client(timeout=float("nan")),
        lambda: Client(connections=1.5),
        lambda: Client().namespace({"model": "m"}),
    ],
)
def test_a_client_takes_the_right_types_alone(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument):
        make()


@pytest.mark.parametrize(
    "call",
    [
        lambda space: space.match(None),
        lambda space: space.match("0123456789abcdef"),
        lambda space: space.match([], request_id="x"),
        lambda space: space.match([], parts=0),
        lambda space: space.match([], parts=()),
        lambda space: space.put(bytes(16), None),
        lambda space: space.put(bytes(16), bytes(4096), first="0"),
        lambda space: space.put(bytes(16), bytes(4096), importance="high"),
        lambda space: space.put(bytes(16), bytes(4096), appended_tokens=None),
        lambda space: space.get(bytes(16), bytearray(4096), range=5),
        lambda space: space.get(bytes(16), bytearray(4096), range=(0, "all")),
        lambda space: space.keys(None),
        lambda space: space.keys_from_hashes(["text"]),
        lambda space: space.writer(bytes(16)).write((0, 4096), bytes(4096)),
    ],
)
def test_wrong_types_are_refused_with_clear_words(space: Namespace, call: Callable[[Namespace], object]) -> None:
    with pytest.raises(InvalidArgument):
        call(space)


@pytest.mark.parametrize(
    "call",
    [
        lambda space: space.match([], request_id=2**80),
        lambda space: space.get(bytes(16), bytearray(4096), request_id=2**64),
        lambda space: space.put(bytes(16), bytes(4096), request_id=2**64),
        lambda space: space.borrow(bytes(16), request_id=2**64),
        lambda space: space.borrow(bytes(16), request_id=-1),
        lambda space: space.put(bytes(16), bytes(4096), appended_tokens=2**32),
    ],
)
def test_numbers_that_the_protocol_has_no_room_for_are_refused(
    space: Namespace, call: Callable[[Namespace], object]
) -> None:
    with pytest.raises(InvalidArgument, match=r"(request_id|appended_tokens) must be"):
        call(space)


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), float("nan")])
def test_a_pin_that_does_not_end_is_asked_for_by_none(space: Namespace, ttl: float) -> None:
    with pytest.raises(InvalidArgument, match="or None for a pin that does not end"):
        space.pin(bytes(16), ttl=ttl)


def test_a_writer_takes_nothing_after_its_block_and_a_closed_client_nothing_at_all(space: Namespace) -> None:
    with space.writer(bytes(16)) as writer:
        pass
    with pytest.raises(InvalidArgument, match="after its with block"):
        writer.write((0, 4096), bytes(4096))
    space.client.close()
    for call in (space.borrow, space.writer):
        with pytest.raises(Closed):
            call(bytes(16))


def test_a_chain_that_no_lookup_could_name_is_not_put(space: Namespace) -> None:
    with pytest.raises(TooManyKeys):
        space.put(bytes(16 * 65_537), [], first=65_537)


def test_token_ids_out_of_range_are_named(space: Namespace) -> None:
    with pytest.raises(InvalidArgument, match="token id -5 at position 1"):
        space.keys([1, -5])
