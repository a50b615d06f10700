"""The namespace: every field counts, ranks must agree, and what cannot be cached safely is refused."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from kvstore.connector.vllm.descriptor import Fields, Refused, build, needed_groups, own_parts
from kvstore.core.namespace import differing_fields, parse_canonical

from .fakes import SHARED, group, rank

FIELDS = Fields("sha256_cbor", "probe")


def one(**changes: Any) -> Any:
    return build({(0, 0): rank(**changes)}, FIELDS)


@pytest.mark.parametrize("name", sorted(SHARED))
def test_each_shared_field_alone_makes_another_namespace_and_is_named(name: str) -> None:
    changed = one(shared={**SHARED, name: "LBNHC" if name == "layout" else "other"})
    assert changed.root != one().root
    shown = name if name in ("model", "kv_dtype", "layout") else f"extra.{name}"
    assert differing_fields(one(), changed) == [shown]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hash_algorithm": "sha256"}, "hash_scheme"),
        ({"hash_probe": "else"}, "extra.hash_probe"),
        ({"tenant": "b"}, "tenant"),
        ({"weights_generation": "2"}, "weights_generation"),
    ],
)
def test_each_field_of_the_scheduler_alone_makes_another_namespace(changes: dict[str, str], field: str) -> None:
    changed = build({(0, 0): rank()}, dataclasses.replace(FIELDS, **changes))
    assert differing_fields(one(), changed) == [field]


@pytest.mark.parametrize(
    "changes",
    [
        {"page_tokens": 32},
        {"page_bytes": 512},
        {"heads": 8},
        {"eagle": True},
        {"detail": "e"},
        {"kind": "window", "window": 64},
    ],
)
def test_each_property_of_a_group_makes_another_namespace(changes: dict[str, Any]) -> None:
    assert one(groups=(group(**changes),)).root != one().root


def test_sizes_of_parallelism_make_other_namespaces() -> None:
    specs = [
        build({(pp, tp): rank(tp, tps, pp_rank=pp, pp_size=pps) for pp in range(pps) for tp in range(tps)}, FIELDS)
        for tps, pps in ((1, 1), (2, 1), (1, 2), (2, 2))
    ]
    assert len({spec.root for spec in specs}) == 4
    assert [len(spec.parts) for spec in specs] == [1, 2, 2, 4]


def test_the_form_survives_the_wire() -> None:
    assert parse_canonical(one().canonical()) == one()


def test_ranks_and_groups_are_parts_of_one_block() -> None:
    groups = (group(0), group(1, "window", window=64))
    spec = build({(0, tp): rank(tp, 2, groups) for tp in range(2)}, FIELDS)
    assert [(p.name, p.kind, p.bytes) for p in spec.parts] == [
        ("g0.p0.s0", "prefix", 256),
        ("g1.p0.s0", "window", 256),
        ("g0.p0.s1", "prefix", 256),
        ("g1.p0.s1", "window", 256),
    ]
    assert [part.id for part in own_parts(spec, rank(1, 2, groups), 0)] == [2, 3]
    assert needed_groups(spec) == (0,)


def test_a_part_holds_all_pages_of_its_block() -> None:
    spec = one(groups=(group(0, page_tokens=16), group(1, page_tokens=32)))
    assert spec.block_tokens == 32
    assert [part.bytes for part in spec.parts] == [512, 256]


def test_mla_is_stored_once_and_loaded_by_every_rank() -> None:
    groups = (group(kind="mla", heads=0),)
    ranks = {(0, tp): rank(tp, 4, groups, replicas=4) for tp in range(4)}
    spec = build(ranks, FIELDS)
    assert len(spec.parts) == 1
    assert [own_parts(spec, r, 0)[0].id for r in ranks.values()] == [0, 0, 0, 0]
    assert [r.saves for r in ranks.values()] == [True, False, False, False]


def test_replicated_heads_are_stored_once_per_shard() -> None:
    ranks = {(0, tp): rank(tp, 4, replicas=2) for tp in range(4)}
    spec = build(ranks, FIELDS)
    assert len(spec.parts) == 2
    assert [own_parts(spec, r, 0)[0].id for r in ranks.values()] == [0, 0, 1, 1]


def test_head_ranges_let_tp_sizes_share() -> None:
    fields = dataclasses.replace(FIELDS, head_parts=4)
    whole = build({(0, 0): rank(groups=(group(page_bytes=1024, heads=8),))}, fields)
    half = group(page_bytes=512, heads=4)
    split = build({(0, tp): rank(tp, 2, (half,)) for tp in range(2)}, fields)
    assert whole.root == split.root
    assert [p.bytes for p in whole.parts] == [256] * 4
    assert [(p.id, p.slice, p.slices) for p in own_parts(split, rank(1, 2, (half,)), 4)] == [(2, 0, 2), (3, 1, 2)]


@pytest.mark.parametrize(
    ("changes", "fields", "text"),
    [
        ({}, {"head_parts": 3}, "head_parts=3"),
        ({"groups": (group(kind="mla", heads=0),)}, {"head_parts": 2}, "head_parts=2"),
        ({}, {"hash_algorithm": "xxhash"}, "xxhash can collide"),
        ({"groups": (group(kind="mamba"),)}, {}, "unknown kind"),
        ({"refusals": ("because",)}, {}, "because"),
        ({"tp_size": 2}, {}, "only 1 of 2 ranks"),
    ],
)
def test_what_cannot_be_cached_safely_is_refused_with_a_reason(
    changes: dict[str, Any], fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(Refused, match=text):
        build({(0, 0): rank(**changes)}, dataclasses.replace(FIELDS, **fields))


def test_more_parts_than_a_namespace_has_are_refused() -> None:
    groups = tuple(group(i) for i in range(9))
    with pytest.raises(Refused, match="72 parts"):
        build({(0, tp): rank(tp, 8, groups) for tp in range(8)}, FIELDS)


@pytest.mark.parametrize("name", sorted(SHARED))
def test_ranks_that_run_different_things_are_refused_by_name(name: str) -> None:
    odd = rank(1, 2, shared={**SHARED, name: "other"})
    with pytest.raises(Refused, match=rf"\b{name}\b"):
        build({(0, 0): rank(0, 2), (0, 1): odd}, FIELDS)


def test_ranks_with_other_groups_are_refused() -> None:
    with pytest.raises(Refused, match="groups"):
        build({(0, 0): rank(0, 2), (0, 1): rank(1, 2, (group(page_tokens=32),))}, FIELDS)


def test_a_model_of_windows_only_has_a_prefix_group() -> None:
    spec = one(groups=(group(0, "window", window=64), group(1, "window", window=32)))
    assert [part.kind for part in spec.parts] == ["prefix", "window"]


def test_parts_of_all_ranks_cover_the_namespace_once() -> None:
    for tps, pps, heads in itertools.product((1, 2, 4), (1, 2), (0, 4)):
        fields = dataclasses.replace(FIELDS, head_parts=heads)
        ranks = {
            (pp, tp): rank(tp, tps, (group(heads=4),), pp_rank=pp, pp_size=pps)
            for pp in range(pps)
            for tp in range(tps)
        }
        spec = build(ranks, fields)
        ids = [part.id for r in ranks.values() for part in own_parts(spec, r, heads)]
        assert sorted(ids) == list(range(len(spec.parts)))
