"""Plans, copies with checksums, and their spreading over threads."""

from __future__ import annotations

import threading
import time
import weakref

import numpy as np
import pytest

from kvstore.core.checksum import chunk_sums, chunking, part_seed
from kvstore.core.errors import MisalignedRange
from kvstore.core.namespace import PartSpec
from kvstore.transport.batch import GetCall, entries, present
from kvstore.transport.cancel import Cancel
from kvstore.transport.copying import SPREAD_BYTES, fetch, place, spread, verify
from kvstore.transport.plan import COPY_BYTES, STEP_BYTES, Piece, make_plan

KEY = bytes(range(16))
SPECS = (PartSpec("a", 3_000_000), PartSpec("b", 70_000, kind="window", group="w"), PartSpec("c", 60_000, layers=6))


def data(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def sums_of(source: np.ndarray, spec: PartSpec, part: int) -> list[int]:
    return chunk_sums(memoryview(source), part_seed(KEY, part), chunking(spec)).tolist()


@pytest.mark.parametrize("part", range(3))
def test_a_plan_covers_each_byte_once_in_whole_chunks(part: int) -> None:
    piece = make_plan(SPECS, (part,), None).pieces[0]
    assert [chunk[0] for chunk in piece.chunks] == [0, *(chunk[1] for chunk in piece.chunks)][:-1]
    assert piece.chunks[-1][1] == piece.length == SPECS[part].bytes
    for steps in (piece.steps, piece.copies):
        assert [chunk for _, _, chunks in steps for chunk in chunks] == list(piece.chunks)
        assert all((start, end) == (chunks[0][0], chunks[-1][1]) for start, end, chunks in steps)
    assert all(end - start <= STEP_BYTES for start, end, _ in piece.steps)


@pytest.mark.parametrize(
    "size", [1, 70_000, COPY_BYTES - 1, COPY_BYTES, 2 * COPY_BYTES - 1, 2 << 20, 3_000_000, 9 << 20]
)
def test_copies_are_large_enough_to_go_past_the_cache(size: int) -> None:
    piece = make_plan((PartSpec("a", size),), (), None).pieces[0]
    sizes = [end - start for start, end, _ in piece.copies]
    assert len(sizes) == 1 or min(sizes) >= COPY_BYTES
    assert sum(sizes) == size
    assert max(sizes) < 2 * COPY_BYTES + (256 << 10)


def test_a_range_names_chunks_by_their_place_in_the_part() -> None:
    plan = make_plan(SPECS, (2,), (20_000, 20_000))
    assert plan.pieces[0].chunks == ((0, 10_000, 2), (10_000, 20_000, 3))
    assert (plan.pieces[0].offset, plan.block_bytes, plan.block_chunks, plan.whole) == (20_000, 20_000, 2, False)


def test_a_range_of_everything_is_sent_as_everything() -> None:
    plan = make_plan(SPECS, (2,), (0, 60_000))
    assert plan.whole
    assert (plan.range_offset, plan.range_length) == (0, 0)


@pytest.mark.parametrize("span", [(1, 10_000), (0, 9_999), (50_000, 20_000), (0, 0), (10_000, -1)])
def test_a_range_across_chunks_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(MisalignedRange):
        make_plan(SPECS, (2,), span)


@pytest.mark.parametrize("part", range(3))
def test_what_place_wrote_fetch_accepts(part: int) -> None:
    piece, spec = make_plan(SPECS, (part,), None).pieces[0], SPECS[part]
    source, slot, back = data(spec.bytes), np.zeros(spec.bytes, np.uint8), np.zeros(spec.bytes, np.uint8)
    sums = [0] * (len(piece.chunks) + 2)
    place(slot, source, piece, part_seed(KEY, part), sums, 1)
    assert sums[1:-1] == sums_of(source, spec, part)
    assert fetch(back, slot, piece, part_seed(KEY, part), sums, 1)
    assert verify(memoryview(slot), piece, part_seed(KEY, part), sums, 1)
    assert np.array_equal(back, source)


@pytest.mark.parametrize("damage", ["byte", "key", "part", "shift"])
def test_damaged_or_misplaced_bytes_fail_their_check(damage: str) -> None:
    piece, spec = make_plan(SPECS, (0,), None).pieces[0], SPECS[0]
    slot = data(spec.bytes)
    sums = sums_of(slot, spec, 0)
    seed = part_seed(KEY, 0)
    if damage == "byte":
        slot[spec.bytes - 1] ^= 1
    elif damage == "key":
        seed = part_seed(KEY[::-1], 0)
    elif damage == "part":
        seed = part_seed(KEY, 1)
    else:
        slot = np.roll(slot, piece.chunks[0][1])
    assert not fetch(np.zeros(spec.bytes, np.uint8), slot, piece, seed, sums, 0)
    assert not verify(memoryview(slot), piece, seed, sums, 0)


def test_entries_are_block_major_with_running_checksums() -> None:
    plan = make_plan(SPECS, (1, 2), None)
    chunks = [len(piece.chunks) for piece in plan.pieces]
    assert [tuple(entry) for entry in entries(plan, 2)] == [
        (0, 0, 0, 0),
        (1, 0, 1, chunks[0]),
        (2, 1, 0, sum(chunks)),
        (3, 1, 1, sum(chunks) + chunks[0]),
    ]


def test_only_window_and_state_parts_may_be_holes() -> None:
    plan = make_plan(SPECS, (1, 2), None)
    call = GetCall(0, bytes(80), 3, plan)
    sums = [0] * (2 * plan.block_chunks)
    sums[plan.block_chunks] = 7  # the window part of the second block is here
    here, holes = present(call, entries(plan, 2), sums)
    assert holes == ((3, 0),)
    assert [entry.nth for entry in here] == [1, 2, 3]


@pytest.mark.parametrize("size", [0, SPREAD_BYTES])
def test_spread_does_every_item_once(size: int) -> None:
    done: list[int] = []
    assert spread(500, size, lambda item: done.append(item) is None, time.monotonic() + 60) == (500, False)
    assert sorted(done) == list(range(500))


@pytest.mark.parametrize("size", [0, SPREAD_BYTES])
def test_spread_tells_how_many_leading_items_were_good(size: int) -> None:
    for bad in (0, 7, 499):
        assert spread(500, size, lambda item, bad=bad: item != bad, time.monotonic() + 60) == (bad, False)


@pytest.mark.parametrize("size", [0, SPREAD_BYTES])
def test_spread_stops_at_the_deadline_and_at_a_cancel(size: int) -> None:
    assert spread(5, size, lambda _: True, time.monotonic() - 1) == (0, True)
    cancel = Cancel()
    with cancel.active():
        done, late = spread(500, size, lambda item: item != 3 or cancel.cancel() is None, time.monotonic() + 60)
    assert late
    assert 3 <= done < 500


@pytest.mark.parametrize("size", [0, SPREAD_BYTES])
def test_spread_raises_what_an_item_raised_after_all_threads_have_stopped(size: int) -> None:
    active = threading.Semaphore(0)

    def work(item: int) -> bool:
        if item == 20:
            raise ValueError("bad item")
        active.release()
        time.sleep(0.0005)
        active.acquire(timeout=5)
        return True

    with pytest.raises(ValueError, match="bad item"):
        spread(10_000, size, work, time.monotonic() + 60)
    assert not active.acquire(blocking=False)


def test_piece_is_a_value() -> None:
    assert isinstance(make_plan(SPECS, (0,), None).pieces[0], Piece)
    assert make_plan(SPECS, (), None) == make_plan(SPECS, (), None)


def test_what_spread_worked_on_is_let_go_of_when_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that is late must not keep a borrowed lease alive."""
    waiting: list[object] = []

    class Late:
        def available(self) -> bool:
            return True

        def call(self, job: object) -> None:
            waiting.append(job)  # it comes to it later

    class Lent:
        pass

    monkeypatch.setattr("kvstore.transport.copying._HELPERS", Late())
    lent = Lent()
    gone = weakref.ref(lent)

    def work(item: int, lent: Lent = lent) -> bool:
        return lent is not None

    assert spread(4, SPREAD_BYTES, work, time.monotonic() + 10) == (4, False)
    del lent, work
    assert waiting
    assert gone() is None
