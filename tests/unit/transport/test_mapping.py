"""The node's memory in a client: parts of it, and that setting up their pages keeps no other thread waiting."""

from __future__ import annotations

import os

import numpy as np
import pytest

from kvstore.core.errors import ProtocolError
from kvstore.transport.mapping import MemoryMap

SIZE = 1 << 20


@pytest.fixture
def memory() -> MemoryMap:
    descriptor = os.memfd_create("memory")
    os.ftruncate(descriptor, SIZE)
    os.pwrite(descriptor, bytes(range(256)) * (SIZE // 256), 0)
    made = MemoryMap(descriptor, SIZE, writable=True)
    os.close(descriptor)
    return made


@pytest.mark.parametrize(("offset", "length"), [(0, 1), (4096, 70_000), (5000, 10), (SIZE - 1, 1), (0, SIZE)])
def test_a_part_is_the_bytes_at_its_place(memory: MemoryMap, offset: int, length: int) -> None:
    for _ in range(2):  # the first time its pages are set up
        part = memory.part(offset, length)
        assert np.array_equal(part, memory.array[offset : offset + length])
        part[:] = 7
    assert np.count_nonzero(memory.array == 7) >= length


@pytest.mark.parametrize(("offset", "length"), [(0, SIZE + 1), (SIZE, 1), (1 << 63, 4096)])
def test_a_part_beyond_the_file_is_refused(memory: MemoryMap, offset: int, length: int) -> None:
    with pytest.raises(ProtocolError, match="a memory file of 1048576 bytes"):
        memory.part(offset, length)
