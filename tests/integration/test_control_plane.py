"""The gRPC control plane, as a client in any language meets it, and the commands that use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from kvstore.core.keys import KEY_BYTES
from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import types_pb2 as types
from kvstore.v1.control_pb2_grpc import ControlStub
from tests.integration.nodes import NodeProcess, cli, node
from tests.integration.raw import Raw, data_of, keys_of, sums_of

SPEC = NamespaceSpec(
    model="grpc", block_tokens=4, parts=(PartSpec("a", 70_000), PartSpec("b", 4_000, group="state", kind="state"))
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node(tmp_path_factory.mktemp("control"), control_threads=2, peer_timeout="2s") as process:
        yield process


@pytest.fixture(scope="module")
def channel(running: NodeProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(running.control) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.Channel) -> Iterator[Any]:
    """A stub; the namespaces of the test are dropped after it."""
    made = ControlStub(channel)  # type: ignore[no-untyped-call]
    yield made
    for info in made.ListNamespaces(pb.ListNamespacesRequest()).namespaces:
        made.DropNamespace(pb.DropNamespaceRequest(root=info.root))


def opened(stub: Any, spec: NamespaceSpec = SPEC) -> bytes:
    info = stub.OpenNamespace(pb.ControlOpenNamespaceRequest(canonical=spec.canonical(), root=spec.root))
    return bytes(info.root)


def puts(root: bytes, keys: bytes, spec: NamespaceSpec = SPEC, **fields: Any) -> Iterator[pb.ControlPutRequest]:
    """A Put stream: the first message names the chain, each further one brings one part."""
    yield pb.ControlPutRequest(root=root, chain=types.ChainSlice(keys=keys), **fields)
    for data in data_of(keys, spec):
        yield pb.ControlPutRequest(data=data)


def failure(call: Any) -> tuple[grpc.StatusCode, types.Error]:
    """Status code, and the typed error in the trailing metadata."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    metadata = dict(caught.value.trailing_metadata())
    return caught.value.code(), types.Error.FromString(metadata["kvstore-error-bin"])


def test_blocks_go_in_and_come_out(stub: Any) -> None:
    root, keys = opened(stub), keys_of(5, spec=SPEC)
    reply = stub.Put(puts(root, keys))
    assert (reply.stored, set(reply.outcomes)) == (5, {types.PUT_OUTCOME_STORED})
    assert stub.Put(puts(root, keys)).stored == 0
    assert stub.Match(pb.ControlMatchRequest(root=root, keys=keys)).blocks == 5
    first, *entries = stub.Get(pb.ControlGetRequest(root=root, keys=keys, first_block=2))
    assert first.blocks == 5
    assert [entry.data for entry in entries] == data_of(keys[2 * KEY_BYTES :], SPEC)
    sums = np.frombuffer(b"".join(entry.checksums for entry in entries), "<u8")
    assert (sums == sums_of(keys[2 * KEY_BYTES :], [entry.data for entry in entries], SPEC)).all()


def test_several_parts_may_come_in_one_message(stub: Any) -> None:
    root, keys = opened(stub), keys_of(3, spec=SPEC)
    data = data_of(keys, SPEC)
    chain = types.ChainSlice(keys=keys)
    messages = [
        pb.ControlPutRequest(root=root, chain=chain, data=b"".join(data[:3])),
        pb.ControlPutRequest(),
        pb.ControlPutRequest(data=b"".join(data[3:])),
    ]
    assert stub.Put(iter(messages)).stored == 3
    assert [entry.data for entry in stub.Get(pb.ControlGetRequest(root=root, keys=keys))][1:] == data


def test_the_data_path_and_the_control_plane_see_the_same_blocks(stub: Any, running: NodeProcess) -> None:
    root, keys = opened(stub), keys_of(4, spec=SPEC)
    with Raw(running.data) as raw:
        raw.put(raw.open(SPEC), 4, spec=SPEC)
        assert stub.Match(pb.ControlMatchRequest(root=root, keys=keys)).blocks == 4
        reply = stub.Evict(pb.ControlEvictRequest(root=root, keys=keys[2 * KEY_BYTES : 3 * KEY_BYTES]))
        assert (reply.evicted, reply.leased, reply.absent) == (2, 0, 0)
        assert raw.match(raw.open(SPEC), keys) == 2


