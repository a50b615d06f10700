"""A dropped namespace stays dropped, whatever of it the disk had not forgotten when the node died."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.core.errors import Unavailable
from kvstore.tiers.memfile import purge
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import AckLevel, StoreConfig
from tests.unit.nvme.blocks import Blocks, config, opened, recovered
from tests.unit.tiers.filled import CHAIN, Filled, chain
from tests.unit.tiers.stores import ONE, STORED, TWO
from tests.unit.tiers.two_tiers import audit_tiers, discard, still, two_tiers


def on_disk(config: StoreConfig) -> None:
    """Two namespaces whose blocks are durable."""
    with BlockStore(config) as store:
        for spec in (ONE, TWO):
            assert Filled(store, spec).put(1, ack=AckLevel.DURABLE) == [STORED] * CHAIN
        still(store)


def test_a_drop_of_which_the_disk_heard_nothing_holds_after_a_crash() -> None:
    config = two_tiers()
    try:
        on_disk(config)
        with BlockStore(config) as store:
            assert store._state.placement
            store._state.placement.nvme._committer.detach()  # from here on nothing is committed
            with pytest.raises(Unavailable):
                store.drop_namespace(ONE.root)
        for _ in range(2):
            with BlockStore(config) as store:
                assert [one.root for one in store.namespaces()] == [TWO.root]
                view = store.open_namespace(TWO.canonical())
                assert store.match(view.handle, chain(1, TWO)).blocks == CHAIN
                audit_tiers(store)
        with BlockStore(config) as store:
            again = Filled(store)
            assert store.match(again.view.handle, chain(1)).blocks == 0
            assert again.put(1, ack=AckLevel.DURABLE) == [STORED] * CHAIN
            still(store)
        purge(config.memory_file)
        with BlockStore(config) as store:
            view = store.open_namespace(ONE.canonical())
            assert store.match(view.handle, chain(1)).blocks == CHAIN
    finally:
        discard(config)


def test_a_durable_drop_holds_without_the_memory_file_and_frees_its_record() -> None:
    config = two_tiers()
    try:
        on_disk(config)
        with BlockStore(config) as store:
            assert store.drop_namespace(ONE.root) == (CHAIN, 0)
            assert not store._state.namespaces.fading
            Filled(store).put(2, ack=AckLevel.DURABLE)
            still(store)
        purge(config.memory_file)
        with BlockStore(config) as store:
            view = store.open_namespace(ONE.canonical())
            assert not view.created
            assert store.match(view.handle, chain(1)).blocks == 0
            assert store.match(view.handle, chain(2)).blocks == CHAIN
    finally:
        discard(config)


def test_entries_of_a_retired_namespace_are_ignored_and_its_number_is_not_given_out_before_they_are_gone(
    tmp_path: Path,
) -> None:
    blocks, other, third = Blocks(), Blocks(model="other"), Blocks(model="third")
    with opened(config(tmp_path)) as tier:
        blocks.put_durably(tier, [1, 2])
        other.put_durably(tier, [1])
        number = tier.open_namespace(blocks.spec.canonical())
        tier.retire_namespace(number)
        tier.sync()  # the removals of its entries never come: the node dies
        assert tier.open_namespace(third.spec.canonical()) != number
        assert tier.open_namespace(blocks.spec.canonical()) != number
    tier = NvmeTier(config(tmp_path))
    assert set(recovered(tier)) == {other.key(1)}
    tier.close()
    tier = NvmeTier(config(tmp_path))
    assert set(recovered(tier)) == {other.key(1)}
    assert tier.details().index_entries == 1
    tier.close()
