"""Which transport is taken: a table of what both sides have."""

from __future__ import annotations

import itertools

import pytest

from kvstore.client.choosing import NAMES, better, checked, order, same_host
from kvstore.core.errors import InvalidArgument
from kvstore.transport.wire import Address

KINDS = ((), ("nixl",), ("ucx",), ("nixl", "ucx"))


@pytest.mark.parametrize(
    ("offered", "have", "there", "here"), list(itertools.product(KINDS, KINDS, *[(False, True)] * 2))
)
def test_auto_takes_a_fabric_only_where_both_sides_have_it_and_rdma(
    offered: tuple[str, ...], have: tuple[str, ...], there: bool, here: bool
) -> None:
    both = set(offered) & set(have) if there and here else set()
    wanted = "nixl" if "nixl" in both else "ucx" if "ucx" in both else ""
    assert better(("shm", *offered, "tcp"), there, have, here) == wanted


def test_shared_memory_comes_first_on_the_unix_socket_and_a_name_is_taken_at_its_word() -> None:
    assert order("auto", True) == ("shm", "tcp")
    assert order("auto", False) == ("tcp",)
    for name in NAMES[1:]:
        assert order(name, True) == order(name, False) == (name,)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        (Address(path="/run/node.sock"), True),
        (Address(host="localhost", port=1), True),
        (Address(host="127.8.0.1", port=1), True),
        (Address(host="::1", port=1), True),
        (Address(host="192.0.2.1", port=1), False),
        (Address(host="node-0.kvstore", port=1), False),
    ],
)
def test_an_address_tells_whether_it_can_only_be_this_host(address: Address, found: bool) -> None:
    assert same_host(address) is found


def test_an_unknown_transport_is_told_the_known_ones() -> None:
    assert [checked(name) for name in NAMES] == list(NAMES)
    with pytest.raises(InvalidArgument, match="auto, shm, nixl, ucx, tcp"):
        checked("rdma")