def test_match_says_why_the_prefix_ends(stub: Any) -> None:
    root, keys = opened(stub), keys_of(3, spec=SPEC)
    reply = stub.Match(pb.ControlMatchRequest(root=root, keys=keys))
    assert (reply.blocks, reply.miss) == (0, types.MISS_REASON_ABSENT)


def test_namespaces_are_listed_described_and_dropped(stub: Any) -> None:
    root, keys = opened(stub), keys_of(3, spec=SPEC)
    stub.Put(puts(root, keys))
    (info,) = stub.ListNamespaces(pb.ListNamespacesRequest()).namespaces
    assert (info.root, info.canonical, info.blocks, info.bytes, info.parts) == (root, SPEC.canonical(), 3, 222_000, 2)
    other = NamespaceSpec(model="grpc", block_tokens=4, block_bytes=74_000)
    info = stub.OpenNamespace(pb.ControlOpenNamespaceRequest(canonical=other.canonical()))
    assert (info.created, list(info.differs)) == (True, ["parts"])
    assert stub.DropNamespace(pb.DropNamespaceRequest(root=root)).blocks == 3
    assert failure(lambda: stub.Match(pb.ControlMatchRequest(root=root, keys=keys)))[0] is grpc.StatusCode.NOT_FOUND


def test_stat_describes_the_node(stub: Any, running: NodeProcess) -> None:
    stub.Put(puts(opened(stub), keys_of(2, spec=SPEC)))
    reply = stub.Stat(pb.StatRequest())
    assert reply.node_id.hex() == running.node_id
    assert (reply.blocks, reply.writing, reply.leases) == (2, 0, 0)
    assert (reply.data_address, reply.socket) == (running.data, str(running.socket))
    assert reply.tiers[0].tier == types.TIER_KIND_DRAM
    assert reply.tiers[0].ready_bytes == 148_000
    assert len(reply.namespaces) == 1


# --- errors -------------------------------------------------------------------------------------------------


def test_errors_are_typed(stub: Any) -> None:
    root, unknown = opened(stub), pb.DropNamespaceRequest(root=bytes(16))
    other = NamespaceSpec(model="grpc", block_tokens=8, block_bytes=1000)
    strict = pb.ControlOpenNamespaceRequest(canonical=other.canonical(), strict=True)
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    cases = [
        (lambda: stub.Match(pb.ControlMatchRequest(root=root, keys=b"x")), invalid, "BAD_KEY"),
        (lambda: stub.Match(pb.ControlMatchRequest(root=b"x")), invalid, "INVALID_ARGUMENT"),
        (lambda: stub.Evict(pb.ControlEvictRequest(root=root)), invalid, "INVALID_ARGUMENT"),
        (lambda: stub.Put(iter(())), invalid, "INVALID_ARGUMENT"),
        (lambda: list(stub.Get(pb.ControlGetRequest(root=root, parts=[9]))), invalid, "INVALID_ARGUMENT"),
        (lambda: stub.OpenNamespace(strict), grpc.StatusCode.FAILED_PRECONDITION, "NAMESPACE_MISMATCH"),
        (lambda: stub.DropNamespace(unknown), grpc.StatusCode.NOT_FOUND, "UNKNOWN_NAMESPACE"),
    ]
    for call, status, name in cases:
        found, error = failure(call)
        assert (found, types.ErrorCode.Name(error.code)) == (status, f"ERROR_CODE_{name}")


@pytest.mark.parametrize("ack", [types.ACK_LEVEL_REPLICATED, types.ACK_LEVEL_DURABLE])
def test_acknowledgement_levels_of_later_are_unsupported(stub: Any, ack: int) -> None:
    status, error = failure(lambda: stub.Put(puts(opened(stub), keys_of(1, spec=SPEC), ack=ack)))
    assert (status, error.code) == (grpc.StatusCode.UNIMPLEMENTED, types.ERROR_CODE_UNSUPPORTED)
    assert stub.Stat(pb.StatRequest()).writing == 0


