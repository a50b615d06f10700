"""The directory is removed or replaced under a running node: the tier fails, and nothing more is said to be durable."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.tiers.values import AckLevel, PutOutcome
from tests.unit.nvme.blocks import Blocks, config, opened, until
from tests.unit.tiers.filled import CHAIN, Filled
from tests.unit.tiers.stores import STORED
from tests.unit.tiers.two_tiers import opened as opened_store


def _moved(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))


def _another(directory: Path) -> None:
    _moved(directory)
    with opened(config(directory)):
        pass


def _without_a_segment(directory: Path) -> None:
    (directory / "segment-000000.dat").unlink()


@pytest.mark.parametrize("change", [shutil.rmtree, _moved, _another, _without_a_segment])
def test_a_directory_that_is_removed_or_replaced_fails_the_tier(
    tmp_path: Path, change: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "nvme"
    with opened(config(directory)) as tier:
        Blocks().put_durably(tier, [1])
        change(directory)
        assert until(lambda: tier.health.state == "failed")
        assert "removed or replaced" in tier.health.reason
        assert "restart the node" in tier.health.advice
        assert not tier.accepting
    found = [record for record in caplog.records if "is failed" in record.getMessage()]
    assert [record.levelname for record in found] == ["WARNING"]


def test_a_directory_that_is_put_back_is_taken_up_again(tmp_path: Path) -> None:
    directory = tmp_path / "nvme"
    with opened(config(directory)) as tier:
        Blocks().put_durably(tier, [1])
        _moved(directory)
        assert until(lambda: tier.health.state == "failed")
        (tmp_path / "elsewhere").rename(directory)
        assert until(lambda: tier.health.state == "ok")
        Blocks().put_durably(tier, [2])


def test_a_durable_put_after_the_directory_was_removed_is_never_acknowledged() -> None:
    with opened_store() as store:
        filled = Filled(store)
        assert filled.put(1, ack=AckLevel.DURABLE) == [STORED] * CHAIN
        assert store.config.nvme_dir
        shutil.rmtree(store.config.nvme_dir)
        assert filled.put(2, ack=AckLevel.DURABLE) == [PutOutcome.NOT_DURABLE] * CHAIN  # at once, before any look
        assert until(lambda: store._state.placement.nvme.health.state == "failed")  # type: ignore[union-attr]
        assert filled.put(1, ack=AckLevel.DURABLE) == [PutOutcome.NOT_DURABLE] * CHAIN
        assert [filled.get(number) for number in (1, 2)] == [CHAIN] * 2
        assert filled.put(3) == [STORED] * CHAIN


def test_blocks_that_had_to_go_before_they_were_durable_found_no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened_store() as store:
        filled, movement = Filled(store), store._movement
        assert movement
        wait = movement.durability.wait

        def full(namespace, keys, deadline):  # type: ignore[no-untyped-def]
            store.evict(filled.view.handle, keys[3:])
            return wait(namespace, keys, deadline)

        monkeypatch.setattr(movement.durability, "wait", full)
        assert filled.put(1, ack=AckLevel.DURABLE) == [STORED] * 3 + [PutOutcome.NO_SPACE] * (CHAIN - 3)
