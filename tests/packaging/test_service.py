"""The wheel with the extra `node` is a working service: started from a clean environment, used from another."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.conftest import Built, Environment

PUT = """
import numpy
from kvstore import Client, NamespaceSpec
with Client({target!r}, transport={transport!r}, on_failure="raise", timeout=20) as client:
    ns = client.namespace(NamespaceSpec(model="wheel", block_tokens=16, block_bytes=65_536))
    keys = ns.keys(range(64))
    blocks = [numpy.full(65_536, i, numpy.uint8) for i in range(4)]
    done = ns.put(keys, blocks)
    into = [bytearray(65_536) for _ in keys]
    found, got = ns.match(keys), ns.get(keys, into)
    print(done.stored, done.present, found, got, *(bytes(a) == bytes(b) for a, b in zip(blocks, into)))
"""


@pytest.fixture(scope="module")
def node_environment(built: Built, make_environment: Callable[..., Environment]) -> Environment:
    return make_environment(f"kvstore-llm[node] @ {built.wheel.as_uri()}")


@pytest.fixture(scope="module")
def node(node_environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node that runs from the wheel; the directory of its socket."""
    home = tmp_path_factory.mktemp("node")
    memory = Path(tempfile.mkdtemp(prefix="kvstore-wheel-", dir="/dev/shm"))
    command = [str(node_environment.path / "bin" / "kvstore"), "node", "--capacity", "128MiB"]
    for setting, value in {
        "socket": home / "node.sock",
        "data-dir": home / "data",
        "memory-dir": memory,
        "data-address": "127.0.0.1:0",
        "control-address": "127.0.0.1:0",
        "http-address": "127.0.0.1:0",
    }.items():
        command += [f"--{setting}", str(value)]
    log = home / "node.log"
    with log.open("wb") as out:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KVSTORE"))}
        process = subprocess.Popen(command, cwd=home, env=kept, stdout=out, stderr=out)
    try:
        end = time.monotonic() + 60
        while not (home / "node.sock").exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        yield home
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        shutil.rmtree(memory)
    assert process.returncode == 0, log.read_text()


def test_a_node_install_has_no_torch(node_environment: Environment) -> None:
    assert not {"torch", "transformers", "safetensors"} & set(node_environment.installed())


def test_old_and_new_clients_share_blocks_through_a_node_of_the_wheel(
    node: Path, node_environment: Environment, client_environment: Environment, oldest_environment: Environment
) -> None:
    unix = f"unix://{node}/node.sock"
    stat = json.loads(node_environment.run("kvstore", "stat", "--target", unix, "--json").stdout)
    tcp = f"kv://{stat['data_address']}"
    equal = "True True True True"
    assert client_environment.python(PUT.format(target=unix, transport="shm")) == f"4 0 4 4 {equal}"
    assert client_environment.python(PUT.format(target=tcp, transport="tcp")) == f"0 4 4 4 {equal}"
    assert oldest_environment.python(PUT.format(target=unix, transport="shm")) == f"0 4 4 4 {equal}"
    assert oldest_environment.python(PUT.format(target=tcp, transport="tcp")) == f"0 4 4 4 {equal}"


def test_the_control_plane_answers_a_client_with_the_oldest_grpc(node: Path, oldest_environment: Environment) -> None:
    program = f"from kvstore import Client\nprint(Client('unix://{node}/node.sock', timeout=20).stat().version)"
    assert oldest_environment.python(program) == "0.1.0"
