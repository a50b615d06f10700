"""A node with tight bounds, and a witness: another session whose blocks must be whole after every bad input."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.nodes import NodeProcess, node
from tests.integration.raw import Raw, data_of, keys_of

MAX_FRAME = 4 << 20
MAX_KEYS = 100


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("bad-input")
    settings = {"max_frame_bytes": MAX_FRAME, "max_keys": MAX_KEYS, "heartbeat": "60s", "peer_timeout": "60s"}
    with node(folder, **settings) as process:
        yield process


@pytest.fixture(params=["unix", "tcp"])
def address(running: NodeProcess, request: pytest.FixtureRequest) -> str:
    return str(running.socket) if request.param == "unix" else running.data


@pytest.fixture
def witness(running: NodeProcess, address: str) -> Iterator[Raw]:
    """Another session with blocks of its own. After the test they are whole, nothing else came, and it still works."""
    with Raw(address) as raw:
        handle, keys = raw.open(), keys_of(3, salt=99)
        raw.put(handle, 3, salt=99)
        before = running.stat()
        yield raw
        assert raw.get(handle, keys)[1] == b"".join(data_of(keys))
        after = running.stat()
        for same in ("blocks", "writing", "leases", "namespaces"):
            assert _timeless(after[same]) == _timeless(before[same]), same
        assert after["tiers"][0]["used_bytes"] == before["tiers"][0]["used_bytes"]


def _timeless(value: object) -> object:
    if isinstance(value, list):
        return [{key: item for key, item in one.items() if key != "idle_seconds"} for one in value]
    return value


@pytest.fixture
def raw(address: str, witness: Raw) -> Iterator[Raw]:
    with Raw(address) as connection:
        yield connection


@pytest.fixture
def handle(raw: Raw) -> int:
    return raw.open()


def still_works(raw: Raw, handle: int) -> None:
    """The stream is in step."""
    assert raw.match(handle, keys_of(3, salt=99)) == 3
