"""One-sided reads: whatever stops, dies or has a stale place, no wrong byte is accepted and nobody hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kvstore import Client, Namespace
from kvstore.core.errors import InvalidArgument, KVStoreError, LeaseLost, Unsupported
from kvstore.core.keys import Keys
from kvstore.transport.batch import GetCall, PutCall, commit_request, parsed, reserve_request
from kvstore.transport.fabric.agent import NixlAgent, spans
from kvstore.transport.frame import Op
from kvstore.transport.leasing import located
from kvstore.transport.nixl import NixlTransport
from kvstore.transport.wire import Address, Wire
from kvstore.v1 import data_pb2 as pb
from tests.contract.conftest import WITHOUT_FABRIC, empty, payload, spec, tokens
from tests.contract.fabric_child import BLOCKS
from tests.contract.running import ROOT, NodeProcess, wait_until
from tests.contract.sessions import Connect, Start, filled

pytestmark = pytest.mark.skipif(WITHOUT_FABRIC, reason="this version of Python is tried without fabric libraries")
Child = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def child() -> Iterator[Child]:
    """Starts clients that stop or die; none is left behind."""
    started: list[subprocess.Popen[str]] = []

    def start(node: NodeProcess, namespace: Namespace, *what: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.contract.fabric_child", str(node.port), namespace.spec.model, *what]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ, cwd=ROOT))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def await_stop(process: subprocess.Popen[str]) -> None:
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=60)
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def overwrite(node: NodeProcess, client: Client, block: bytes) -> None:
    """Puts other blocks until these bytes are nowhere in the memory file any more."""

    def gone() -> bool:
        filled(client, 60, seed=time.monotonic_ns())
        with node.memory.open("rb") as memory:
            return memory.read().find(block) < 0

    assert wait_until(gone, 60.0)


# --- wrong bytes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", ["both", "lease", "checksums"])
def test_a_client_stopped_between_lease_and_read_takes_no_other_blocks_bytes(
    own_node: Start, connect: Connect, child: Child, guard: str
) -> None:
    node = own_node(capacity="64MiB", heartbeat="100ms")
    client = connect(node, "tcp")
    namespace, data = filled(client, BLOCKS)
    stopped = child(node, namespace, "get", guard)
    await_stop(stopped)
    assert wait_until(lambda: client.stat().leases == 0)  # silent for too long: its session ended, its lease broke
    namespace.evict(namespace.keys(tokens(BLOCKS)))
    overwrite(node, client, data[0])
    stopped.send_signal(signal.SIGCONT)
    found = answer(stopped)
    assert found["got"] == 0
    assert found["reads"] >= 1
    assert not found["right"]
    if guard == "lease":  # it did read what others had put there
        assert found["touched"]


def test_a_client_stopped_for_less_than_its_session_lives_reads_what_it_leased(
    own_node: Start, connect: Connect, child: Child
) -> None:
    node = own_node(heartbeat="60s")
    client = connect(node, "tcp")
    namespace, _ = filled(client, BLOCKS)
    stopped = child(node, namespace, "get")
    await_stop(stopped)
    assert client.stat().leased_blocks == BLOCKS
    namespace.evict(namespace.keys(tokens(BLOCKS)))
    filled(client, 300, seed=7)  # would take the slots, were they not leased
    stopped.send_signal(signal.SIGCONT)
    assert answer(stopped) == {"got": BLOCKS, "reads": 1, "right": True, "touched": True}
    assert wait_until(lambda: client.stat().leases == 0)


def test_a_stale_place_is_refused_twice_by_lease_and_by_checksums(own_node: Start, connect: Connect) -> None:
    node = own_node(capacity="64MiB")
    client = connect(node, "nixl")
    namespace, data = filled(client, BLOCKS)
    transport, call = session_of(client, namespace)
    transport.pin()
    reply = transport._lease(call, soon())
    found = located(call, reply)
    into = [np.zeros(len(block), np.uint8) for block in data]
    assert transport._fetch(call, found, into, soon()) == (BLOCKS, False)
    transport._confirm(reply.lease, soon())  # given back: from here on its places are stale
    namespace.evict(namespace.keys(tokens(BLOCKS)))
    overwrite(node, client, data[0])
    into = [np.zeros(len(block), np.uint8) for block in data]
    assert transport._fetch(call, found, into, soon()) == (0, False)
    assert not any(buffer.any() for buffer in into)  # what failed its check was not even copied
    with pytest.raises(LeaseLost):
        transport._confirm(reply.lease, soon())
    transport.unpin()


def soon() -> float:
    return time.monotonic() + 30


def session_of(client: Client, namespace: Namespace) -> tuple[NixlTransport, GetCall]:
    transport, _ = client.link.session(soon())
    assert isinstance(transport, NixlTransport)
    keys = Keys.of(namespace.keys(tokens(BLOCKS)))
    return transport, GetCall(transport.handles[namespace.root], keys.raw, 0, namespace.plan(None, None))


# --- nobody remote writes a node's memory --------------------------------------------------------------------------


def test_a_client_that_writes_to_the_nodes_memory_fails_and_changes_nothing(own_node: Start, connect: Connect) -> None:
    node = own_node()
    client = connect(node, "nixl")
    namespace, data = filled(client, BLOCKS)
    transport, call = session_of(client, namespace)
    transport.pin()
    reply = transport._lease(call, soon())
    agent, arena = transport._fabric.agent, transport._fabric.arena
    slab = arena.take(4096, soon())
    slab.array[:4096] = 0xEE
    assert not write_to(agent, transport._peer, slab.address, transport._base + reply.offsets[0])
    transport.give_lease_back(reply.lease)
    with connect(node, "shm").namespace(namespace.spec).borrow(namespace.keys(tokens(BLOCKS))) as views:
        assert [bytes(view) for view in views] == data


def write_to(agent: NixlAgent, peer: str, source: int, target: int) -> bool:
    """Whether 4 KiB could be written, by what our own code never asks for."""
    nixl = agent._nixl
    local, remote = (nixl.nixlXferDList(nixl.DRAM_SEG, spans([at], [4096])) for at in (source, target))
    try:
        handle = agent._agent.createXferReq(nixl.NIXL_WRITE, local, remote, peer, "", [])
        state = agent._agent.postXferReq(handle, b"")
        while state == nixl.NIXL_IN_PROG:
            state = agent._agent.getXferStatus(handle)
    except (nixl.nixlBackendError, nixl.nixlRemoteDisconnectError, nixl.nixlNotAllowedError):
        return False
    return bool(state == nixl.NIXL_SUCCESS)


def test_the_node_maps_its_memory_read_only_for_clients(own_node: Start, connect: Connect) -> None:
    node = own_node()
    filled(connect(node, "nixl"), 1)
    assert node.process is not None
    with open(f"/proc/{node.process.pid}/maps") as maps:
        modes = {line.split()[1] for line in maps if node.memory.name in line and ".lock" not in line}
    assert "r--s" in modes


@pytest.mark.parametrize("addresses", [[], [0] * BLOCKS, [1 << 47] * BLOCKS, [4096] * (BLOCKS + 1)])
def test_addresses_that_are_not_the_clients_registered_memory_are_an_error(
    own_node: Start, connect: Connect, addresses: list[int]
) -> None:
    node = own_node()
    client = connect(node, "nixl")
    namespace, data = filled(client, BLOCKS)
    transport, get = session_of(client, namespace)
    keys = namespace.keys(tokens(BLOCKS, 1))
    put = PutCall(get.handle, Keys.of(keys).raw, b"", 0, get.plan)
    reservation = parsed(
        pb.ReserveReply(), transport.call(Op.RESERVE, reserve_request(put, soon()), soon())
    ).reservation
    request = pb.WriteRequest(reservation=reservation, addresses=addresses, deadline_ms=2000)
    with pytest.raises(KVStoreError):
        transport.call(Op.WRITE, request.SerializeToString(), soon())
    with pytest.raises(KVStoreError):  # nothing of it was written
        transport.call(Op.COMMIT, commit_request(reservation, [1] * (BLOCKS * put.plan.block_chunks), 0), soon())
    into = empty(namespace, BLOCKS)
    assert namespace.get(namespace.keys(tokens(BLOCKS)), into) == BLOCKS
    assert into == data


# --- death and silence -------------------------------------------------------------------------------------------


def test_a_node_that_dies_between_lease_and_read_is_a_miss_in_time(
    own_node: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = own_node()
    client = connect(node, "nixl", timeout=10.0)
    namespace, _ = filled(client, BLOCKS)
    fetch: Any = NixlTransport._fetch

    def killing(self: NixlTransport, *arguments: Any) -> Any:
        node.kill()
        return fetch(self, *arguments)

    monkeypatch.setattr(NixlTransport, "_fetch", killing)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(namespace.get(namespace.keys(tokens(4)), empty(namespace, 4))))
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert got == [0]


@pytest.mark.parametrize(("do", "environment"), [("put", {}), ("put-stop", {}), ("put-stop", {"UCX_TLS": "tcp,self"})])
def test_a_client_that_dies_or_stops_while_the_node_reads_it_holds_up_nobody(
    own_node: Start, connect: Connect, child: Child, do: str, environment: dict[str, str]
) -> None:
    node = own_node(heartbeat="100ms", peer_timeout="1s")
    client = connect(node, "tcp")
    namespace = client.namespace(spec())
    keys, data, into = namespace.keys(tokens(BLOCKS)), payload(namespace, BLOCKS, seed=5), empty(namespace, BLOCKS)
    process = child(node, namespace, do, **environment)
    if do == "put":
        assert process.wait(60) == -signal.SIGKILL
    else:
        await_stop(process)
    other, more = filled(client, 2, seed=9)  # others are served meanwhile
    assert wait_until(lambda: namespace.put(keys, data).complete)
    assert namespace.get(keys, into) == BLOCKS
    if into != data:  # the stopped one's put was whole, and came first
        assert do == "put-stop"
        assert [bytes(block) for block in into] == payload(namespace, BLOCKS)
    assert other.get(other.keys(tokens(2, 9)), more_into := empty(other, 2)) == 2
    assert more_into == more


# --- what a node offers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nixl", "ucx"])
def test_a_transport_that_a_node_does_not_offer_is_told_so(own_node: Start, connect: Connect, kind: str) -> None:
    client = connect(own_node(transports="shm,tcp"), kind)
    with pytest.raises(Unsupported, match="transports"):
        client.namespace(spec())


def test_shared_memory_that_is_not_offered_is_not_used(own_node: Start) -> None:
    node = own_node(transports="tcp")
    with Client(node.target("unix"), timeout=30.0) as client:
        filled(client, 1)
        assert client.link.session(soon())[0].capabilities.name == "tcp"
        assert dict(client.stat().transports) == {"tcp": 1}


def test_stat_tells_how_sessions_have_their_bytes_moved(own_node: Start, connect: Connect) -> None:
    node = own_node()
    clients = [connect(node, transport) for transport in ("shm", "tcp", "unix", "nixl", "ucx")]
    for client in clients:
        filled(client, 1)
    assert dict(clients[0].stat().transports) == {"shm": 1, "tcp": 2, "nixl": 1, "ucx": 1}


@pytest.mark.parametrize("kind", ["nixl", "ucx"])
@pytest.mark.parametrize("address", [b"", b"x", b"\xff" * 200, b"nixlSerDes|" + bytes(100)])
def test_what_is_no_fabric_address_is_an_error_and_the_node_lives_on(
    shared_node: NodeProcess, connect: Connect, kind: str, address: bytes
) -> None:
    wire = Wire.connect(Address(host="127.0.0.1", port=shared_node.port), soon())
    hello = pb.HelloRequest(version=1, min_version=1, client="test", transport=kind)
    wire.request(Op.HELLO, hello.SerializeToString(), soon())
    with pytest.raises(InvalidArgument, match="address"):
        wire.request(Op.FABRIC, pb.FabricRequest(address=address, tag=1).SerializeToString(), soon())
    wire.close()
    filled(connect(shared_node, kind), 1)
