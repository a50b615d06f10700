"""What each call promises, the same over every transport."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvstore import Client, Namespace, PartSpec, PutResult
from kvstore.core.errors import (
    BadKey,
    InvalidArgument,
    MisalignedRange,
    NamespaceMismatch,
    TooManyKeys,
    Unsupported,
    WrongBlockSize,
)
from tests.contract.conftest import TRANSPORTS, empty, payload, spec, tokens
from tests.contract.running import NodeProcess


def test_what_was_put_is_got_byte_for_byte(namespace: Namespace) -> None:
    keys, data, into = namespace.keys(tokens(12)), payload(namespace, 12), empty(namespace, 12)
    assert namespace.put(keys, data) == PutResult(stored=12)
    assert namespace.match(keys) == 12
    assert namespace.get(keys, into) == 12
    assert into == data


def test_another_client_of_any_transport_finds_it(
    namespace: Namespace, shared_node: NodeProcess, connect: Callable[..., Client]
) -> None:
    keys, data = namespace.keys(tokens(3)), payload(namespace, 3)
    namespace.put(keys, data)
    for other in TRANSPORTS:
        reader, into = connect(shared_node, other).namespace(namespace.spec), empty(namespace, 3)
        assert reader.get(keys, into) == 3
        assert into == data


def test_existing_blocks_are_skipped_and_not_rewritten(namespace: Namespace) -> None:
    keys, data, into = namespace.keys(tokens(6)), payload(namespace, 6), empty(namespace, 6)
    assert namespace.put(keys[:4], data[:4]).stored == 4
    other = payload(namespace, 4, seed=9) + data[4:]
    assert namespace.put(keys, other) == PutResult(stored=2, present=4)
    assert namespace.get(keys, into) == 6
    assert into == data


def test_the_longest_prefix_is_found_and_the_rest_is_a_miss_with_a_reason(namespace: Namespace) -> None:
    sequence = tokens(8)
    keys, data, into = namespace.keys(sequence), payload(namespace, 8), empty(namespace, 8)
    namespace.put(keys[:5], data[:5])
    assert namespace.match(keys) == 5
    assert namespace.get(keys, into) == 5
    assert into == data[:5] + empty(namespace, 3)
    assert namespace.client.last_miss == "absent"
    counters = namespace.client.counters()
    assert (counters["get_blocks"], counters["get_hits"], counters["get_misses.absent"]) == (8, 5, 3)
    forked = sequence.copy()
    forked[10] += 1  # the third block differs, and so all keys behind it
    assert namespace.match(namespace.keys(forked)) == 2


def test_get_and_put_from_a_later_block_on(namespace: Namespace) -> None:
    keys, data, into = namespace.keys(tokens(7)), payload(namespace, 7), empty(namespace, 4)
    assert namespace.put(keys[:3], data[:3]).stored == 3
    assert namespace.put(keys, data[3:], first=3) == PutResult(stored=4)
    assert namespace.get(keys, into, first=3) == 7
    assert into == data[3:]
    assert namespace.get(keys[:3], [], first=3) == 3


def test_a_put_whose_parent_is_missing_fails_with_that_reason(namespace: Namespace) -> None:
    keys, data = namespace.keys(tokens(4)), payload(namespace, 2)
    result = namespace.put(keys, data, first=2)
    assert (result.stored, result.failed, result.reasons) == (0, 2, {"parent_missing": 2})
    assert not result.complete


def test_empty_calls_are_answered(namespace: Namespace) -> None:
    none = namespace.keys([1, 2])
    assert len(none) == 0
    assert namespace.match(none) == 0
    assert namespace.get(none, []) == 0
    assert namespace.put(none, []) == PutResult()
    assert namespace.evict(none) == 0
    with namespace.borrow(none) as views:
        assert views == []
    with namespace.writer(none) as writer:
        writer.write(None, [])
    assert writer.result == PutResult()


@pytest.mark.parametrize("size", [1, 4096, 65_536, 65_537, 1 << 20, (3 << 20) + 5])
def test_blocks_of_any_size(client: Client, size: int) -> None:
    namespace = client.namespace(spec(block_bytes=size))
    keys, data, into = namespace.keys(tokens(5)), payload(namespace, 5), empty(namespace, 5)
    assert namespace.put(keys, data).stored == 5
    assert namespace.get(keys, into) == 5
    assert into == data


def test_engine_hashes_are_keys_too(namespace: Namespace) -> None:
    keys = namespace.keys_from_hashes([bytes([index]) * 32 for index in range(3)])
    data, into = payload(namespace, 3), empty(namespace, 3)
    namespace.put(keys, data)
    assert namespace.get(keys, into) == 3
    assert into == data


def test_one_large_buffer_serves_as_well_as_many(namespace: Namespace) -> None:
    keys, size = namespace.keys(tokens(6)), namespace.spec.block_bytes
    whole = np.random.default_rng(1).integers(0, 256, (6, size), dtype=np.uint8)
    into = np.zeros_like(whole)
    assert namespace.put(keys, whole).stored == 6
    assert namespace.get(keys, into) == 6
    assert np.array_equal(into, whole)


def test_evict_drops_a_block_and_all_that_follows_it(namespace: Namespace) -> None:
    keys = namespace.keys(tokens(6))
    namespace.put(keys, payload(namespace, 6))
    assert namespace.evict([keys[3]]) == 3
    assert namespace.match(keys) == 3
    assert namespace.evict(keys) == 3
    assert namespace.match(keys) == 0


def test_borrowed_views_are_read_only_and_hold_the_bytes(namespace: Namespace) -> None:
    keys, data = namespace.keys(tokens(5)), payload(namespace, 5)
    namespace.put(keys, data)
    borrow = namespace.borrow(keys, first=2)
    with borrow as views:
        assert borrow.blocks == 5
        assert [bytes(view) for view in views] == data[2:]
        assert all(view.readonly for view in views)
        with pytest.raises(TypeError):
            views[0][0] = 1
        with pytest.raises(ValueError, match="read-only"):
            np.frombuffer(views[0], np.uint8)[0] = 1
    assert bytes(views[0]) == data[2]  # a view that lives on stays true


def test_ranges_move_one_layer_at_a_time(client: Client) -> None:
    namespace = client.namespace(spec(parts=(PartSpec("0", 60_000, layers=6),)))
    keys, data = namespace.keys(tokens(4)), payload(namespace, 4)
    with namespace.writer(keys) as writer:
        assert writer.wanted == [True] * 4
        assert namespace.match(keys) == 0
        for layer in (3, 0, 1, 5, 4, 2):
            at = layer * 10_000
            writer.write((at, 10_000), [block[at : at + 10_000] for block in data])
    assert writer.result == PutResult(stored=4)
    for layer in range(6):
        into = [bytearray(10_000) for _ in range(4)]
        assert namespace.get(keys, into, range=(layer * 10_000, 10_000)) == 4
        assert into == [block[layer * 10_000 : (layer + 1) * 10_000] for block in data]
        with namespace.borrow(keys, range=(layer * 10_000, 10_000)) as views:
            assert [bytes(view) for view in views] == [bytes(buffer) for buffer in into]
    into = empty(namespace, 4)
    assert namespace.get(keys, into) == 4
    assert into == data


def test_a_writer_skips_blocks_that_are_there(namespace: Namespace) -> None:
    keys, data, into = namespace.keys(tokens(5)), payload(namespace, 5), empty(namespace, 5)
    namespace.put(keys[:2], data[:2])
    with namespace.writer(keys) as writer:
        assert writer.wanted == [False, False, True, True, True]
        writer.write(None, [bytes(len(data[0]))] * 2 + data[2:])
    assert writer.result == PutResult(stored=3, present=2)
    assert namespace.get(keys, into) == 5
    assert into == data


def test_a_writer_that_raises_or_stays_incomplete_leaves_nothing(namespace: Namespace) -> None:
    keys, data = namespace.keys(tokens(3)), payload(namespace, 3)
    with pytest.raises(WrongBlockSize), namespace.writer(keys) as writer:  # noqa: PT012  the second write raises
        writer.write(None, data)
        writer.write(None, [b"short"] * 3)
    assert namespace.match(keys) == 0
    chunk = 65_536
    with pytest.raises(InvalidArgument, match="never written"), namespace.writer(keys) as writer:
        writer.write((0, chunk), [block[:chunk] for block in data])
    assert namespace.match(keys) == 0
    assert namespace.put(keys, data).stored == 3  # the slots and keys came back


def test_a_block_that_is_being_written_is_pending_to_others(namespace: Namespace, shared_node: NodeProcess) -> None:
    keys, data = namespace.keys(tokens(3)), payload(namespace, 3)
    with namespace.writer(keys[:2]) as writer:
        assert namespace.put(keys[:2], data[:2]) == PutResult(pending=2)
        assert namespace.match(keys) == 0
        assert namespace.client.last_miss == "pending"
        writer.write(None, data[:2])
    assert namespace.put(keys, data) == PutResult(stored=1, present=2)


def test_parts_are_put_and_got_on_their_own(client: Client) -> None:
    parts = (PartSpec("tp0", 50_000), PartSpec("tp1", 70_000))
    namespace = client.namespace(spec(parts=parts))
    keys, data = namespace.keys(tokens(4)), payload(namespace, 4)
    assert namespace.put(keys, data[0::2], parts=["tp0"]).stored == 4
    assert namespace.match(keys) == 0
    assert namespace.client.last_miss == "part"
    assert namespace.match(keys, parts=["tp0"]) == 4
    assert namespace.put(keys[:3], data[1:6:2], parts=[1]).stored == 3
    assert namespace.match(keys) == 3
    into = empty(namespace, 4)
    assert namespace.get(keys, into) == 3
    assert into[:6] == data[:6]
    swapped = [bytearray(size) for _ in range(3) for size in (70_000, 50_000)]
    assert namespace.get(keys[:3], swapped, parts=["tp1", "tp0"]) == 3
    assert [bytes(buffer) for buffer in swapped] == [
        data[at] for block in range(3) for at in (2 * block + 1, 2 * block)
    ]


@pytest.fixture
def sparse(client: Client) -> tuple[Namespace, list[bytes]]:
    """Four blocks; the first two lack their window part."""
    parts = (PartSpec("full", 40_000), PartSpec("window", 30_000, group="w", kind="window"))
    namespace = client.namespace(spec(parts=parts))
    keys, data = namespace.keys(tokens(4)), payload(namespace, 4)
    namespace.put(keys, data[0::2], parts=["full"])
    namespace.put(keys, data[5::2], parts=["window"], first=2)
    return namespace, data


def test_parts_that_may_have_holes_are_got_where_they_are(sparse: tuple[Namespace, list[bytes]]) -> None:
    namespace, data = sparse
    keys = namespace.keys(tokens(4))
    assert namespace.match(keys) == 4
    full, window = [bytearray(40_000) for _ in range(4)], [bytearray(30_000) for _ in range(2)]
    assert namespace.get(keys, full, parts=["full"]) == 4
    assert full == data[0::2]
    assert namespace.get(keys, window, parts=["window"], first=2) == 4
    assert window == data[5::2]


def test_a_read_tells_the_holes_and_leaves_their_buffers_alone(sparse: tuple[Namespace, list[bytes]]) -> None:
    namespace, data = sparse
    keys, into, holes = namespace.keys(tokens(4)), empty(namespace, 4), set[tuple[int, int]]()
    assert namespace.get(keys, into, holes=holes) == 4
    assert holes == {(0, 1), (1, 1)}
    assert [bytes(buffer) for buffer in into[0::2]] == data[0::2]
    assert into[5::2] == data[5::2]
    assert into[1] == bytes(30_000)
    with namespace.borrow(keys) as views:
        assert [len(view) for view in views] == [40_000, 0, 40_000, 0, 40_000, 30_000, 40_000, 30_000]


# --- bad arguments: typed, and without effect ------------------------------------------------------------


def test_bad_arguments_raise_and_change_nothing(namespace: Namespace) -> None:
    keys, data = namespace.keys(tokens(3)), payload(namespace, 3)
    with pytest.raises(WrongBlockSize, match="buffer 1 has 5 bytes, 200000 are needed"):
        namespace.put(keys, [data[0], b"short", data[2]])
    with pytest.raises(WrongBlockSize):
        namespace.get(keys, [bytearray(5)] * 3)
    with pytest.raises(InvalidArgument, match="read-only"):
        namespace.get(keys, data)
    with pytest.raises(BadKey, match="key 1 is 5 bytes"):
        namespace.match([keys[0], b"short"])
    with pytest.raises(BadKey):
        namespace.match(b"x" * 17)
    with pytest.raises(InvalidArgument, match="first is 4"):
        namespace.get(keys, [], first=4)
    with pytest.raises(MisalignedRange):
        namespace.get(keys, data, range=(1, 65_536))
    with pytest.raises(InvalidArgument, match="writer"):
        namespace.put(keys, data, range=(0, 65_536))
    with pytest.raises(InvalidArgument, match="no part 'tp7'"):
        namespace.match(keys, parts=["tp7"])
    with pytest.raises(InvalidArgument, match="ack"):
        namespace.put(keys, data, ack="later")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="importance"):
        namespace.put(keys, data, importance=[1, 2])
    with pytest.raises(InvalidArgument, match="timeout"):
        namespace.match(keys, timeout=0)
    assert namespace.match(keys) == 0
    assert namespace.put(keys, data, importance=[0, 1, 65_535], request_id=1 << 63).stored == 3


@pytest.mark.parametrize("ack", ["replicated", "durable"])
def test_acknowledgement_levels_that_are_not_there_are_unsupported(namespace: Namespace, ack: str) -> None:
    keys, data = namespace.keys(tokens(2)), payload(namespace, 2)
    with pytest.raises(Unsupported):
        namespace.put(keys, data, ack=ack)  # type: ignore[arg-type]
    assert namespace.match(keys) == 0
    assert namespace.put(keys, data).stored == 2


def test_too_many_keys_are_refused(
    own_node: Callable[..., NodeProcess], connect: Callable[..., Client], transport: str
) -> None:
    node = own_node(max_keys="64")
    namespace = connect(node, transport).namespace(spec(block_bytes=4096))
    with pytest.raises(TooManyKeys, match="64"):
        namespace.match(namespace.keys(tokens(65)))
    keys, data = namespace.keys(tokens(64)), payload(namespace, 64)
    assert namespace.put(keys, data).stored == 64


def test_a_strict_namespace_names_the_differing_fields(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    base = spec(kv_dtype="float16", weights_generation="1")
    client.namespace(base)
    other = type(base)(
        model=base.model, block_tokens=4, block_bytes=200_000, kv_dtype="bfloat16", weights_generation="2"
    )
    with pytest.raises(NamespaceMismatch, match="kv_dtype") as caught:
        client.namespace(other, strict=True)
    assert "weights_generation" in str(caught.value)
    namespace = client.namespace(other)
    assert "kv_dtype" in caplog.text
    keys = namespace.keys(tokens(2))
    assert keys != client.namespace(base).keys(tokens(2))


def test_stat_comes_from_the_control_plane(namespace: Namespace) -> None:
    namespace.put(namespace.keys(tokens(2)), payload(namespace, 2))
    stat = namespace.client.stat()
    assert stat.blocks >= 2
    assert len(stat.node_id) == 16
