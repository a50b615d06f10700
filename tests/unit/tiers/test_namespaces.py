"""Namespaces: opened, compared, kept over a restart, dropped with everything in them."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from kvstore.core.errors import InvalidArgument, NamespaceMismatch, NoSpace, UnknownNamespace
from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.tiers.memfile import purge
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import ChainSlice, MissReason, NamespaceView
from tests.unit.tiers.stores import ONE, TWO, audit, fill, keys_of, opened, put, read, small


def test_opening_twice_gives_the_same_namespace() -> None:
    with opened() as store:
        first, second = store.open_namespace(ONE.canonical()), store.open_namespace(ONE.canonical())
        assert (first.created, second.created) == (True, False)
        assert first.handle == second.handle
        assert first.root == ONE.root
        assert store.spec(first.handle) == ONE
        assert store.namespace_at(ONE.root).handle == first.handle


def test_the_nearest_namespace_of_tenant_and_model_is_named_with_the_fields_that_differ() -> None:
    near = replace(ONE, kv_dtype="fp8", parts=ONE.parts)
    far = replace(ONE, kv_dtype="fp16", layout="other", extra={"tp": "2"}, parts=ONE.parts)
    stranger = replace(ONE, tenant="somebody", parts=ONE.parts)
    with opened() as store:
        for spec in (far, near, stranger):
            store.open_namespace(spec.canonical())
        view = store.open_namespace(ONE.canonical())
        assert view.created
        assert (view.differs, view.nearest_root) == (("kv_dtype",), near.root)


def test_strict_refuses_a_namespace_that_differs_and_makes_nothing() -> None:
    with opened() as store:
        store.open_namespace(replace(ONE, kv_dtype="fp8", parts=ONE.parts).canonical())
        with pytest.raises(NamespaceMismatch, match="kv_dtype") as caught:
            store.open_namespace(ONE.canonical(), strict=True)
        assert caught.value.details["fields"] == "kv_dtype"
        assert len(store.namespaces()) == 1


def test_a_form_that_is_not_canonical_is_refused() -> None:
    with opened() as store, pytest.raises(InvalidArgument, match="canonical"):
        store.open_namespace(b"{}")


def filled_table(store: BlockStore) -> list[NamespaceView]:
    """Every namespace with a block."""
    session, views = store.open_session(False), []
    for number in range(128):
        spec = NamespaceSpec(f"m{number}", 4, 4096)
        views.append(store.open_namespace(spec.canonical()))
        put(store, session, views[-1], keys_of(spec, (1,)))
    return views


def test_a_full_table_is_a_typed_error_that_is_told_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with opened(namespace_idle=3600.0) as store:
        filled_table(store)
        for _ in range(3):
            with pytest.raises(NoSpace, match=r"namespace table is full \(128 of 128\)") as caught:
                store.open_namespace(ONE.canonical())
        assert caught.value.details["table"] == "namespaces"
        assert store.stat().counters["namespaces_refused"] == 3
        assert caplog.text.count("runs without a cache") == 1
        store.drop_namespace(NamespaceSpec("m3", 4, 4096).root)
        assert store.open_namespace(ONE.canonical()).created


def test_an_empty_namespace_makes_room_in_a_full_table_and_its_handle_is_unknown() -> None:
    with opened() as store:
        views = filled_table(store)
        store.evict(views[7].handle, keys_of(views[7].spec, (1,)))
        assert store.open_namespace(ONE.canonical()).created
        with pytest.raises(UnknownNamespace):
            store.match(views[7].handle, keys_of(views[7].spec, (1,)))
        assert len(store.namespaces()) == 128
        assert store.stat().counters["namespaces_displaced"] == 1


def test_the_least_recently_used_idle_namespace_makes_room_unless_it_is_leased() -> None:
    with opened(namespace_idle=0.05) as store:
        views = filled_table(store)
        session = store.open_session(False)
        store.acquire(session, views[0].handle, keys_of(views[0].spec, (1,)))
        time.sleep(0.1)
        assert store.open_namespace(ONE.canonical()).created
        assert store.match(views[0].handle, keys_of(views[0].spec, (1,))).blocks == 1
        assert len(store.namespaces()) == 128


def test_long_records_take_room_from_others_and_the_table_stays_within_its_memory() -> None:
    with opened(namespace_idle=0.0) as store:
        session = store.open_session(False)
        for number in range(128 // 4):
            spec = NamespaceSpec(f"m{number}", 4, 4096, extra={"long": "x" * 12_000})
            put(store, session, store.open_namespace(spec.canonical()), keys_of(spec, (1,)))
        with pytest.raises(NoSpace, match="table is full"):
            store.open_namespace(ONE.canonical())


def test_parts_that_no_segment_can_hold_are_refused_when_the_namespace_is_opened() -> None:
    with opened() as store, pytest.raises(InvalidArgument, match="raise segment_bytes"):
        store.open_namespace(NamespaceSpec("large", 4, parts=(PartSpec("0", 2 << 20),)).canonical())


def test_a_handle_of_a_dropped_namespace_never_means_another() -> None:
    with opened() as store:
        view = store.open_namespace(ONE.canonical())
        session = store.open_session(False)
        put(store, session, view, keys_of(ONE, (1, 2)))
        assert store.drop_namespace(ONE.root) == (2, 0)
        other = store.open_namespace(TWO.canonical())
        assert other.handle != view.handle
        for call in (
            lambda: store.match(view.handle, keys_of(ONE, (1,))),
            lambda: store.acquire(session, view.handle, keys_of(ONE, (1,))),
            lambda: store.reserve(session, view.handle, ChainSlice(keys_of(ONE, (1,)))),
            lambda: store.evict(view.handle, keys_of(ONE, (1,))),
            lambda: store.drop_namespace(ONE.root),
            lambda: store.namespace_at(ONE.root),
        ):
            with pytest.raises(UnknownNamespace):
                call()
        assert store.stat().tiers[0].used_bytes == 0


def test_a_dropped_namespace_frees_leased_blocks_and_its_id_with_the_last_reference() -> None:
    with opened() as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        keys = keys_of(ONE, (1, 2, 3))
        _, written = put(store, session, view, keys)
        found = store.acquire(session, view.handle, keys)
        assert store.drop_namespace(ONE.root) == (3, 3)
        again = store.open_namespace(ONE.canonical())
        assert again.created
        assert store.match(again.handle, keys).miss == MissReason.ABSENT
        assert read(store, view, found.offsets) == list(written.values())
        audit(store)
        store.release(session, [found.lease])
        assert store.stat().tiers[0].used_bytes == 0
        audit(store)


def test_a_put_in_progress_when_its_namespace_is_dropped_stores_nothing() -> None:
    with opened() as store:
        view, session = store.open_namespace(TWO.canonical()), store.open_session(False)
        keys = keys_of(TWO, (1, 2))
        reserved = store.reserve(session, view.handle, ChainSlice(keys))
        sums, _ = fill(store, view, keys, (0, 1), reserved, 1)
        store.drop_namespace(TWO.root)
        store.open_namespace(TWO.canonical())
        assert store.commit(session, reserved.id, sums) == bytes([5, 5])
        assert store.stat().tiers[0].used_bytes == 0
        audit(store)


def test_namespaces_and_their_blocks_outlive_the_node_and_dropped_ones_do_not() -> None:
    config = small()
    with opened(config) as store:
        session = store.open_session(False)
        for spec in (ONE, TWO):
            put(store, session, store.open_namespace(spec.canonical()), keys_of(spec, (1, 2)))
        store.drop_namespace(ONE.root)
        store.close()
        again = BlockStore(config)
        try:
            assert [(one.root, one.blocks, one.bytes) for one in again.namespaces()] == [(TWO.root, 2, 2 * 79_000)]
            assert not again.open_namespace(TWO.canonical()).created
            assert again.stat().counters["dropped_orphan_parts"] == 0
        finally:
            again.close()


def test_a_namespace_dropped_under_a_lease_stays_dropped_after_a_crash() -> None:
    config = small()
    with opened(config) as store:
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        put(store, session, view, keys_of(ONE, (1, 2)))
        store.acquire(session, view.handle, keys_of(ONE, (1, 2)))
        store.drop_namespace(ONE.root)
        store.close()
        again = BlockStore(config)
        try:
            assert again.namespaces() == []
            assert again.open_namespace(ONE.canonical()).created
            assert again.match(1, keys_of(ONE, (1,))).blocks == 0
            audit(again)
        finally:
            again.close()
    purge(config.memory_file)


def test_sizes_by_namespace_count_ready_parts() -> None:
    with opened() as store:
        view, session = store.open_namespace(TWO.canonical()), store.open_session(False)
        keys = keys_of(TWO, (1, 2))
        put(store, session, view, keys, parts=(1,))
        (one,) = store.namespaces()
        assert (one.blocks, one.bytes) == (2, 2 * 9_000)
        put(store, session, view, keys)
        (one,) = store.namespaces()
        assert (one.blocks, one.bytes) == (2, 2 * 79_000)
        assert one.bytes == store.stat().ready_bytes
        assert np.isfinite(one.idle_seconds)
        store.evict(view.handle, keys[1:])
        assert store.namespaces()[0].bytes == 79_000