@pytest.mark.parametrize("cut", ["short", "long", "split", "missing"])
def test_a_put_that_is_not_whole_parts_leaves_nothing(stub: Any, cut: str) -> None:
    root, keys = opened(stub), keys_of(2, spec=SPEC)
    messages = list(puts(root, keys))
    if cut == "short":
        messages[-1].data = messages[-1].data[:-1]
    elif cut == "long":
        messages.append(pb.ControlPutRequest(data=b"x"))
    elif cut == "split":
        half = messages[1].data[:30_000]
        messages[1].data = messages[1].data[30_000:]
        messages.insert(1, pb.ControlPutRequest(data=half))
    else:
        del messages[-1]
    status, error = failure(lambda: stub.Put(iter(messages)))
    assert (status, error.code) == (grpc.StatusCode.INVALID_ARGUMENT, types.ERROR_CODE_WRONG_BLOCK_SIZE)
    stat = stub.Stat(pb.StatRequest())
    assert (stat.blocks, stat.writing, stat.tiers[0].used_bytes, stat.sessions) == (0, 0, 0, 0)


def test_a_node_without_nvme_does_not_prefetch(stub: Any) -> None:
    request = pb.PrefetchRequest(root=opened(stub), keys=keys_of(1, spec=SPEC))
    status, error = failure(lambda: stub.Prefetch(request))
    assert (status, error.code) == (grpc.StatusCode.UNIMPLEMENTED, types.ERROR_CODE_UNSUPPORTED)


def test_calls_that_concern_other_nodes_say_that_this_one_stands_alone(stub: Any) -> None:
    calls = {"Replicate": pb.ReplicateRequest(), "Migrate": pb.MigrateRequest(), "Copy": pb.CopyRequest()}
    streams = {"Drain": pb.DrainRequest(), "Warm": pb.WarmRequest(), "Hottest": pb.HottestRequest()}
    for name, request in {**calls, **streams}.items():
        ask = getattr(stub, name)
        status, error = failure(
            lambda ask=ask, request=request, whole=list if name in streams else id: whole(ask(request))
        )
        assert (status, error.code) == (grpc.StatusCode.UNAVAILABLE, types.ERROR_CODE_UNAVAILABLE)
        assert error.message.startswith(f"{name} concerns other nodes, and this one stands alone: set discovery")


def test_a_put_that_stalls_is_ended_and_gives_its_slots_back(stub: Any, running: NodeProcess) -> None:
    """And while it stalls, others are served."""
    import threading

    root, keys = opened(stub), keys_of(2, spec=SPEC)
    release = threading.Event()

    def stalling() -> Iterator[pb.ControlPutRequest]:
        yield pb.ControlPutRequest(root=root, chain=types.ChainSlice(keys=keys), data=data_of(keys, SPEC)[0])
        release.wait(60)

    call = stub.Put.future(stalling())
    assert stub.Match(pb.ControlMatchRequest(root=root, keys=keys)).blocks == 0
    assert call.exception() is not None
    release.set()
    stat = stub.Stat(pb.StatRequest())
    assert (stat.blocks, stat.writing, stat.sessions) == (0, 0, 0)
    assert "Traceback" not in running.log()


# --- health and reflection ----------------------------------------------------------------------------------


def test_health_is_served_for_the_service_and_the_whole(channel: grpc.Channel) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "kvstore.v1.Control"):
        reply = health.Check(health_pb2.HealthCheckRequest(service=service))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_the_service(channel: grpc.Channel) -> None:
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    database = ProtoReflectionDescriptorDatabase(channel)
    assert "kvstore.v1.Control" in database.get_services()
    assert database.FindFileContainingSymbol("kvstore.v1.Control").package == "kvstore.v1"


# --- commands -----------------------------------------------------------------------------------------------


@pytest.fixture
def filled(stub: Any) -> bytes:
    """Root of a namespace with three blocks of the chain of tokens 0, 1, 2 ..."""
    root = opened(stub)
    stub.Put(puts(root, keys_of(3, spec=SPEC)))
    return root


