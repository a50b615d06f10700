"""Sessions: bounds, threads, close and forks."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from kvstore import Client, PutResult
from kvstore.core.errors import Closed, Unsupported
from tests.contract.conftest import empty, kind_of, payload, spec, tokens
from tests.contract.running import NodeProcess, wait_until
from tests.contract.sessions import Connect, Start, filled

# --- bounds ----------------------------------------------------------------------------------------------


def test_a_get_larger_than_what_may_be_leased_at_once_works(own_node: Start, connect: Connect, transport: str) -> None:
    client = connect(own_node(max_leased_slots="300"), transport)
    namespace, data = filled(client, 1000, block_bytes=4096)
    into = empty(namespace, 1000)
    assert namespace.get(namespace.keys(tokens(1000)), into) == 1000
    assert into == data
    assert wait_until(lambda: client.stat().leases == 0)


def test_a_batch_larger_than_a_frame_is_cut(own_node: Start, connect: Connect, transport: str) -> None:
    client = connect(own_node(max_frame_bytes="1MiB"), transport)
    namespace, data = filled(client, 30)
    into = empty(namespace, 30)
    assert namespace.get(namespace.keys(tokens(30)), into) == 30
    assert into == data
    with namespace.borrow(namespace.keys(tokens(30))) as views:
        assert [bytes(view) for view in views] == data
    with namespace.writer(keys := namespace.keys(tokens(30, seed=1))) as writer:
        writer.write((0, 65_536), [block[:65_536] for block in data])
        writer.write((65_536, 134_464), [block[65_536:] for block in data])
    assert writer.result == PutResult(stored=30)
    assert namespace.get(keys, into) == 30
    assert into == data


def test_views_that_fill_the_lease_bound_make_further_ones_a_busy_miss(own_node: Start, connect: Connect) -> None:
    client = connect(own_node(max_leased_slots="8"), "shm")
    namespace, data = filled(client, 12)
    keys = namespace.keys(tokens(12))
    borrow = namespace.borrow(keys)
    with borrow as views:
        assert borrow.blocks == 8
        assert client.last_miss == "busy"
        assert namespace.get(keys, empty(namespace, 12)) == 0
    del views
    into = empty(namespace, 12)
    assert wait_until(lambda: namespace.get(keys, into) == 12)
    assert into == data


# --- leases ----------------------------------------------------------------------------------------------


def test_a_borrow_holds_its_blocks_until_the_last_view_dies(shared_node: NodeProcess, connect: Connect) -> None:
    client = connect(shared_node, "shm")
    namespace, data = filled(client, 4)
    keys = namespace.keys(tokens(4))
    with namespace.borrow(keys) as views:
        kept = np.frombuffer(views[2], dtype=np.uint16)[5:]
        assert client.stat().leased_blocks == 4
    del views
    gc.collect()
    assert client.stat().leased_blocks == 4  # `kept` lives
    namespace.evict(keys)
    assert namespace.match(keys) == 0
    filled(client, 200, seed=3)  # would reuse the slots
    assert kept.tobytes() == data[2][10:]
    del kept
    assert wait_until(lambda: client.stat().leased_blocks == 0)


def test_views_outlive_their_client(shared_node: NodeProcess, connect: Connect) -> None:
    client, other = connect(shared_node, "shm"), connect(shared_node, "shm")
    namespace, data = filled(client, 2)
    with namespace.borrow(namespace.keys(tokens(2))) as views:
        client.close()
    assert [bytes(view) for view in views] == data
    assert other.stat().leased_blocks == 2
    with pytest.raises(Closed):
        namespace.match(namespace.keys(tokens(2)))
    del views
    assert wait_until(lambda: other.stat().leased_blocks == 0)


def test_a_damaged_block_is_a_counted_miss_and_is_dropped(own_node: Start, connect: Connect, transport: str) -> None:
    node = own_node()
    client = connect(node, transport)
    namespace, data = filled(client, 5)
    keys, into = namespace.keys(tokens(5)), empty(namespace, 5)
    damage(node, data[3])
    assert namespace.get(keys, into) == 3
    assert into[:3] == data[:3]
    assert client.last_miss == "checksum"
    assert client.counters()["get_misses.checksum"] == 2
    assert namespace.match(keys) == 3
    assert namespace.put(keys, data).stored == 2
    assert namespace.get(keys, into) == 5
    damage(node, data[0])
    with namespace.borrow(keys) as views:
        assert views == []


def damage(node: NodeProcess, block: bytes) -> None:
    """Flips a byte of a stored block behind everybody's back."""
    with node.memory.open("r+b") as memory:
        whole = memory.read()
        at = whole.index(block)
        memory.seek(at + 100_000)
        memory.write(bytes([whole[at + 100_000] ^ 1]))


