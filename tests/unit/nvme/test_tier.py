"""The NVMe tier on a working disk."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import numpy as np
import pytest

from kvstore.core.errors import ConfigError, InternalError, InvalidArgument
from kvstore.tiers.nvme.directory import NvmeConfig
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.tier import Transfer
from tests.unit.nvme.blocks import MIB, Blocks, config, opened, recovered, until

NUMBERS = list(range(1, 21))


def flip(directory: Path, slot: int, offset: int) -> None:
    """Flips one bit of a slot in its segment file."""
    number, within = divmod(slot, MIB // 4096)
    with open(directory / f"segment-{number:06d}.dat", "r+b", buffering=0) as file:
        file.seek(within * 4096 + offset)
        byte = file.read(1)
        file.seek(within * 4096 + offset)
        file.write(bytes([byte[0] ^ 0x10]))
        os.fsync(file.fileno())


@pytest.mark.parametrize("size", [1, 4095, 4096, 64 << 10, (64 << 10) + 1, 300_000])
def test_a_durable_block_of_any_size_is_there_after_a_restart(tmp_path: Path, size: int) -> None:
    blocks = Blocks(size)
    with opened(config(tmp_path)) as tier:
        slots = blocks.put_durably(tier, NUMBERS)
        assert blocks.get(tier, slots, NUMBERS) == [""] * len(NUMBERS)
    tier = NvmeTier(config(tmp_path))
    found = recovered(tier)
    assert list(tier.namespaces().values()) == [blocks.spec.canonical()]
    assert found == {
        blocks.key(n): (s, g) for n, s, g in zip(NUMBERS, slots.slots.tolist(), slots.generations.tolist(), strict=True)
    }
    assert blocks.get(tier, slots, NUMBERS) == [""] * len(NUMBERS)
    tier.close()


def test_recovered_columns_are_those_that_were_put(tmp_path: Path) -> None:
    blocks = Blocks()
    with opened(config(tmp_path)) as tier:
        blocks.put_durably(tier, NUMBERS)
    tier = NvmeTier(config(tmp_path))
    (batch,) = [entries for entries in tier.recover() if len(entries)]
    tier.close()
    assert sorted(batch.blocks.tolist()) == NUMBERS
    assert set(batch.importance.tolist()) == {7}
    assert set(batch.stamps.tolist()) == {1_000}
    assert set(batch.lengths.tolist()) == {blocks.bytes}
    assert set(batch.chunks.tolist()) == {blocks.cut.count}
    assert not len(batch.checksums)


def test_unaligned_buffers_move_the_same_bytes(tmp_path: Path) -> None:
    blocks = Blocks(100_000)
    with opened(config(tmp_path)) as tier:
        namespace = tier.open_namespace(blocks.spec.canonical())
        content = memoryview(bytearray(b"x") + bytes(blocks.content(5)))[1:]
        slots = blocks.allocate(tier, 1)
        ticket = tier.persist(blocks.entries(namespace, slots, [5], [content]), [content])
        assert ticket.wait_durable(30)
        (want,) = blocks.wants(tier, slots, [5])
        into = memoryview(bytearray(blocks.bytes + 3))[3:]
        (got,) = tier.fetch([want._replace(into=into)])
        assert not got.reason
        assert into == content


def test_a_freed_block_is_not_recovered_and_its_slot_is_used_again(tmp_path: Path) -> None:
    blocks = Blocks(500_000)  # two slots a segment
    with opened(config(tmp_path, 4 * MIB)) as tier:
        slots = blocks.put_durably(tier, [1, 2])
        tier.free(slots.slots[:1])
        assert until(lambda: not tier.details().limbo)
        again = blocks.put_durably(tier, [3])
        assert again.slots[0] == slots.slots[0]
        assert again.generations[0] > slots.generations.max()
        assert blocks.get(tier, slots, [1, 2]) == ["stale", ""]
    tier = NvmeTier(config(tmp_path, 4 * MIB))
    assert set(recovered(tier)) == {blocks.key(2), blocks.key(3)}
    tier.close()


def test_generations_rise_over_restarts(tmp_path: Path) -> None:
    blocks, last = Blocks(), 0
    for number in range(3):
        with opened(config(tmp_path)) as tier:
            slots = blocks.put_durably(tier, [number])
            assert int(slots.generations[0]) > last
            last = int(slots.generations[0])


def test_freeing_twice_is_a_bug_that_is_named(tmp_path: Path) -> None:
    blocks = Blocks()
    with opened(config(tmp_path)) as tier:
        slots = blocks.put_durably(tier, [1])
        tier.free(slots.slots)
        with pytest.raises(InternalError, match="free already"):
            tier.free(slots.slots)


@pytest.mark.parametrize("offset", [0, 65_535, 65_536, 65_536 + 8, 65_536 + 130])
def test_a_flipped_bit_is_a_counted_miss_and_never_served(tmp_path: Path, offset: int) -> None:
    blocks = Blocks()
    with opened(config(tmp_path)) as tier:
        slots = blocks.put_durably(tier, [1, 2, 3])
        flip(tmp_path, int(slots.slots[1]), offset)
        reasons = blocks.get(tier, slots, [1, 2, 3])
        assert reasons in (["", "checksum", ""], ["", "trailer", ""])
        assert tier.details().failures == {reasons[1]: 1}


def test_the_scrubber_finds_flipped_bits_and_says_where(tmp_path: Path) -> None:
    blocks = Blocks()
    with opened(config(tmp_path)) as tier:
        found: list[tuple[int, int, str]] = []
        tier.on_bad_slot(lambda *bad: found.append(bad))
        slots = blocks.put_durably(tier, NUMBERS)
        assert tier.scrub() == 0
        assert tier.details().scrubbed == len(NUMBERS)
        for index, offset in ((3, 1_000), (7, 65_536 + 20)):
            flip(tmp_path, int(slots.slots[index]), offset)
        assert tier.scrub() == 2
        assert found == [
            (int(slots.slots[3]), int(slots.generations[3]), "checksum"),
            (int(slots.slots[7]), int(slots.generations[7]), "trailer"),
        ]
        tier.free(np.array([slot for slot, _, _ in found], np.uint32))
        assert tier.scrub() == 0


def test_the_scrubber_keeps_to_its_rate(tmp_path: Path) -> None:
    blocks = Blocks()
    with opened(config(tmp_path)) as tier:
        blocks.put_durably(tier, NUMBERS)
    rate = 5 * blocks.bytes
    with opened(config(tmp_path, scrub_bytes=rate)) as tier:
        start = time.monotonic()
        assert until(lambda: tier.details().scrubbed >= 7)
        assert tier.details().scrubbed_bytes <= rate * (time.monotonic() - start + 1) + 2 * blocks.bytes


def test_a_read_that_names_another_key_generation_or_namespace_is_stale(tmp_path: Path) -> None:
    blocks, other = Blocks(), Blocks(model="other")
    with opened(config(tmp_path)) as tier:
        slots = blocks.put_durably(tier, [1, 2])
        number = tier.open_namespace(other.spec.canonical())
        (want, _) = blocks.wants(tier, slots, [1, 2])
        wrong = [
            want._replace(key=blocks.key(9)), want._replace(generation=want.generation + 1),
            want._replace(namespace=number), want._replace(slot=int(slots.slots[1])), want._replace(slot=want.slot + 1),
        ]  # fmt: skip
        assert [got.reason for got in tier.fetch(wrong)] == ["stale"] * len(wrong)


def test_a_chain_arrives_in_order_and_may_be_left_early(tmp_path: Path) -> None:
    blocks = Blocks()
    numbers = list(range(100))
    with opened(config(tmp_path)) as tier:
        slots = blocks.put_durably(tier, numbers)
        wants = blocks.wants(tier, slots, numbers)
        chain = tier.fetch(wants, window=4)
        for index in range(10):
            assert not next(chain).reason
            assert wants[index].into == blocks.content(index)
        chain.close()  # type: ignore[attr-defined]
        untouched = bytes(blocks.bytes)
        assert all(want.into == untouched for want in wants[14:])


def test_what_is_used_never_passes_the_capacity_index_included(tmp_path: Path) -> None:
    blocks = Blocks(4096)
    with opened(config(tmp_path, 8 * MIB)) as tier:
        numbers = 0
        while True:
            slots = blocks.allocate(tier, 100, patience=0.5)
            if len(slots.slots) < 100:
                break
            chosen = list(range(numbers, numbers + 100))
            contents = [blocks.content(n) for n in chosen]
            namespace = tier.open_namespace(blocks.spec.canonical())
            assert tier.persist(blocks.entries(namespace, slots, chosen, contents), contents).wait_durable(30)
            numbers += 100
        taken = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())
        assert taken <= 8 * MIB
        assert numbers * 8192 >= 0.7 * 8 * MIB  # slots are data and trailer
        assert tier.health.state == "ok"


def test_an_emptied_tier_serves_another_block_size(tmp_path: Path) -> None:
    big, small = Blocks(400_000), Blocks(4096)
    with opened(config(tmp_path, 8 * MIB)) as tier:
        slots = big.allocate(tier, 1000, patience=0.5)
        tier.free(slots.slots)
        assert until(lambda: not tier.details().limbo)
        assert len(small.put_durably(tier, list(range(300))).slots) == 300


def test_a_lowered_capacity_gives_segments_back(tmp_path: Path) -> None:
    blocks = Blocks(400_000)
    with opened(config(tmp_path, 16 * MIB)) as tier:
        blocks.put_durably(tier, list(range(20)))
    with opened(config(tmp_path, 6 * MIB)) as tier:
        taken = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())
        assert taken <= 6 * MIB
        assert 0 < tier.stat().slots_used < 20
        assert tier.scrub() == 0


def test_a_directory_in_use_by_a_living_node_is_refused(tmp_path: Path) -> None:
    with opened(config(tmp_path)), pytest.raises(ConfigError, match=f"in use by a living node .process {os.getpid()}"):
        NvmeTier(config(tmp_path))
    with opened(config(tmp_path)) as tier:
        assert tier.health.state == "ok"


def test_the_directory_of_another_node_is_refused(tmp_path: Path) -> None:
    with opened(config(tmp_path)):
        pass
    with pytest.raises(ConfigError, match="belongs to node n1, this is node n2"):
        NvmeTier(NvmeConfig(tmp_path, 32 * MIB, "n2", segment_bytes=MIB))


@pytest.mark.parametrize(("capacity", "segment"), [(MIB, MIB), (32 * MIB, 3 * MIB), (32 * MIB, 4096)])
def test_sizes_that_cannot_work_are_refused(tmp_path: Path, capacity: int, segment: int) -> None:
    with pytest.raises(ConfigError):
        NvmeConfig(tmp_path, capacity, segment_bytes=segment).segment_size()


def test_a_slot_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as tier, pytest.raises(InvalidArgument, match="segment_bytes"):
        tier.allocate(MIB, 16, 1)


def test_bad_arguments_have_no_effect(tmp_path: Path) -> None:
    blocks = Blocks()
    with opened(config(tmp_path)) as tier:
        slots = blocks.allocate(tier, 1)
        content = blocks.content(1)
        with pytest.raises(InvalidArgument, match="knows no namespace"):
            tier.persist(blocks.entries(77, slots, [1], [content]), [content])
        namespace = tier.open_namespace(blocks.spec.canonical())
        with pytest.raises(InvalidArgument, match="lengths"):
            tier.persist(blocks.entries(namespace, slots, [1], [content]), [content[1:]])
        (want,) = blocks.wants(tier, slots, [1])
        with pytest.raises(InvalidArgument, match="does not fit"):
            tier.fetch([want._replace(into=want.into[1:])])
        assert [got.reason for got in tier.fetch([want])] == ["stale"]
        assert tier.details().writes == 0


# --- bytes and entries apart, as every tier has them ------------------------------------------------------------


def test_ranges_are_written_and_read_at_any_offset(tmp_path: Path) -> None:
    blocks = Blocks(50_000)
    with opened(config(tmp_path)) as tier:
        slots = blocks.allocate(tier, 2)
        content = bytes(blocks.content(1))
        cuts = [0, 10, 4096, 10_000, 20_480, 50_000]
        for start, end in reversed(list(itertools.pairwise(cuts))):
            tier.write([Transfer(int(slots.slots[1]), start, memoryview(content)[start:end])])
        for start, end in ((0, 50_000), (1, 2), (4096, 8192), (9_999, 30_000)):
            into = memoryview(bytearray(end - start))
            tier.read([Transfer(int(slots.slots[1]), start, into)])
            assert into == content[start:end]


def test_recorded_slots_are_recovered_forgotten_ones_are_not(tmp_path: Path) -> None:
    blocks = Blocks(200_000)
    numbers = [1, 2, 3]
    with opened(config(tmp_path)) as tier:
        namespace = tier.open_namespace(blocks.spec.canonical())
        slots = blocks.allocate(tier, 3)
        contents = [blocks.content(n) for n in numbers]
        tier.write([Transfer(s, 0, c) for s, c in zip(slots.slots.tolist(), contents, strict=True)])
        entries = blocks.entries(namespace, slots, numbers, contents)
        tier.record(entries)
        tier.sync()
        sums = entries.checksums.reshape(3, -1)
        assert (tier.checksums(slots.slots, range(blocks.cut.count)) == sums).all()
        assert (tier.checksums(slots.slots[1:], range(1, 2)) == sums[1:, 1:2]).all()
        tier.forget(slots.slots[:1])
        tier.sync()
        assert tier.stat().slots_used == 3
    tier = NvmeTier(config(tmp_path))
    assert set(recovered(tier)) == {blocks.key(2), blocks.key(3)}
    assert blocks.get(tier, slots, numbers) == ["stale", "", ""]
    tier.close()


def test_a_forgotten_slot_may_be_recorded_again(tmp_path: Path) -> None:
    blocks = Blocks(50_000)
    with opened(config(tmp_path)) as tier:
        slots = blocks.put_durably(tier, [1])
        tier.forget(slots.slots)
        content = blocks.content(2)
        ticket = tier.persist(blocks.entries(0, slots, [2], [content]), [content])
        assert ticket.wait_durable(30)
    tier = NvmeTier(config(tmp_path))
    assert set(recovered(tier)) == {blocks.key(2)}
    tier.close()


def test_a_dropped_namespace_is_not_recovered(tmp_path: Path) -> None:
    blocks, other = Blocks(), Blocks(model="other")
    with opened(config(tmp_path)) as tier:
        slots = blocks.put_durably(tier, [1])
        other.put_durably(tier, [1])
        tier.free(slots.slots)
        tier.drop_namespace(tier.open_namespace(blocks.spec.canonical()))
        tier.sync()
        assert list(tier.namespaces().values()) == [other.spec.canonical()]
    tier = NvmeTier(config(tmp_path))
    assert set(recovered(tier)) == {other.key(1)}
    assert list(tier.namespaces().values()) == [other.spec.canonical()]
    tier.close()


def test_the_last_use_of_slots_is_recovered(tmp_path: Path) -> None:
    blocks = Blocks()
    with opened(config(tmp_path)) as tier:
        slots = blocks.put_durably(tier, [1, 2, 3])
        tier.stamp(slots.slots[1:], 5_000)
        tier.free(slots.slots[2:])
        tier.sync()
    tier = NvmeTier(config(tmp_path))
    (batch,) = [entries for entries in tier.recover() if len(entries)]
    tier.close()
    assert batch.blocks.tolist() == [1, 2]
    assert batch.stamps.tolist() == [1_000, 5_000]


def test_a_directory_made_for_more_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    with opened(NvmeConfig(tmp_path, 32 * MIB, "n1", segment_bytes=8 * MIB, scrub_bytes=0)):
        pass
    for _ in range(2):  # and the directory stays free for others
        with pytest.raises(ConfigError, match="made with segments of 8388608 bytes"):
            NvmeTier(config(tmp_path, 8 * MIB))