def test_stat_for_people_and_for_programs(filled: bytes, running: NodeProcess) -> None:
    done = running.run("stat", "--json")
    value = json.loads(done.stdout)
    assert (value["blocks"], value["node_id"]) == (3, running.node_id)
    assert value["namespaces"][0]["root"] == filled.hex()
    shown = running.run("stat").stdout
    assert all(word in shown for word in ("dram", "grpc", filled.hex()[:8], running.node_id))


@pytest.mark.parametrize("target", ["unix", "kv", "grpc"])
def test_match_by_tokens_and_by_keys(filled: bytes, running: NodeProcess, tmp_path: Path, target: str) -> None:
    where = {"unix": running.target, "kv": f"kv://{running.data}", "grpc": f"grpc://{running.control}"}[target]
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps(list(range(18))))
    done = cli("match", "--target", where, "--tokens-file", str(file), "--json")
    assert json.loads(done.stdout) == {
        "root": filled.hex(), "blocks": 3, "asked": 4, "tokens": 12, "miss": "absent", "remote_blocks": 0
    }  # fmt: skip
    keys = keys_of(2, spec=SPEC)
    done = cli("match", "--target", where, "--keys", f"{keys[:16].hex()},{keys[16:].hex()}", "--namespace", "grpc")
    assert done.stdout.startswith("2 of 2 blocks (8 tokens)")


def test_evict_drops_a_block_and_what_follows(filled: bytes, running: NodeProcess) -> None:
    key = keys_of(3, spec=SPEC)[16:32]
    done = running.run("evict", "--keys", key.hex(), "--json")
    assert json.loads(done.stdout) == {"evicted": 2, "leased": 0, "absent": 0}


def test_purge_drops_the_blocks_of_a_running_node_only_when_asked(filled: bytes, running: NodeProcess) -> None:
    done = cli("purge", "--config", str(running.config))
    assert done.returncode == 1
    assert "in use by a living node" in done.stderr
    assert running.stat()["blocks"] == 3
    done = running.run("purge", "--blocks", "--json")
    assert json.loads(done.stdout) == {"namespaces": 1, "blocks": 3, "leased": 0}
    assert running.stat()["blocks"] == 0


def test_purge_removes_the_memory_of_a_stopped_node(tmp_path: Path) -> None:
    with node(tmp_path) as process:
        process.stop()
        assert process.memory_file.exists()
        done = cli("purge", "--config", str(process.config), "--json")
        assert json.loads(done.stdout) == {"removed": True, "memory_file": str(process.memory_file)}
        assert not process.memory_file.exists()
        assert not Path(f"{process.memory_file}.lock").exists()
        done = cli("purge", "--config", str(process.config))
        assert done.returncode == 0
        assert "nothing to remove" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["match"], 2, ["--keys", "--tokens-file"]),
        (["match", "--keys", "xyz"], 2, ["--keys"]),
        (["match", "--keys", "aabb"], 2, ["aabb", "32 hex digits"]),
        (["match", "--keys", "00" * 16, "--namespace", "other"], 2, ["other", "grpc"]),
        (["match", "--tokens-file", "/nonexistent"], 2, ["/nonexistent"]),
        (["evict", "--keys", "00" * 16, "--target", "bad"], 2, ["target"]),
        (["stat", "--target", "unix:///nonexistent"], 1, ["/nonexistent", "hint"]),
        (["stat", "--target", "grpc://127.0.0.1:1"], 1, ["127.0.0.1:1"]),
        (["purge", "--namespace", "x"], 2, ["--blocks"]),
        (["frobnicate"], 2, ["frobnicate"]),
        (["stat", "--nope"], 2, ["--nope"]),
    ],
)
def test_errors_of_commands_are_a_line_and_a_hint(
    filled: bytes, running: NodeProcess, arguments: list[str], status: int, words: list[str]
) -> None:
    done = running.run(*arguments)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") <= 2
    assert all(word in done.stderr for word in words)


def test_a_node_without_a_control_plane_says_so(tmp_path: Path) -> None:
    with node(tmp_path, control_address="off", http_address="off") as process:
        done = process.run("stat")
        assert done.returncode == 1
        assert "control_address" in done.stderr
        with Raw(process.data) as raw:
            assert raw.put(raw.open(), 1).stored == 1
