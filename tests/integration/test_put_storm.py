"""Eight processes put twice as much as DRAM holds: nothing is dropped while NVMe has room, all comes back as it was."""

from __future__ import annotations

import pytest

from kvstore.cli.bench.storm import Storm, Weathered, rows_of, settings, weather
from tests.integration.nodes import node

MIB = 1 << 20
STORM = Storm(dram_bytes=48 * MIB, block_bytes=256 << 10)


@pytest.fixture(scope="module")
def weathered(tmp_path_factory: pytest.TempPathFactory) -> Weathered:
    folder = tmp_path_factory.mktemp("storm")
    with node(folder, **{"capacity": STORM.dram_bytes, "room_wait": "60s", **settings(STORM, folder / "nvme")}) as one:
        assert one.process
        return weather(one.target, one.process.pid, STORM)


def test_no_put_is_dropped_while_nvme_has_room(weathered: Weathered) -> None:
    assert sum(outcome.put for outcome in weathered.outcomes) == STORM.blocks
    assert STORM.blocks * STORM.block_bytes >= 2 * STORM.dram_bytes
    assert weathered.dropped == {}


def test_every_block_of_it_comes_back_byte_for_byte(weathered: Weathered) -> None:
    assert (weathered.missing, weathered.wrong) == (0, 0)


def test_the_memory_of_the_node_stays_where_it_was(weathered: Weathered) -> None:
    assert weathered.watch.growth < 16 * MIB
    assert max(weathered.watch.private) < 256 * MIB


def test_the_slowest_puts_are_reported(weathered: Weathered) -> None:
    rows = {one.case: one.value for one in rows_of(STORM, weathered)}
    assert 0 < rows["storm.put.p50"] <= rows["storm.put.p99"] <= rows["storm.put.most"]
