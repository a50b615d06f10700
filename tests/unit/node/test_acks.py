"""What a put is told of its copies."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.errors import Unsupported
from kvstore.node.acks import Acks, Blocks, held, sliced
from kvstore.node.outcomes import NOT_REPLICATED, PRESENT, STORED
from kvstore.tiers.values import AckLevel, ChainSlice, PutOutcome
from tests.unit.tiers.stores import ONE, keys_of, opened

KEYS = np.arange(40, dtype=np.uint64).reshape(-1, 2)
OTHER = int(PutOutcome.NO_SPACE)


class Copies:
    """Of a cell in which ``reached`` blocks of any chain are replicated."""

    def __init__(self, reached: int = 0) -> None:
        self.reached = reached
        self.waited: list[tuple[bytes, float | None]] = []
        self.owed: list[tuple[int, bytes, bytes, int]] = []

    def replicated(self, handle, key, deadline, alive):  # type: ignore[no-untyped-def]
        self.waited.append((key, deadline))
        return self.reached

    def owe(self, *what) -> None:  # type: ignore[no-untyped-def]
        self.owed.append(what)


def joined(copies: Copies, most: int | None = None) -> Acks:
    acks = Acks(most)
    acks.join(copies)
    return acks


def alive() -> bool:
    return True


def test_a_node_that_keeps_one_copy_refuses_and_says_what_to_set() -> None:
    acks = Acks()
    assert acks.check(AckLevel.VISIBLE) == AckLevel.VISIBLE
    assert acks.check(AckLevel.DURABLE) == AckLevel.DURABLE
    with pytest.raises(Unsupported, match="replicas = 2"):
        acks.check(AckLevel.REPLICATED)
    with pytest.raises(Unsupported, match="newer"):
        acks.check(7)
    assert joined(Copies()).check(AckLevel.REPLICATED) == AckLevel.VISIBLE  # is what the store is asked for


@given(
    st.binary(max_size=20).map(lambda raw: bytes(1 + byte % 9 for byte in raw)), st.integers(0, 60), st.integers(0, 40)
)
def test_stored_and_present_blocks_beyond_what_is_replicated_are_told_so_and_no_others(
    outcomes: bytes, reached: int, first: int
) -> None:
    blocks = Blocks(1, KEYS[: len(outcomes)], np.arange(first, first + len(outcomes)), b"")
    told = joined(Copies(reached)).stored(blocks, outcomes, AckLevel.REPLICATED, None, alive)
    for at, (before, after) in enumerate(zip(outcomes, told, strict=True)):
        lacks = before in (STORED, PRESENT) and first + at >= reached
        assert after == (NOT_REPLICATED if lacks else before)


def test_a_reservation_waits_for_what_was_here_before_alone() -> None:
    copies = Copies(1)
    blocks = sliced(1, ChainSlice(KEYS[:4]))
    told = joined(copies).reserved(blocks, bytes([PRESENT, PRESENT, STORED, STORED]), 5.0, alive)
    assert told == bytes([PRESENT, NOT_REPLICATED, STORED, STORED])
    assert copies.waited == [(KEYS[1].tobytes(), 5.0)]


@pytest.mark.parametrize("ack", [AckLevel.VISIBLE, AckLevel.DURABLE])
def test_new_blocks_are_owed_and_nobody_waits(ack: int) -> None:
    copies = Copies()
    blocks = sliced(3, ChainSlice(KEYS[4:8], KEYS[3].tobytes(), 4))
    outcomes = bytes([PRESENT, STORED, STORED, OTHER])
    assert joined(copies).stored(blocks, outcomes, ack, None, alive) == outcomes
    assert copies.owed == [(3, KEYS[6].tobytes(), KEYS[3].tobytes(), 2)]
    joined(copies).stored(blocks, bytes([PRESENT] * 4), ack, None, alive)
    assert (len(copies.owed), copies.waited) == (1, [])


def test_without_copies_to_make_nothing_is_asked() -> None:
    blocks = sliced(1, ChainSlice(KEYS[:1]))
    assert Acks().stored(blocks, bytes([STORED]), AckLevel.VISIBLE, None, alive) == bytes([STORED])


def test_past_the_bound_a_put_is_not_waited_for() -> None:
    copies, gate, inside = Copies(1), threading.Event(), threading.Event()

    def wait(handle, key, deadline, alive):  # type: ignore[no-untyped-def]
        if deadline > time.monotonic():
            inside.set()
            gate.wait(20.0)
            return 1
        return 0

    copies.replicated = wait  # type: ignore[method-assign]
    acks, blocks = joined(copies, most=1), sliced(1, ChainSlice(KEYS[:1]))
    told: list[bytes] = []

    def stored() -> bytes:
        return acks.stored(blocks, bytes([STORED]), AckLevel.REPLICATED, time.monotonic() + 60.0, alive)

    thread = threading.Thread(target=lambda: told.append(stored()))
    thread.start()
    assert inside.wait(20.0)
    assert stored() == bytes([NOT_REPLICATED])
    gate.set()
    thread.join()
    assert told == [bytes([STORED])]


def test_the_blocks_of_a_reservation_are_known_until_it_is_committed() -> None:
    with opened() as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        keys = keys_of(ONE, tuple(range(6)))
        reserved = store.reserve(session, view.handle, ChainSlice(keys))
        found = held(session, reserved.id)
        assert found is not None
        assert Acks().held(session, reserved.id) is None  # nobody needs to know
        assert (found.handle, found.parent, found.at.tolist()) == (view.handle, b"", list(range(6)))
        assert found.keys.tobytes() == keys.tobytes()
        store.abort(session, reserved.id)
        assert held(session, reserved.id) is None
