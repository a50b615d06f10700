"""What lies on the disk is checked word by word: damage is found, not believed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.errors import ConfigError
from kvstore.tiers.nvme.format import (
    ENTRY,
    ENTRY_BYTES,
    DirectoryFormat,
    Trailer,
    intact,
    pack_trailer,
    read_trailer,
    seal,
    stride_bytes,
    trailer_bytes,
)


def trailer(chunks: int = 16) -> Trailer:
    sums = np.arange(1, chunks + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return Trailer(513, 7, 2 << 20, 128 << 10, 3, b"r" * 16, b"k" * 16, b"p" * 16, 9, 1, sums)


def test_a_trailer_comes_back_as_it_was_packed() -> None:
    memory = memoryview(bytearray(b"\xff" * trailer_bytes(16)))
    pack_trailer(memory, trailer())
    found = read_trailer(memory)
    assert found is not None
    assert found[:-1] == trailer()[:-1]
    assert (found.sums == trailer().sums).all()


@given(st.integers(0, (128 + 8 * 16) * 8 - 1))
def test_a_flipped_bit_in_a_trailer_is_found(bit: int) -> None:
    memory = memoryview(bytearray(trailer_bytes(16)))
    pack_trailer(memory, trailer())
    memory[bit // 8] ^= 1 << bit % 8
    assert read_trailer(memory) is None


def test_a_slot_of_zeros_has_no_trailer() -> None:
    assert read_trailer(memoryview(bytes(4096))) is None


@given(st.integers(0, ENTRY_BYTES * 8 - 1))
def test_a_flipped_bit_in_an_index_entry_is_found(bit: int) -> None:
    entries = np.zeros(3, ENTRY)
    entries["slot"], entries["key"] = 17, 23
    raw = bytearray(seal(entries).tobytes())
    raw[ENTRY_BYTES + bit // 8] ^= 1 << bit % 8
    assert intact(np.frombuffer(bytes(raw), ENTRY)).tolist() == [True, False, True]


def test_a_trailer_takes_one_granule_up_to_496_chunks() -> None:
    assert trailer_bytes(1) == trailer_bytes(496) == 4096
    assert trailer_bytes(497) == 8192
    assert stride_bytes(2 << 20, 16) == (2 << 20) + 4096
    assert stride_bytes((2 << 20) + 1, 16) == (2 << 20) + 8192


def test_a_directory_of_another_format_names_both_versions(tmp_path) -> None:
    (tmp_path / "format.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ConfigError, match="format 99, this version reads 1"):
        DirectoryFormat.open(tmp_path, "n", 1 << 20)


def test_a_damaged_format_file_is_refused_and_not_overwritten(tmp_path) -> None:
    (tmp_path / "format.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        DirectoryFormat.open(tmp_path, "n", 1 << 20)
    assert (tmp_path / "format.json").read_text() == "{"
