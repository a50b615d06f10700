"""Which buffers are taken, and what is said of those that are not."""

from __future__ import annotations

import array
import sys

import numpy as np
import pytest

from kvstore.client.buffers import rows
from kvstore.core.errors import InvalidArgument, WrongBlockSize
from kvstore.core.namespace import PartSpec
from kvstore.transport.plan import make_plan

ONE = make_plan((PartSpec("0", 64),), (), None)
TWO = make_plan((PartSpec("a", 64), PartSpec("b", 32)), (), None)


@pytest.mark.parametrize(
    "buffer",
    [
        bytes(range(64)),
        bytearray(range(64)),
        memoryview(bytes(range(64))),
        np.arange(64, dtype=np.uint8),
        np.arange(64, dtype=np.uint8).view(np.float32),
        np.arange(64, dtype=np.uint8).reshape(4, 4, 4),
        array.array("B", range(64)),
        memoryview(bytes(range(64))).cast("B", (8, 8)),
    ],
    ids=["bytes", "bytearray", "memoryview", "numpy", "float32", "shaped", "array", "shaped memoryview"],
)
def test_buffers_are_taken_as_they_lie_in_memory(buffer: object) -> None:
    [row] = rows([buffer], 1, ONE, writable=False)
    assert row.tobytes() == bytes(range(64))
    assert np.shares_memory(row, np.frombuffer(buffer, np.uint8))  # type: ignore[call-overload]


def test_torch_is_not_imported_for_other_buffers() -> None:
    import subprocess

    script = (
        "import sys; from kvstore.client.buffers import as_bytes; as_bytes(bytes(3), 0, False);"
        "import kvstore; kvstore.Client; assert not {'torch', 'grpc'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("buffer", [bytes(64), memoryview(bytes(64)), np.frombuffer(bytes(64), np.uint8)])
def test_a_read_only_buffer_cannot_be_filled(buffer: object) -> None:
    with pytest.raises(InvalidArgument, match=r"buffer 1 .*read-only"):
        rows([bytearray(64), buffer], 2, ONE, writable=True)


@pytest.mark.parametrize(
    "buffer",
    [
        "text",
        17,
        None,
        [1, 2],
        np.zeros((8, 16), np.uint8)[:, ::2],
        np.array([object()] * 8),
        memoryview(bytes(128))[::2],
    ],
    ids=["str", "int", "None", "list", "strided", "objects", "strided memoryview"],
)
def test_what_is_no_contiguous_buffer_is_named(buffer: object) -> None:
    with pytest.raises(InvalidArgument, match="buffer 0"):
        rows([buffer], 1, ONE, writable=False)


def test_one_wrong_object_for_all_blocks_is_called_so() -> None:
    with pytest.raises(InvalidArgument, match="buffer for all blocks is NoneType"):
        rows(None, 2, ONE, writable=False)


def test_a_wrong_size_names_index_got_and_want() -> None:
    with pytest.raises(WrongBlockSize, match="buffer 1 has 63 bytes, 64 are needed") as caught:
        rows([bytes(64), bytes(63)], 2, ONE, writable=False)
    assert caught.value.details == {"index": "1", "got": "63", "want": "64"}
    with pytest.raises(WrongBlockSize, match="buffer 1 has 64 bytes, 32 are needed"):
        rows([bytes(64), bytes(64)], 1, TWO, writable=False)
    with pytest.raises(WrongBlockSize, match="buffer 0 has 0 bytes"):
        rows([b""], 1, ONE, writable=False)


def test_a_wrong_number_of_buffers_is_told() -> None:
    with pytest.raises(InvalidArgument, match="3 buffers were given, 2 are needed"):
        rows([bytes(64)] * 3, 2, ONE, writable=False)
    with pytest.raises(InvalidArgument, match="4 \\(one a part\\) or 2 \\(one a block\\)"):
        rows([bytes(64)] * 3, 2, TWO, writable=False)


@pytest.mark.parametrize("form", ["parts", "blocks", "one", "matrix"])
def test_one_buffer_a_part_a_block_or_for_all_means_the_same(form: str) -> None:
    whole = np.arange(192, dtype=np.uint8)
    given = {
        "parts": [whole[0:64], whole[64:96], whole[96:160], whole[160:192]],
        "blocks": [whole[:96], whole[96:]],
        "one": whole,
        "matrix": whole.reshape(2, 96),
    }[form]
    found = rows(given, 2, TWO, writable=True)
    assert [row.size for row in found] == [64, 32, 64, 32]
    assert np.array_equal(np.concatenate(found), whole)
    assert all(np.shares_memory(row, whole) for row in found)


def test_no_blocks_need_no_buffers() -> None:
    assert rows([], 0, TWO, writable=True) == []
