"""A disk or index that fails at the start costs the NVMe tier, never the node."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest

from kvstore.core.errors import ConfigError
from kvstore.node.health import health_page
from kvstore.tiers import absent, opening
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import AckLevel, PutOutcome, StoreConfig
from tests.unit.tiers.filled import CHAIN, Filled, chain
from tests.unit.tiers.stores import STORED
from tests.unit.tiers.two_tiers import discard, still, two_tiers


def index_file(config: StoreConfig) -> Path:
    assert config.nvme_dir
    return config.nvme_dir / "index" / "data.mdb"


def filled_once(config: StoreConfig) -> None:
    """A directory with one chain, and an empty memory file."""
    with BlockStore(config) as store:
        assert Filled(store).put(1, ack=AckLevel.DURABLE) == [STORED] * CHAIN
        still(store)


def test_an_unreadable_index_leaves_a_node_with_dram_only_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absent, "_FIRST", 0.05)
    config = two_tiers()
    try:
        filled_once(config)
        sound = index_file(config).read_bytes()
        index_file(config).write_bytes(b"\xff" * len(sound))
        with BlockStore(config) as store:
            stat = store.stat()
            assert stat.nvme
            assert stat.nvme.state == "failed"
            assert "index" in stat.nvme.reason
            assert "fsck" in stat.nvme.advice
            assert [tier.name for tier in stat.tiers] == ["dram", "nvme"]
            page = health_page("ready", stat)
            assert page.status == 200
            assert b'"failed"' in page.body
            again = Filled(store)
            assert again.put(2) == [STORED] * CHAIN
            assert again.get(2) == CHAIN
            assert again.put(3, ack=AckLevel.DURABLE) == [PutOutcome.NOT_DURABLE] * CHAIN
            fetched = store.prefetch(None, again.view.handle, chain(2))
            assert (fetched.started, fetched.present, fetched.absent) == (0, CHAIN, 0)
            index_file(config).write_bytes(sound)
            assert until(store, "degraded")
            report = store.stat().nvme
            assert report
            assert "restart" in report.advice
        with BlockStore(config) as store:
            report = store.stat().nvme
            assert report
            assert (report.state, report.blocks) == ("ok", CHAIN)
            assert store.match(store.open_namespace(again.spec.canonical()).handle, chain(2)).blocks == CHAIN
    finally:
        discard(config)


def until(store: BlockStore, state: str, patience: float = 60.0) -> bool:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        report = store.stat().nvme
        if report and report.state == state:
            return True
        time.sleep(0.02)
    return False


def test_a_disk_that_answers_nothing_at_the_start_does_not_refuse_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*_: object) -> NvmeTier:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(opening, "NvmeTier", dead)
    monkeypatch.setattr(absent, "NvmeTier", dead)
    config = two_tiers()
    try:
        with BlockStore(config) as store:
            report = store.stat().nvme
            assert report
            assert report.state == "failed"
            assert "Input/output error" in report.reason
            assert Filled(store).put(1) == [STORED] * CHAIN
    finally:
        discard(config)


def test_a_directory_that_may_not_be_written_is_a_mistake_in_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> NvmeTier:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(opening, "NvmeTier", denied)
    config = two_tiers()
    try:
        with pytest.raises(ConfigError, match="may write"):
            BlockStore(config)
    finally:
        discard(config)


def test_an_attempt_that_fails_leaves_the_generations_as_they_were() -> None:
    config = two_tiers()
    try:
        filled_once(config)
        assert config.nvme_dir
        found = opening.open_nvme(config)
        assert isinstance(found, opening.OpenedNvme)
        generation = found.tier._slots.generation
        tier_config = found.tier.config
        found.tier.close()
        NvmeTier(tier_config).close()  # opened, never recovered
        again = opening.open_nvme(config)
        assert isinstance(again, opening.OpenedNvme)
        assert again.tier._slots.generation >= generation
        again.tier.close()
    finally:
        discard(config)
