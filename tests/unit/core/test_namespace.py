from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.errors import InvalidArgument
from kvstore.core.namespace import (
    MAX_CANONICAL_BYTES,
    NamespaceSpec,
    PartSpec,
    differing_fields,
    parse_canonical,
)

words = st.text(max_size=12)
part_specs = st.builds(
    lambda name, layer, layers, group, kind: PartSpec(name, layer * (layers or 1), group, kind, layers),
    name=words,
    layer=st.integers(1, 1 << 20),
    layers=st.none() | st.integers(1, 80),
    group=words,
    kind=st.sampled_from(["prefix", "window", "state"]),
)
specs = st.builds(
    NamespaceSpec,
    model=st.text(min_size=1, max_size=12),
    block_tokens=st.integers(1, 65_536),
    weights_generation=words,
    kv_dtype=words,
    layout=words,
    tenant=st.text(min_size=1, max_size=12),
    parts=st.lists(part_specs, max_size=4, unique_by=lambda part: part.name).map(
        lambda parts: (PartSpec("all", 64), *(part for part in parts if part.name != "all"))
    ),
    extra=st.dictionaries(words, words, max_size=4),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(specs)
def test_the_canonical_form_is_read_back_as_the_same_namespace(spec: NamespaceSpec) -> None:
    again = parse_canonical(spec.canonical())
    assert again == spec
    assert again.root == spec.root
    assert differing_fields(again, spec) == []


@given(specs, specs)
def test_roots_agree_exactly_when_no_field_differs(a: NamespaceSpec, b: NamespaceSpec) -> None:
    assert (a.root == b.root) == (differing_fields(a, b) == [])


@given(specs, st.randoms())
def test_the_order_in_which_extra_fields_are_given_does_not_matter(spec: NamespaceSpec, random) -> None:  # type: ignore[no-untyped-def]
    items = list(spec.extra.items())
    random.shuffle(items)
    assert replace(spec, extra=dict(items)).root == spec.root


BASE = NamespaceSpec(model="m", block_tokens=16, block_bytes=4096, extra={"tp": "2"})


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"model": "n"}, ["model"]),
        ({"weights_generation": "2"}, ["weights_generation"]),
        ({"block_tokens": 32}, ["block_tokens"]),
        ({"kv_dtype": "fp8", "layout": "HND"}, ["kv_dtype", "layout"]),
        ({"tenant": "other"}, ["tenant"]),
        ({"parts": (PartSpec("0", 4096, layers=2),)}, ["parts"]),
        ({"extra": {"tp": "4"}}, ["extra.tp"]),
        ({"extra": {}}, ["extra.tp"]),
        ({"extra": {"tp": "2", "pp": "1"}}, ["extra.pp"]),
        ({"hash_scheme": "vllm-sha256"}, ["hash_scheme"]),
    ],
)
def test_a_differing_field_is_named_and_changes_the_root(change: dict[str, object], fields: list[str]) -> None:
    other = replace(BASE, **change)  # type: ignore[arg-type]
    assert differing_fields(BASE, other) == fields
    assert other.root != BASE.root


def test_block_bytes_is_short_for_one_part() -> None:
    assert BASE.parts == (PartSpec("0", 4096),)
    assert replace(BASE, block_bytes=0, parts=(PartSpec("a", 10), PartSpec("b", 20))).block_bytes == 30


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"model": "\ud800"}, "canonical"),
        ({"tenant": ""}, "tenant"),
        ({"layout": None}, "layout"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"block_tokens": 65_537}, "block_tokens"),
        ({"block_tokens": 16.0}, "block_tokens"),
        ({"block_tokens": True}, "block_tokens"),
        ({"block_bytes": 8192}, "block_bytes"),
        ({"parts": (PartSpec("0", 0),)}, "parts"),
        ({"parts": (PartSpec("0", -1),)}, "parts"),
        ({"parts": (PartSpec("0", 4096.0),)}, "parts"),
        ({"parts": (PartSpec("0", 1 << 60),)}, "parts"),
        ({"parts": (PartSpec("0", 100, layers=3),)}, "parts"),
        ({"parts": (PartSpec("0", 100, layers=0),)}, "parts"),
        ({"parts": (PartSpec("0", 100, layers=1.0),)}, "parts"),
        ({"parts": (PartSpec("0", 100, kind="other"),)}, "parts"),
        ({"parts": (PartSpec("0", 100, kind="window"),)}, "parts"),
        ({"parts": (PartSpec("a", 1), PartSpec("a", 2))}, "parts"),
        ({"parts": tuple(PartSpec(str(i), 1) for i in range(65))}, "parts"),
        ({"parts": ({"name": "0", "bytes": 5},)}, "parts"),
        ({"extra": {"long": "x" * MAX_CANONICAL_BYTES}}, "extra"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], field: str) -> None:
    base: dict[str, object] = {"model": "m", "block_tokens": 16}
    if "parts" not in change and "block_bytes" not in change:
        base["block_bytes"] = 4096
    if "block_bytes" in change:
        base["parts"] = (PartSpec("0", 4096),)
    with pytest.raises(InvalidArgument) as raised:
        NamespaceSpec(**{**base, **change})  # type: ignore[arg-type]
    assert raised.value.details["field"] == field


@given(specs, st.sampled_from(["model", "block_tokens", "parts", "extra", "format", "tenant", "new"]), json_values)
def test_json_that_is_not_a_canonical_form_is_refused(spec: NamespaceSpec, name: str, value: object) -> None:
    form = json.loads(spec.canonical())
    form[name] = value
    sent = json.dumps(form, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    try:
        accepted = parse_canonical(sent)
    except InvalidArgument:
        return
    assert accepted.canonical() == sent


@given(st.binary(max_size=200))
def test_bytes_that_are_no_canonical_form_are_refused(sent: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse_canonical(sent)


@pytest.mark.parametrize(
    "sent",
    [
        b"[" * 15_000,
        b'{"a":' * 3_000,
        BASE.canonical() + b" ",
        BASE.canonical().replace(b'"format":1', b'"format":2'),
        BASE.canonical().replace(b'"block_tokens":16', b'"block_tokens":16.0'),
        BASE.canonical().replace(b'"bytes":4096', b'"bytes":4096.0'),
        BASE.canonical().replace(b'"model":"m"', b'"model":"\\u006d"'),
        b" " * (MAX_CANONICAL_BYTES + 1),
    ],
)
def test_another_spelling_of_a_namespace_is_refused(sent: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse_canonical(sent)


@pytest.mark.parametrize(("extra", "words"), [({"tp": 2}, "'tp'"), ({1: "2"}, "key 1"), ([("tp", "2")], "mapping")])
def test_extra_takes_text_alone(extra: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        NamespaceSpec("m", 16, 4096, extra=extra)  # type: ignore[arg-type]


def test_a_namespace_without_a_size_says_what_to_give() -> None:
    with pytest.raises(InvalidArgument, match="block_bytes or parts"):
        NamespaceSpec("m", 16, parts=())
