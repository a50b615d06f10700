"""Sessions of several connections, and reads and writes over the socket, spoken by hand."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore.core import errors
from kvstore.core.checksum import chunk_sums, chunking, part_seed
from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.transport.frame import Flag, Op, recv_frame_descriptors
from kvstore.v1 import data_pb2 as pb
from kvstore.v1 import types_pb2 as types
from tests.integration.nodes import NodeProcess, node, wait_for
from tests.integration.raw import SPEC, Raw, data_of, keys_of, payload_of, put_request, sums_of

TWO = NamespaceSpec(model="two parts", block_tokens=4, parts=(PartSpec("0", 100_000), PartSpec("1", 20_000, layers=5)))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node(tmp_path_factory.mktemp("sessions"), max_frame_bytes=1 << 20) as process:
        yield process


@pytest.fixture(params=["unix", "tcp"])
def address(running: NodeProcess, request: pytest.FixtureRequest) -> str:
    return str(running.socket) if request.param == "unix" else running.data


@pytest.fixture
def salt() -> int:
    """Another chain for each test."""
    return int.from_bytes(os.urandom(2), "little")


# --- lanes --------------------------------------------------------------------------------------------------


def test_a_session_lives_as_long_as_one_of_its_lanes(running: NodeProcess, address: str, salt: int) -> None:
    keys = keys_of(2, salt)
    with Raw(address) as second_owner:
        assert second_owner.greeting is not None
        token = second_owner.greeting.session
        with Raw(address, join_session=token) as lane:
            handle = lane.open()
            reply, _ = lane.call(Op.RESERVE, pb.ReserveRequest(namespace=handle, chain=types.ChainSlice(keys=keys)))
        reservation = reply.reservation  # type: ignore[attr-defined]
        wait_for(lambda: running.stat()["sessions"] == 1)
        data = data_of(keys)
        sums = sums_of(keys, data).tobytes()
        second_owner.call(Op.WRITE, pb.WriteRequest(reservation=reservation), b"".join(data) + sums)
        reply, _ = second_owner.call(Op.COMMIT, pb.CommitRequest(reservation=reservation, checksums=sums))
        assert reply.stored == 2  # type: ignore[attr-defined]
        assert second_owner.match(handle, keys) == 2
    wait_for(lambda: running.stat()["sessions"] == 0)


def test_the_end_of_the_last_lane_gives_up_what_was_reserved(running: NodeProcess, address: str, salt: int) -> None:
    with Raw(address) as raw:
        chain = types.ChainSlice(keys=keys_of(3, salt))
        raw.call(Op.RESERVE, pb.ReserveRequest(namespace=raw.open(), chain=chain))
        assert running.stat()["writing"] == 3
    wait_for(lambda: running.stat()["writing"] == 0)


def test_bye_ends_the_session_on_all_lanes(running: NodeProcess, address: str) -> None:
    with Raw(address) as first:
        assert first.greeting is not None
        with Raw(address, join_session=first.greeting.session) as second:
            first.call(Op.BYE)
            assert first.closed()
            assert second.closed()
        with Raw(address, hello=False) as late:
            request = pb.HelloRequest(version=1, min_version=1, join_session=first.greeting.session)
            assert isinstance(late.error(Op.HELLO, request), errors.SessionLost)
    wait_for(lambda: running.stat()["sessions"] == 0)


def test_a_session_is_only_joined_by_who_knows_its_token(address: str) -> None:
    with Raw(address) as raw, Raw(address) as other:
        assert raw.greeting is not None
        assert other.greeting is not None
        assert len(raw.greeting.session) == 16
        assert raw.greeting.session != other.greeting.session


# --- get ----------------------------------------------------------------------------------------------------


def test_a_get_sends_parts_in_order_and_their_checksums(address: str, salt: int) -> None:
    keys = keys_of(4, salt, TWO)
    with Raw(address) as raw:
        handle = raw.open(TWO)
        raw.put(handle, 4, salt, TWO)
        reply, payload = raw.get(handle, keys + bytes(16), first_block=1)
        data = data_of(keys, TWO)[2:]
        assert payload == b"".join(data)
        assert (reply.blocks, reply.prefix_blocks, reply.miss) == (4, 4, types.MISS_REASON_ABSENT)
        assert reply.checksums == sums_of(keys[16:], data, TWO).tobytes()
        swapped = raw.get(handle, keys, parts=[1, 0])[1]
        assert swapped[:20_000] == data_of(keys, TWO)[1]
        assert raw.get(handle, keys, parts=[1], max_blocks=2)[1] == b"".join(data_of(keys, TWO)[1:4:2])


def test_a_get_of_a_range_sends_these_chunks_alone(address: str, salt: int) -> None:
    keys = keys_of(2, salt, TWO)
    with Raw(address) as raw:
        handle = raw.open(TWO)
        raw.put(handle, 2, salt, TWO)
        reply, payload = raw.get(handle, keys, parts=[1], range_offset=4000, range_length=8000)
        layers = [part[4000:12_000] for part in data_of(keys, TWO)[1::2]]
        assert payload == b"".join(layers)
        wanted = [
            chunk_sums(memoryview(part), part_seed(keys[16 * nth :][:16], 1), chunking(TWO.parts[1]), 1)
            for nth, part in enumerate(layers)
        ]
        assert reply.checksums == np.concatenate(wanted).tobytes()


def test_a_get_larger_than_a_frame_is_cut_and_says_how_much_there_is(address: str, salt: int) -> None:
    keys = keys_of(15, salt)
    with Raw(address) as raw:
        handle = raw.open()
        for first in range(0, 15, 5):
            part = keys[first * 16 : (first + 5) * 16]
            raw.call(Op.PUT, put_request(handle, keys[: (first + 5) * 16], first=first), payload_of(part))
        reply, payload = raw.get(handle, keys)
        assert (reply.blocks, reply.prefix_blocks) == (10, 15)
        rest = raw.get(handle, keys, first_block=10)[1]
        assert payload + rest == b"".join(data_of(keys))


def test_a_get_tells_the_holes_of_parts_that_may_be_missing(address: str, salt: int) -> None:
    state = PartSpec("state", 5_000, group="state", kind="state")
    spec = NamespaceSpec(model="holes", block_tokens=4, parts=(PartSpec("0", 8_000), state))
    keys = keys_of(4, salt, spec)
    data, sums = data_of(keys, spec), sums_of(keys, data_of(keys, spec), spec)
    with Raw(address) as raw:
        handle = raw.open(spec)
        for part, count in ((0, 4), (1, 3)):
            request = put_request(handle, keys[: count * 16], parts=[part])
            raw.call(Op.PUT, request, b"".join(data[part::2][:count]) + sums[part::2][:count].tobytes())
        reply, payload = raw.get(handle, keys)
        assert (reply.blocks, reply.prefix_blocks, reply.miss) == (4, 4, types.MISS_REASON_UNSPECIFIED)
        assert payload == b"".join(data[:7]), "the bytes of a hole are not sent"
        assert len(reply.checksums) == 8 * 8
        assert reply.checksums[-8:] == bytes(8), "a hole has no checksum"
        assert raw.get(handle, keys, parts=[0])[1] == b"".join(data[::2])


def test_a_get_of_nothing_is_no_error(address: str) -> None:
    with Raw(address) as raw:
        handle = raw.open()
        reply, payload = raw.get(handle, keys_of(3, 65_535))
        assert (reply.blocks, payload, reply.miss) == (0, b"", types.MISS_REASON_ABSENT)
        assert raw.get(handle, b"")[0].blocks == 0


# --- put ----------------------------------------------------------------------------------------------------


def test_a_put_of_what_is_here_changes_nothing(address: str, salt: int) -> None:
    keys = keys_of(4, salt)
    with Raw(address) as raw:
        handle = raw.open()
        raw.put(handle, 2, salt)
        other = bytes(len(payload_of(keys[:32])) - 32) + payload_of(keys[:32])[-32:]
        reply, _ = raw.call(Op.PUT, put_request(handle, keys[:32]), other)
        assert set(reply.outcomes) == {types.PUT_OUTCOME_PRESENT}  # type: ignore[attr-defined]
        reply = raw.put(handle, 4, salt)
        assert list(reply.outcomes) == [2, 2, 1, 1]
        assert reply.stored == 2
        assert raw.get(handle, keys)[1] == b"".join(data_of(keys))


def test_what_another_session_is_writing_is_pending(address: str, salt: int) -> None:
    keys = keys_of(2, salt)
    with Raw(address) as writer, Raw(address) as other:
        handle = writer.open()
        chain = types.ChainSlice(keys=keys)
        writer.call(Op.RESERVE, pb.ReserveRequest(namespace=handle, chain=chain))
        assert set(other.put(handle, 2, salt).outcomes) == {types.PUT_OUTCOME_PENDING}
        reply, _ = other.get(handle, keys)
        assert (reply.blocks, reply.miss) == (0, types.MISS_REASON_PENDING)


def test_a_put_layer_by_layer_is_visible_at_its_commit(address: str, salt: int) -> None:
    spec = NamespaceSpec(model="layers", block_tokens=4, parts=(PartSpec("0", 40_000, layers=4),))
    keys = keys_of(3, salt, spec)
    data = data_of(keys, spec)
    sums = sums_of(keys, data, spec).reshape(3, 4)
    with Raw(address) as raw:
        handle = raw.open(spec)
        reply, _ = raw.call(Op.RESERVE, pb.ReserveRequest(namespace=handle, chain=types.ChainSlice(keys=keys)))
        reservation = reply.reservation  # type: ignore[attr-defined]
        for layer in (2, 0, 3, 1):
            at = layer * 10_000
            bytes_of_layer = b"".join(block[at : at + 10_000] for block in data)
            request = pb.WriteRequest(reservation=reservation, range_offset=at, range_length=10_000)
            raw.call(Op.WRITE, request, bytes_of_layer + sums[:, layer].tobytes())
            assert raw.match(handle, keys) == 0
        commit = pb.CommitRequest(reservation=reservation, checksums=sums.tobytes())
        reply, _ = raw.call(Op.COMMIT, commit)
        assert reply.outcomes == bytes([types.PUT_OUTCOME_STORED]) * 3  # type: ignore[attr-defined]
        assert raw.get(handle, keys)[1] == b"".join(data)
        assert isinstance(raw.error(Op.COMMIT, commit), errors.InvalidArgument)


def test_a_range_that_arrives_damaged_can_be_written_again(address: str, salt: int) -> None:
    keys = keys_of(2, salt)
    payload = payload_of(keys)
    with Raw(address) as raw:
        handle = raw.open()
        reply, _ = raw.call(Op.RESERVE, pb.ReserveRequest(namespace=handle, chain=types.ChainSlice(keys=keys)))
        write = pb.WriteRequest(reservation=reply.reservation)  # type: ignore[attr-defined]
        assert isinstance(raw.error(Op.WRITE, write, b"x" + payload[1:]), errors.ChecksumMismatch)
        commit = pb.CommitRequest(reservation=write.reservation, checksums=payload[-32:])
        assert isinstance(raw.error(Op.COMMIT, commit), errors.InvalidArgument)
        raw.call(Op.WRITE, write, payload)
        assert raw.call(Op.COMMIT, commit)[0].stored == 2  # type: ignore[attr-defined]


def test_a_release_without_reply_keeps_the_stream_in_step(address: str) -> None:
    with Raw(address) as raw:
        raw.send(Op.RELEASE, pb.ReleaseRequest(leases=[1]), flags=Flag.ONE_WAY)
        raw.call(Op.PING)


def test_an_error_of_a_frame_that_wants_no_reply_is_not_told(address: str) -> None:
    with Raw(address) as raw:
        raw.send(Op.MATCH, pb.MatchRequest(namespace=1, keys=b"x"), flags=Flag.ONE_WAY)
        raw.send(Op.GET, pb.GetRequest(namespace=1, keys=b"x"), flags=Flag.ONE_WAY)
        raw.call(Op.PING)


def test_requests_may_be_sent_before_the_last_reply(address: str) -> None:
    with Raw(address) as raw:
        for _ in range(50):
            raw.send(Op.PING)
        for _ in range(50):
            raw.answer()


# --- shared memory ------------------------------------------------------------------------------------------


def attach(raw: Raw, step: int) -> tuple[list[str], list[int]]:
    raw.send(Op.ATTACH, pb.AttachRequest(step=step))  # type: ignore[arg-type]
    frame = recv_frame_descriptors(raw.sock, deadline=time.monotonic() + 30)
    assert frame is not None
    return list(pb.AttachReply.FromString(bytes(frame[1])).fds), frame[2]


def test_descriptors_come_with_their_frames(running: NodeProcess) -> None:
    import fcntl

    with Raw(str(running.socket), shared_memory=True) as raw:
        assert raw.greeting is not None
        (name,), (lock,) = attach(raw, pb.AttachRequest.STEP_LOCK_FILE)
        state = os.fstat(lock)
        assert (name, state.st_dev, state.st_ino) == ("lock", raw.greeting.lock_dev, raw.greeting.lock_ino)
        fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, raw.greeting.session_index)
        (name,), (reader,) = attach(raw, pb.AttachRequest.STEP_READ)
        assert (name, os.fstat(reader).st_size) == ("memory-ro", raw.greeting.memory_bytes)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(reader, b"x", 0)
        (name,), (writer,) = attach(raw, pb.AttachRequest.STEP_WRITE)
        assert (name, os.fstat(writer).st_ino) == ("memory-rw", os.fstat(reader).st_ino)
        raw.call(Op.PING)
        os.close(reader)
        os.close(writer)
        os.close(lock)


def test_a_descriptor_does_not_leak_when_the_client_is_gone(running: NodeProcess) -> None:
    assert running.process is not None
    folder = f"/proc/{running.process.pid}/fd"
    wait_for(lambda: running.stat()["sessions"] == 0)
    before = len(os.listdir(folder))
    for _ in range(20):
        with Raw(str(running.socket), shared_memory=True) as raw:
            raw.send(Op.ATTACH, pb.AttachRequest(step=pb.AttachRequest.STEP_LOCK_FILE))
            raw.sock.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: running.stat()["sessions"] == 0)
    wait_for(lambda: len(os.listdir(folder)) <= before)


def test_the_greeting_tells_where_the_rest_is(running: NodeProcess, address: str) -> None:
    with Raw(address) as raw:
        assert raw.greeting is not None
        assert raw.greeting.control_address == running.control
        assert raw.greeting.http_address == running.http
        assert raw.greeting.node_id.hex() == running.node_id
        assert (raw.greeting.max_keys, raw.greeting.max_frame_bytes) == (65_536, 1 << 20)
        assert raw.greeting.memory_bytes == 0


def test_a_node_on_all_addresses_tells_each_client_the_one_it_reached(tmp_path: Path) -> None:
    settings = {"control_address": "0.0.0.0:0", "data_address": "0.0.0.0:0", "allow_insecure_network": True}
    with node(tmp_path, **settings) as process:
        port = process.control.rpartition(":")[2]
        for where in (str(process.socket), process.data.replace("0.0.0.0", "127.0.0.1")):
            with Raw(where) as raw:
                assert raw.greeting is not None
                assert raw.greeting.control_address == f"127.0.0.1:{port}"


def test_an_address_is_not_needed_for_both(tmp_path: Path) -> None:
    with node(tmp_path / "unix", data_address="off") as process:
        with Raw(str(process.socket)) as raw:
            assert raw.put(raw.open(), 1).stored == 1
        assert process.data == ""
    with node(tmp_path / "tcp", socket="off") as process, Raw(process.data) as raw:
        assert raw.put(raw.open(SPEC), 1).stored == 1