# --- threads and close -----------------------------------------------------------------------------------


def test_many_threads_share_one_client(client: Client) -> None:
    namespace = client.namespace(spec(block_bytes=20_000))
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            for turn in range(8):
                keys, data = namespace.keys(tokens(6, seed=number)), payload(namespace, 6, seed=number)
                into = empty(namespace, 6)
                if turn % 4 == 3:
                    namespace.evict(keys[5:])
                namespace.put(keys, data)
                got = namespace.get(keys, into)
                if got != 6 or into != data:
                    failures.append((number, turn, got, client.last_miss))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert client.counters()["sessions"] == 1


def test_of_two_clients_in_one_process_one_closes_and_the_other_keeps_its_leases(
    shared_node: NodeProcess, connect: Connect
) -> None:
    one, two = connect(shared_node, "shm"), connect(shared_node, "shm")
    namespace, data = filled(two, 3)
    with namespace.borrow(namespace.keys(tokens(3))) as views:
        filled(one, 1)
        one.close()
        namespace.evict(namespace.keys(tokens(3)))
        filled(two, 100, seed=5)
        time.sleep(0.1)  # several rounds of the node's look at lock bytes
        assert two.stat().leased_blocks == 3
        assert [bytes(view) for view in views] == data
    with pytest.raises(Closed, match="closed"):
        one.namespace(spec())


def test_close_ends_calls_in_progress_with_closed(own_node: Start, connect: Connect, transport: str) -> None:
    node = own_node()
    client = connect(node, transport)
    namespace, _ = filled(client, 1)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            namespace.match(namespace.keys(tokens(1)))
        except BaseException as error:
            ended.append(error)

    node.freeze()
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    client.close()
    thread.join(10)
    node.thaw()
    assert not thread.is_alive()
    assert [type(error) for error in ended] == [Closed]
    client.close()  # again: harmless


def test_a_forgotten_client_is_collected_and_its_session_ends(
    own_node: Start, connect: Connect, transport: str
) -> None:
    node = own_node()
    observer = connect(node, "tcp")
    assert observer.stat().sessions == 1
    client = Client(node.target(transport), transport=kind_of(transport), timeout=30)
    namespace, _ = filled(client, 1)
    assert namespace.get(namespace.keys(tokens(1)), empty(namespace, 1)) == 1
    assert observer.stat().sessions == 2
    gone = weakref.ref(client)
    del client, namespace
    gc.collect()
    assert gone() is None
    assert wait_until(lambda: observer.stat().sessions == 1)


def test_an_idle_network_session_lives_on(own_node: Start, connect: Connect) -> None:
    client = connect(own_node(heartbeat="100ms"), "tcp")
    namespace, _ = filled(client, 1)
    time.sleep(1.0)  # more than three heartbeats
    assert namespace.match(namespace.keys(tokens(1))) == 1
    assert client.counters()["sessions"] == 1


# --- forks -----------------------------------------------------------------------------------------------


def in_child(run: Callable[[], object]) -> int:
    """Exit status of a forked child that ran this: 0 when it returned true."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if run() else 2
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_is_told_to_make_its_own_client_and_can(
    shared_node: NodeProcess, client: Client, transport: str
) -> None:
    namespace, data = filled(client, 3)
    keys = namespace.keys(tokens(3))
    kind = kind_of(transport)

    def child() -> bool:
        kept = kind
        with pytest.raises(Closed, match="forked"):
            namespace.match(keys)
        client.close()  # harmless to the parent
        if kind in ("nixl", "ucx"):  # UCX does not survive a fork: the child is told, and what to use instead
            with Client(shared_node.target(transport), transport=kind) as own, pytest.raises(Unsupported, match="tcp"):
                own.namespace(namespace.spec)
            kept = "tcp"
        with Client(shared_node.target(transport), transport=kept, timeout=30) as own:
            into = empty(namespace, 3)
            found = own.namespace(namespace.spec)
            with found.borrow(keys) as views:
                assert [bytes(view) for view in views] == data
            gc.collect()
            return found.get(keys, into) == 3 and into == data

    assert in_child(child) == 0
    into = empty(namespace, 3)
    assert namespace.get(keys, into) == 3
    assert into == data
    assert client.counters()["sessions"] == 1


def test_a_fork_does_not_end_the_parents_leases(shared_node: NodeProcess, connect: Connect) -> None:
    client = connect(shared_node, "shm")
    namespace, data = filled(client, 3)
    with namespace.borrow(namespace.keys(tokens(3))) as views:
        assert in_child(lambda: gc.collect() >= 0) == 0
        namespace.evict(namespace.keys(tokens(3)))
        filled(client, 100, seed=6)
        time.sleep(0.1)
        assert client.stat().leased_blocks == 3
        assert [bytes(view) for view in views] == data
