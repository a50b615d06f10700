"""Slots inside segments: nothing given out twice, sizes kept apart, empty segments change their size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.errors import InternalError
from kvstore.tiers.segments import SegmentSpace, SlotClass, slot_class

SMALL, LARGE = SlotClass(1, 192), SlotClass(5, 192)


def space(segments: int = 3, granules: int = 16, refuse: bool = False) -> SegmentSpace:
    found = SegmentSpace(32, granules, segments, lambda segment, kind: not refuse)
    for segment in range(segments):
        found.add(segment)
    return found


@given(st.lists(st.tuples(st.sampled_from([SMALL, LARGE, None]), st.integers(1, 20)), max_size=40), st.randoms())
def test_slots_in_use_never_overlap_and_freed_ones_come_back(steps, random):  # type: ignore[no-untyped-def]
    tested = space()
    held: dict[int, int] = {}  # address -> granules
    for kind, count in steps:
        if kind is None:
            gone = random.sample(sorted(held), min(count, len(held)))
            tested.free(np.array(gone, np.uint32))
            for slot in gone:
                del held[slot]
            continue
        room = tested.room(kind)
        slots = tested.allocate(kind, count).tolist()
        assert len(slots) == min(count, room) or len(slots) >= min(count, room)
        held.update(dict.fromkeys(slots, kind.granules))
        taken = sorted((slot, slot + size) for slot, size in held.items())
        assert all(taken[at][1] <= taken[at + 1][0] for at in range(len(taken) - 1))
        assert not taken or (taken[0][0] >= 32 and taken[-1][1] <= 32 + 3 * 16)
        assert tested.used_granules == sum(held.values())
    assert sorted(slot for at in tested.dedicated() for slot in tested.used_slots(at).tolist()) == sorted(held)


def test_a_segment_serves_one_slot_size_and_another_when_it_is_empty() -> None:
    tested = space(segments=1)
    large = tested.allocate(LARGE, 9)
    assert len(large) == 3  # 16 granules hold three slots of five
    assert len(tested.allocate(SMALL, 1)) == 0
    tested.free(large)
    assert len(tested.allocate(SMALL, 99)) == 16
    assert tested.usage(LARGE).slots == 0


def test_freeing_a_free_slot_is_a_bug_that_is_told() -> None:
    tested = space()
    slots = tested.allocate(SMALL, 2)
    tested.free(slots[:1])
    with pytest.raises(InternalError, match="were free already"):
        tested.free(slots)


def test_a_segment_whose_headers_find_no_memory_stays_where_it_was() -> None:
    tested = space(refuse=True)
    assert len(tested.allocate(SMALL, 1)) == 0
    assert len(tested.pool) == 3


def test_addresses_lead_back_to_segment_and_index() -> None:
    tested = space()
    slots = np.concatenate((tested.allocate(LARGE, 4), tested.allocate(SMALL, 3)))
    segments, indexes = tested.locate(slots)
    again = [tested.addresses(at, np.array([index]))[0] for at, index in zip(segments.tolist(), indexes, strict=True)]
    assert again == slots.tolist()


def test_at_recovery_used_slots_are_taken_and_free_ones_can_be_held() -> None:
    tested = SegmentSpace(32, 16, 2, lambda segment, kind: True)
    tested.adopt(0, LARGE, np.array([1]))
    assert tested.used_slots(0).tolist() == [37]
    wanted = np.array([32, 37, 38, 42, 47, 48], np.uint32)  # free, used, no slot, free, past the last, not dedicated
    assert tested.hold(wanted).tolist() == [32, 42]
    assert len(tested.allocate(LARGE, 5)) == 0
    tested.free(np.array([32], np.uint32))
    assert tested.allocate(LARGE, 5).tolist() == [32]


def test_headers_take_at_most_a_sixteenth_of_the_slots() -> None:
    for length, chunks in [(1, 1), (4096, 1), (9_000, 3), (4096, 80), (2 << 20, 16), (1 << 30, 4096)]:
        kind = slot_class(length, chunks)
        assert kind.granules * 4096 >= max(length, 16 * kind.stride)
        assert kind.stride >= 128 + 8 * chunks
        assert kind.stride % 64 == 0
