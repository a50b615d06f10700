"""The device of host memory behaves like one that is far away; the HBM tier over it keeps what it was told to."""

from __future__ import annotations

import pytest

from kvstore.core.errors import ConfigError, InvalidArgument
from kvstore.tiers.hbm import Allocation, DeviceError, HbmTier, HostMemoryDevice
from kvstore.tiers.tier import Transfer

MIB = 1 << 20


def test_copies_of_one_stream_run_in_order_and_an_event_says_when_they_ended() -> None:
    device = HostMemoryDevice(MIB)
    memory, stream = device.allocate(MIB), device.stream()
    out = bytearray(4)
    for word in (b"one.", b"two.", b"last"):
        stream.copy_in(memory, 100, memoryview(word))
    stream.copy_out(memory, 100, memoryview(out))
    assert stream.record().wait(30)
    assert out == b"last"
    stream.close()
    device.free(memory)


def test_memory_is_bounded_and_comes_back() -> None:
    device = HostMemoryDevice(MIB)
    memory = device.allocate(MIB)
    with pytest.raises(DeviceError, match="left"):
        device.allocate(1)
    device.free(memory)
    with pytest.raises(DeviceError, match="twice"):
        device.free(memory)
    device.free(device.allocate(MIB))


def test_bytes_outside_of_an_allocation_are_out_of_reach() -> None:
    device = HostMemoryDevice(MIB)
    memory, stream = device.allocate(4096), device.stream()
    with pytest.raises(DeviceError):
        stream.copy_in(memory, 4000, memoryview(bytes(100)))
    with pytest.raises(DeviceError):
        stream.copy_out(Allocation(77, 4096), 0, memoryview(bytearray(1)))
    stream.close()


def test_a_failed_copy_is_told_by_the_next_event_and_only_by_it() -> None:
    device = HostMemoryDevice(MIB)
    memory, stream = device.allocate(4096), device.stream()
    stream.copy_out(memory, 0, memoryview(bytes(10)))  # not writable
    with pytest.raises(DeviceError, match="failed"):
        stream.record().wait(30)
    assert stream.record().wait(30)
    stream.close()


def test_there_is_no_view_of_a_slot_and_no_copy_past_its_end() -> None:
    tier = HbmTier(HostMemoryDevice(4 * MIB), 4 * MIB, MIB)
    slot = int(tier.allocate(100_000, 2, 1).slots[0])
    assert tier.view(slot, 100) is None
    with pytest.raises(InvalidArgument, match="do not lie in slot"):
        tier.write([Transfer(slot, 100_000, memoryview(bytes(10_000)))])
    tier.close()


def test_copies_can_be_started_together_and_waited_for_later() -> None:
    tier = HbmTier(HostMemoryDevice(4 * MIB), 4 * MIB, MIB, streams=3)
    slots = tier.allocate(100_000, 2, 20).slots.tolist()
    contents = [bytes([at]) * 100_000 for at in range(20)]
    events = tier.start_write([Transfer(s, 0, memoryview(c)) for s, c in zip(slots, contents, strict=True)])
    assert all(event.wait(30) for event in events)
    into = [bytearray(100_000) for _ in slots]
    for event in tier.start_read([Transfer(s, 0, memoryview(b)) for s, b in zip(slots, into, strict=True)]):
        event.wait()
    assert into == contents
    tier.close()


@pytest.mark.parametrize("segment", [0, 1000, 3 << 20, 8 << 20])
def test_segments_that_do_not_fit_are_refused(segment: int) -> None:
    with pytest.raises(ConfigError, match="power of two"):
        HbmTier(HostMemoryDevice(4 * MIB), 4 * MIB, segment)
