"""`kvstore fsck` finds what is damaged, says where, and removes it when asked to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvstore.cli import main
from kvstore.core.errors import ConfigError
from kvstore.tiers.nvme.fsck import fsck
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.tier import Slots
from tests.unit.nvme.blocks import Blocks, config, opened, recovered
from tests.unit.nvme.test_tier import flip

NUMBERS = list(range(30))


@pytest.fixture
def damaged(tmp_path: Path) -> Slots:
    """30 blocks of which the fourth has a wrong byte and the sixth a wrong trailer."""
    blocks = Blocks()
    with opened(config(tmp_path)) as tier:
        slots = blocks.put_durably(tier, NUMBERS)
    flip(tmp_path, int(slots.slots[3]), 77)
    flip(tmp_path, int(slots.slots[5]), blocks.bytes + 60)
    return slots


def test_a_sound_directory_is_clean(tmp_path: Path) -> None:
    blocks = Blocks()
    with opened(config(tmp_path)) as tier:
        blocks.put_durably(tier, NUMBERS)
    report = fsck(tmp_path)
    assert report.clean
    assert (report.entries, report.bytes, report.bad) == (30, 30 * blocks.bytes, [])


def test_damage_is_found_and_only_removed_when_asked_to(tmp_path: Path, damaged: Slots) -> None:
    bad = [(int(damaged.slots[3]), "checksum"), (int(damaged.slots[5]), "trailer")]
    assert fsck(tmp_path).bad == bad
    assert fsck(tmp_path, payload=False).bad == bad[1:]
    report = fsck(tmp_path, repair=True)
    assert report.clean
    assert report.repaired == 2
    assert fsck(tmp_path).bad == []
    tier = NvmeTier(config(tmp_path))
    assert set(recovered(tier)) == {Blocks().key(n) for n in NUMBERS if n not in (3, 5)}
    tier.close()


def test_an_index_that_cannot_be_read_is_told_and_its_repair_is_an_empty_tier(tmp_path: Path, damaged: Slots) -> None:
    (tmp_path / "index" / "data.mdb").write_bytes(b"\x00" * 65_536)
    report = fsck(tmp_path)
    assert not report.clean
    assert "index cannot be read" in report.trouble
    assert fsck(tmp_path, repair=True).clean
    with opened(config(tmp_path)) as tier:
        assert tier.stat().slots_used == 0
        Blocks().put_durably(tier, [1])


def test_a_segment_file_that_is_gone_takes_only_its_blocks(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as tier:
        slots = Blocks().put_durably(tier, NUMBERS)
    (tmp_path / "segment-000000.dat").unlink()
    lost = sorted(slot for slot in slots.slots.tolist() if slot < 256)
    report = fsck(tmp_path, repair=True)
    assert sorted(report.bad) == [(slot, "entry") for slot in lost]
    assert 0 < len(lost) < len(NUMBERS)
    assert fsck(tmp_path).clean


def test_segment_files_that_are_all_gone_are_misses_and_the_tier_opens(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as tier:
        slots = Blocks().put_durably(tier, NUMBERS)
    for path in tmp_path.glob("segment-*.dat"):
        path.unlink()
    bad = [(slot, "entry") for slot in sorted(slots.slots.tolist())]
    assert sorted(fsck(tmp_path).bad) == bad
    again = NvmeTier(config(tmp_path))
    assert recovered(again) == {}
    Blocks().put_durably(again, [1])
    again.close()
    assert fsck(tmp_path).clean


def test_the_entries_of_files_that_are_all_gone_are_repaired(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as tier:
        Blocks().put_durably(tier, NUMBERS)
    for path in tmp_path.glob("segment-*.dat"):
        path.unlink()
    assert fsck(tmp_path, repair=True).repaired == len(NUMBERS)
    assert fsck(tmp_path).clean


def test_a_directory_in_use_or_without_a_tier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no NVMe tier"):
        fsck(tmp_path)
    with opened(config(tmp_path)), pytest.raises(ConfigError, match="in use"):
        fsck(tmp_path)


def test_the_command_prints_json_and_its_status_tells(tmp_path: Path, damaged: Slots, capsys) -> None:
    assert main(["fsck", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["reasons"] == {"checksum": 1, "trailer": 1}
    assert main(["fsck", str(tmp_path), "--repair"]) == 0
    assert "repaired: 2 removed" in capsys.readouterr().out
    assert main(["fsck", str(tmp_path)]) == 0
    assert "clean" in capsys.readouterr().out
