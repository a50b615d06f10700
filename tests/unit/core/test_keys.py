from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.errors import BadKey, InvalidArgument
from kvstore.core.keys import KEY_BYTES, Keys, chain_keys, hashed_keys, key_array, token_array

ROOT = bytes(range(16))
tokens = st.lists(st.integers(0, 0xFFFFFFFF), max_size=60)
block_tokens = st.integers(1, 9)
raw_keys = st.integers(0, 12).flatmap(lambda n: st.binary(min_size=n * KEY_BYTES, max_size=n * KEY_BYTES))


@given(tokens, block_tokens)
def test_only_full_blocks_have_keys(ids: list[int], step: int) -> None:
    assert len(chain_keys(ROOT, ids, step)) == len(ids) // step * KEY_BYTES


@given(tokens, tokens, block_tokens)
def test_chains_share_keys_exactly_as_long_as_they_share_blocks(a: list[int], b: list[int], step: int) -> None:
    one, other = Keys(chain_keys(ROOT, a, step)), Keys(chain_keys(ROOT, b, step))
    for index in range(min(len(one), len(other))):
        end = (index + 1) * step
        assert (one[index] == other[index]) == (a[:end] == b[:end])


@given(tokens, block_tokens, st.binary(min_size=16, max_size=16))
def test_another_root_gives_other_keys(ids: list[int], step: int, root: bytes) -> None:
    keys = set(Keys(chain_keys(ROOT, ids, step)))
    assert root == ROOT or not keys & set(Keys(chain_keys(root, ids, step)))


@given(tokens, block_tokens)
def test_the_type_that_holds_the_tokens_does_not_matter(ids: list[int], step: int) -> None:
    expected = chain_keys(ROOT, ids, step)
    for dtype in ("<u4", ">u4", "<i8", ">u8"):
        assert chain_keys(ROOT, np.array(ids, dtype=dtype), step) == expected
    assert chain_keys(ROOT, tuple(ids), step) == expected
    spread = np.zeros(2 * len(ids), dtype=np.uint32)
    spread[::2] = ids
    assert chain_keys(ROOT, spread[::2], step) == expected


@pytest.mark.parametrize("bad", [[-1], [1 << 32], np.array([-5]), [1.5], [[1, 2]], ["a"], np.zeros((2, 2), np.uint32)])
def test_what_is_no_row_of_token_ids_is_refused(bad: object) -> None:
    with pytest.raises(InvalidArgument):
        token_array(bad)  # type: ignore[arg-type]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_engine_hashes_give_keys_that_differ_when_the_hashes_differ(hashes: list[bytes]) -> None:
    keys = Keys(hashed_keys(ROOT, hashes))
    assert len(keys) == len(hashes)
    assert len(set(keys)) == len(set(hashes))


@given(raw_keys)
def test_keys_are_a_sequence_of_their_sixteen_byte_pieces(raw: bytes) -> None:
    keys = Keys(raw)
    pieces = [raw[at : at + KEY_BYTES] for at in range(0, len(raw), KEY_BYTES)]
    assert list(keys) == pieces == [keys[i] for i in range(len(keys))]
    assert [keys[-1 - i] for i in range(len(keys))] == pieces[::-1]
    assert keys == Keys.of(pieces) == Keys.of(raw) == Keys.of(bytearray(raw)) == Keys.of(keys)
    assert hash(keys) == hash(Keys.of(pieces))
    with pytest.raises(IndexError):
        keys[len(keys)]


@given(raw_keys, st.integers(-15, 15) | st.none(), st.integers(-15, 15) | st.none())
def test_a_slice_of_keys_is_keys(raw: bytes, start: int | None, stop: int | None) -> None:
    assert list(Keys(raw)[start:stop]) == list(Keys(raw))[start:stop]


def test_a_slice_with_gaps_is_no_run_of_a_chain() -> None:
    with pytest.raises(BadKey, match="consecutive"):
        Keys(bytes(64))[::2]


@given(st.binary(max_size=70).filter(lambda raw: len(raw) % KEY_BYTES))
def test_bytes_that_are_not_whole_keys_are_refused(raw: bytes) -> None:
    for make in (Keys, Keys.of, key_array):
        with pytest.raises(BadKey):
            make(raw)  # type: ignore[operator]


@pytest.mark.parametrize("bad", [b"", b"short", bytes(17), "sixteen letters!", 7, None])
def test_a_wrong_single_key_is_named_by_its_index(bad: object) -> None:
    with pytest.raises(BadKey, match="key 1 is") as raised:
        Keys.of([bytes(16), bad])  # type: ignore[list-item]
    assert raised.value.details["index"] == "1"


@given(raw_keys)
def test_a_key_array_holds_the_little_endian_halves(raw: bytes) -> None:
    array = key_array(raw)
    assert array.shape == (len(raw) // KEY_BYTES, 2)
    for row, key in zip(array.tolist(), Keys(raw), strict=True):
        assert row == [int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")]
