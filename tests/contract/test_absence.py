"""Nodes that are away, late, or back."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from kvstore import Client, PutResult
from kvstore.core.errors import DeadlineExceeded, ProtocolError, Unavailable
from tests.contract.conftest import empty, payload, spec, tokens
from tests.contract.running import NodeProcess, wait_until
from tests.contract.sessions import Connect, Start, filled


def test_without_a_node_everything_is_a_miss_with_a_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Client(f"unix://{tmp_path}/none.sock") as client:
        namespace = client.namespace(spec())
        keys = namespace.keys(tokens(3))
        assert namespace.match(keys) == 0
        assert namespace.get(keys, empty(namespace, 3)) == 0
        assert namespace.put(keys, payload(namespace, 3)) == PutResult(failed=3, reasons={"backoff": 3})
        with namespace.borrow(keys) as views:
            assert views == []
        with namespace.writer(keys) as writer:
            writer.write(None, payload(namespace, 3))
        assert writer.result.failed == 3
        assert namespace.evict(keys) == 0
        assert client.last_miss == "backoff"
        assert wait_until(lambda: namespace.match(keys) == 0 and client.last_miss == "unavailable")
    assert len([line for line in caplog.messages if "no service" in line]) == 1


def test_failures_raise_when_asked_for(tmp_path: Path) -> None:
    client = Client(f"unix://{tmp_path}/none.sock", on_failure="raise")
    with client, pytest.raises(Unavailable, match=r"none\.sock"):
        client.namespace(spec())


def test_a_frozen_node_is_a_miss_at_the_deadline_then_skipped_then_used_again(
    own_node: Start, connect: Connect, transport: str
) -> None:
    node = own_node()
    client = connect(node, transport)
    namespace, data = filled(client, 3)
    keys, into = namespace.keys(tokens(3)), empty(namespace, 3)
    node.freeze()
    for _ in range(3):  # none of them alone says that it is the node
        assert namespace.get(keys, into, timeout=0.2) == 0
        assert client.last_miss == "deadline"
    assert namespace.match(keys, timeout=0.2) == 0
    assert client.last_miss == "backoff"
    failing = connect(node, transport, on_failure="raise")
    with pytest.raises(DeadlineExceeded):
        failing.namespace(namespace.spec, timeout=0.2)  # connects, is not answered
    node.thaw()
    assert wait_until(lambda: namespace.match(keys) == 3)
    assert namespace.get(keys, into) == 3
    assert into == data
    assert client.counters()["sessions"] == 2


def test_a_call_that_is_late_costs_no_other_call(client: Client) -> None:
    namespace, data = filled(client, 4)
    keys, done, wrong = namespace.keys(tokens(4)), threading.Event(), []

    def in_a_hurry() -> None:
        while not done.is_set():
            for timeout in (5e-5, 2e-4, 1e-3):
                namespace.get(keys, empty(namespace, 4), timeout=timeout)
                namespace.put(namespace.keys(tokens(4, time.monotonic_ns())), data, timeout=timeout)

    thread = threading.Thread(target=in_a_hurry)
    thread.start()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        into = empty(namespace, 4)
        if namespace.get(keys, into, timeout=30.0) != 4 or into != data:
            wrong.append(client.last_miss)
    done.set()
    thread.join()
    assert not wrong
    assert "failures" not in client.counters()


def test_replies_that_come_too_late_are_read_and_what_they_bring_goes_back(
    own_node: Start, connect: Connect, transport: str
) -> None:
    node = own_node()
    client = connect(node, transport)
    namespace, data = filled(client, 3)
    keys, more = namespace.keys(tokens(3)), namespace.keys(tokens(3, 1))
    node.freeze()
    assert namespace.put(more, data, timeout=0.05).reasons == {"deadline": 3}
    assert namespace.get(keys, empty(namespace, 3), timeout=0.05) == 0
    assert namespace.match(keys, timeout=0.05) == 0
    assert client.last_miss == "deadline"
    node.thaw()
    into = empty(namespace, 3)
    assert namespace.get(keys, into) == 3
    assert into == data
    assert wait_until(lambda: namespace.put(more, data).complete)  # the late reservation is no longer in the way
    assert wait_until(lambda: namespace.match(more) == 3)
    if transport == "shm":  # by a socket the put may have been cut within its bytes, and its connection with it
        assert client.counters()["sessions"] == 1
    assert "failures" not in client.counters()
    assert wait_until(lambda: client.stat().leases == 0)


def test_after_sigkill_and_restart_the_same_client_finds_its_blocks(
    own_node: Start, connect: Connect, transport: str
) -> None:
    node = own_node()
    client = connect(node, transport)
    namespace, data = filled(client, 6)
    keys, into = namespace.keys(tokens(6)), empty(namespace, 6)
    node.kill()
    assert namespace.get(keys, into) == 0
    node.start()
    assert wait_until(lambda: namespace.match(keys) == 6)
    assert namespace.get(keys, into) == 6
    assert into == data
    assert namespace.put(keys, data) == PutResult(present=6)


def test_a_restart_between_calls_is_not_even_a_miss(own_node: Start, connect: Connect, transport: str) -> None:
    node = own_node()
    client = connect(node, transport)
    namespace, data = filled(client, 4)
    keys, into = namespace.keys(tokens(4)), empty(namespace, 4)
    node.stop()
    node.start()
    assert namespace.get(keys, into) == 4
    assert into == data
    assert "failures" not in client.counters()


def test_views_stay_true_over_the_death_of_the_node_and_its_restart(own_node: Start, connect: Connect) -> None:
    node = own_node()
    client = connect(node, "shm")
    namespace, data = filled(client, 4)
    with namespace.borrow(namespace.keys(tokens(4))) as views:
        node.kill()
        node.start()
        assert wait_until(lambda: namespace.match(namespace.keys(tokens(4))) == 4)
        namespace.evict(namespace.keys(tokens(4)))
        for seed in range(1, 6):  # more than fits: everything that may be reused is
            other = client.namespace(spec())
            other.put(other.keys(tokens(400, seed)), payload(other, 400, seed))
        assert [bytes(view) for view in views] == data
        assert client.stat().orphan_sessions == 1
    del views
    assert wait_until(lambda: client.stat().orphan_sessions == 0)


def test_a_put_cut_by_the_death_of_the_node_is_a_failure_and_leaves_no_half_block(
    own_node: Start, connect: Connect, transport: str
) -> None:
    node = own_node()
    client = connect(node, transport)
    namespace = client.namespace(spec())
    keys, data = namespace.keys(tokens(3)), payload(namespace, 3)
    with namespace.writer(keys) as writer:
        writer.write((0, 65_536), [block[:65_536] for block in data])
        node.kill()
        node.start()
        writer.write((65_536, 134_464), [block[65_536:] for block in data])  # by shm: into slots nobody else has
    assert writer.result.failed == 3
    assert namespace.match(keys) == 0
    assert wait_until(lambda: namespace.put(keys, data).stored == 3)
    into = empty(namespace, 3)
    assert namespace.get(keys, into) == 3
    assert into == data


def test_a_dropped_namespace_opens_itself_again(own_node: Start, connect: Connect, transport: str) -> None:
    import grpc

    from kvstore.v1 import control_pb2, control_pb2_grpc

    client = connect(own_node(), transport)
    namespace, data = filled(client, 2)
    with grpc.insecure_channel(client.link.session(time.monotonic() + 5)[0].node.control_address) as channel:
        control_pb2_grpc.ControlStub(channel).DropNamespace(control_pb2.DropNamespaceRequest(root=namespace.root))
    assert namespace.match(namespace.keys(tokens(2))) == 0
    assert namespace.put(namespace.keys(tokens(2)), data).stored == 2


def test_several_addresses_are_tried_in_order(shared_node: NodeProcess) -> None:
    with Client(f"kv://127.0.0.1:1,127.0.0.1:{shared_node.port}", timeout=30) as client:
        namespace, _ = filled(client, 1)
        assert namespace.match(namespace.keys(tokens(1))) == 1


def test_a_foreign_server_is_no_node() -> None:
    def answer(server: socket.socket) -> None:
        server.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(20))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        client = Client(f"kv://127.0.0.1:{server.getsockname()[1]}", timeout=5, on_failure="raise")
        with client, pytest.raises(ProtocolError, match="not a kvstore frame"):
            client.namespace(spec())
        thread.join()
