from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.checksum import MAX_CHUNK, MIN_CHUNK, Chunking, chunk_sums, chunking, part_seed
from kvstore.core.errors import MisalignedRange
from kvstore.core.namespace import PartSpec

KEY = bytes(range(16))
cuts = st.builds(Chunking, length=st.integers(1, 5000), chunk=st.integers(1, 700))
sizes = st.integers(1, 1 << 30)


@given(sizes)
def test_chunks_are_64_to_256_kib_and_page_aligned(length: int) -> None:
    cut = chunking(PartSpec("0", length))
    assert MIN_CHUNK <= cut.chunk <= MAX_CHUNK
    assert cut.chunk % 4096 == 0


@given(st.integers(1, 1 << 20), st.integers(1, 128))
def test_a_part_that_declares_layers_has_a_chunk_a_layer(layer: int, layers: int) -> None:
    cut = chunking(PartSpec("0", layer * layers, layers=layers))
    assert (cut.chunk, cut.count) == (layer, layers)


@given(cuts)
def test_chunks_tile_the_part(cut: Chunking) -> None:
    bounds = [cut.bounds(index) for index in range(cut.count)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == cut.length
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(bounds))
    assert all(0 < end - start <= cut.chunk for start, end in bounds)


@given(cuts, st.data())
def test_a_range_on_chunk_bounds_names_its_chunks(cut: Chunking, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, cut.count - 1))
    last = data.draw(st.integers(first, cut.count - 1))
    start, end = cut.bounds(first)[0], cut.bounds(last)[1]
    assert cut.span(start, end - start) == range(first, last + 1)
    assert cut.span(0, 0) == range(cut.count)


@given(cuts, st.integers(-800, 6000), st.integers(-800, 6000))
def test_any_other_range_is_refused_and_told_the_chunk(cut: Chunking, offset: int, length: int) -> None:
    bounds = {value for index in range(cut.count) for value in cut.bounds(index)}
    if (offset, length) == (0, 0) or (length > 0 and {offset, offset + length} <= bounds):
        assert cut.span(offset, length)
        return
    with pytest.raises(MisalignedRange) as raised:
        cut.span(offset, length)
    assert raised.value.details["chunk"] == str(cut.chunk)


@given(st.binary(min_size=1, max_size=4000), st.integers(1, 700), st.integers(0, 2**64 - 1), st.data())
def test_sums_of_a_range_are_a_slice_of_the_sums_of_the_part(
    payload: bytes, chunk: int, seed: int, data: st.DataObject
) -> None:
    cut = Chunking(len(payload), chunk)
    whole = chunk_sums(memoryview(payload), seed, cut)
    first = data.draw(st.integers(0, cut.count - 1))
    last = data.draw(st.integers(first, cut.count - 1))
    piece = memoryview(payload)[cut.bounds(first)[0] : cut.bounds(last)[1]]
    assert chunk_sums(piece, seed, cut, first).tolist() == whole[first : last + 1].tolist()


@given(st.binary(min_size=1, max_size=4000), st.integers(1, 700), st.data())
def test_a_flipped_bit_changes_the_sum_of_its_chunk_alone(payload: bytes, chunk: int, data: st.DataObject) -> None:
    cut = Chunking(len(payload), chunk)
    at = data.draw(st.integers(0, len(payload) - 1))
    damaged = bytearray(payload)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    before, after = (chunk_sums(memoryview(one), 7, cut).tolist() for one in (payload, damaged))
    assert [index for index in range(cut.count) if before[index] != after[index]] == [at // chunk]


def test_bytes_in_the_wrong_place_fail_their_check() -> None:
    cut = Chunking(8192, 4096)
    same = memoryview(bytes(8192))
    other_key = bytes(15) + b"\1"
    sums = {tuple(chunk_sums(same, part_seed(key, part), cut).tolist()) for key in (KEY, other_key) for part in (0, 1)}
    assert len({value for pair in sums for value in pair}) == 8  # each key, part and chunk has its own
