"""The shipped Dockerfiles build, and their images do what the chart wants of them: without root, without anything to
write but their volumes, within a memory limit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore import __version__
from tests.helm.rendering import CHART, find, manifests, node
from tests.image.containers import BASE, ROOT, Container, build, inspect, make_base, podman, run

USER = "10001:10001"
PATIENCE = 90.0
ROUND_TRIP = CHART / "files" / "round_trip.py"


@pytest.fixture(scope="session")
def base() -> str:
    make_base(ROOT / "build" / "image")
    return BASE


@pytest.fixture(scope="session")
def image(base: str) -> str:
    return build("node.Dockerfile", f"kvstore:{__version__}")


@pytest.fixture(scope="session")
def addon(base: str) -> str:
    return build("engine-addon.Dockerfile", f"kvstore-engine-addon:{__version__}")


@pytest.fixture
def volumes(tmp_path: Path) -> tuple[str, ...]:
    """Directories as a kubelet gives them, and memory."""
    found = []
    for name, path in (("run", "/run/kvstore"), ("state", "/var/lib/kvstore")):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 10001, 10001)
        found.append(f"--volume={tmp_path / name}:{path}")
    return (*found, "--shm-size=80m", "--memory=400m")


def wait_for(condition: Callable[[], bool], container: Container) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, container.log()
        time.sleep(0.2)


def healthy(container: Container, image: str) -> bool:
    """What the image's own health check says."""
    kind, *command = inspect(image)["Healthcheck"]["Test"]
    assert kind == "CMD"
    return container.exec(*command).returncode == 0


def test_what_an_image_says_of_itself(image: str) -> None:
    config = inspect(image)["Config"]
    assert config["User"] == USER
    assert (config["Entrypoint"], config["Cmd"]) == (["kvstore"], ["node"])
    assert run(image, "--version").stdout == f"kvstore {__version__}\n"


@pytest.mark.parametrize("name", ["image", "addon"])
def test_an_image_has_no_settings_of_where_it_was_built(name: str, request: pytest.FixtureRequest) -> None:
    found = inspect(request.getfixturevalue(name))
    texts = [*found["Config"]["Env"], *(entry.get("created_by", "") for entry in found["History"])]
    assert not [text for text in texts if re.search(r"https?://|PIP_|_PROXY|--index", text, re.IGNORECASE)]
    looked = (
        "find / -xdev \\( -name pip.conf -o -name 'pip*.cache' -o -path /root/.cache \\) -size +0c 2>/dev/null; true"
    )
    assert run(found["Id"], "-c", looked, options=("--entrypoint=/bin/sh", "--user=0")).stdout == ""


def test_a_node_is_small_beside_its_base(image: str, base: str) -> None:
    assert inspect(image)["Size"] - inspect(f"localhost/{base}")["Size"] < 200e6


def test_a_node_serves_by_its_socket_without_root_or_anything_else_to_write(
    image: str, volumes: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = ("node", "--capacity", "64MiB", "--socket-mode", "0666")
    with Container(image, *arguments, options=volumes) as container:
        wait_for(lambda: healthy(container, image), container)
        socket = f"unix://{tmp_path / 'run' / 'node.sock'}"
        done = subprocess.run([sys.executable, str(ROUND_TRIP), socket], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert container.exec("id", "-u").stdout == "10001\n"
        assert container.exec("touch", "/x").returncode != 0
        status = container.exec("grep", "-E", "^(CapEff|CapBnd|NoNewPrivs)", "/proc/1/status").stdout
        assert re.findall(r"(\w+):\s+(\w+)", status) == [
            ("CapEff", "0" * 16), ("CapBnd", "0" * 16), ("NoNewPrivs", "1")
        ]  # fmt: skip
        assert "blocks" in container.exec("kvstore", "stat").stdout
        node_id = container.exec("cat", "/var/lib/kvstore/data/node-id").stdout
        state = container.stop()
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False)
    with Container(image, *arguments, options=volumes) as container:
        wait_for(lambda: healthy(container, image), container)
        assert container.exec("cat", "/var/lib/kvstore/data/node-id").stdout == node_id


def test_a_full_node_stays_within_the_limit_that_the_chart_gives_it(
    image: str, volumes: tuple[str, ...], tmp_path: Path
) -> None:
    """64 MiB of blocks; the chart's pool of that size says how much beside it."""
    limit = node(manifests("pool-dns")).pod["containers"][0]["resources"]["limits"]["memory"]
    size = f"--memory={int(limit.removesuffix('Mi'))}m"
    options = (*(one for one in volumes if not one.startswith("--memory")), size)
    fill = (
        "import sys; from kvstore import Client, NamespaceSpec\n"
        "client = Client(sys.argv[1])\n"
        "ns = client.namespace(NamespaceSpec(model='full', block_tokens=16, block_bytes=1 << 20))\n"
        "print(sum(ns.put(ns.keys([at] * 16), [bytes(1 << 20)], timeout=60).stored for at in range(300)))\n"
    )
    with Container(image, "node", "--capacity", "64MiB", "--socket-mode", "0666", options=options) as container:
        wait_for(lambda: healthy(container, image), container)
        command = [sys.executable, "-c", fill, f"unix://{tmp_path / 'run' / 'node.sock'}"]
        assert int(subprocess.check_output(command)) == 300
        assert healthy(container, image)
        assert container.stop()["OOMKilled"] is False


def test_a_node_that_gets_less_memory_than_its_settings_want_says_so(image: str, volumes: tuple[str, ...]) -> None:
    done = run(image, "node", "--capacity", "1GiB", options=volumes)
    assert done.returncode == 2
    assert "too little memory for capacity = 1GiB" in done.stderr


def test_the_init_container_gives_directories_of_the_machine_to_the_node(image: str, tmp_path: Path) -> None:
    """The chart's own command, with no more than the two capabilities that it asks for, twice."""
    init = node(manifests("machine-cell")).pod["initContainers"][0]
    rights = init["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]}
    for name in ("run", "state"):
        (tmp_path / name).mkdir(mode=0o700)
    options = (
        "--user=0:0", "--cap-add=CHOWN,FOWNER", f"--volume={tmp_path / 'run'}:/run/kvstore",
        f"--volume={tmp_path / 'state'}:/var/lib/kvstore", f"--entrypoint={init['command'][0]}",
    )  # fmt: skip
    for _ in range(2):
        done = run(image, *init["command"][1:], *init["args"], options=options)
        assert done.returncode == 0, done.stderr
    found = {name: (tmp_path / name).stat() for name in ("run", "state")}
    assert {name: (one.st_uid, one.st_gid, oct(one.st_mode & 0o7777)) for name, one in found.items()} == {
        "run": (10001, 10001, "0o755"),
        "state": (10001, 10001, "0o700"),
    }


def test_the_image_has_the_commands_of_the_chart(image: str) -> None:
    for values in ("default", "pool-dns"):
        container = node(manifests(values)).pod["containers"][0]
        assert run(image, "-c", f"command -v {container['command'][0]}", options=("--entrypoint=sh",)).returncode == 0
    tools = "command -v python timeout sh && python -m kvstore.node.probe --help && kvstore cluster drain --help"
    done = run(image, "-c", tools, options=("--entrypoint=sh",))
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_engine_gets_its_connector_from_the_addon(image: str, addon: str, tmp_path: Path) -> None:
    """As in the chart's example: the add-on copies, the engine's Python installs, the engine imports."""
    volume = tmp_path / "connector"
    volume.mkdir(mode=0o777)
    volume.chmod(0o777)
    example = find(manifests("vllm"), "Deployment")["spec"]["template"]["spec"]
    copy, install = example["initContainers"]
    mount = copy["volumeMounts"][0]["mountPath"]
    done = run(addon, *copy["args"], options=(f"--volume={volume}:{mount}",))
    assert done.returncode == 0, done.stderr
    engine = tmp_path / "engine"  # an engine's environment: numpy, and nothing else of what the connector needs
    subprocess.run([sys.executable, "-m", "venv", str(engine)], check=True)
    pip = [str(engine / "bin" / "python"), "-m", "pip", "install", "-qq", "-c", str(ROOT / "constraints.txt"), "numpy"]
    subprocess.run(pip, check=True)
    assert install["command"][1:] == ["/connector/install.py", "/connector/site"]
    python = str(engine / "bin" / "python")
    subprocess.run([python, str(volume / "install.py"), str(volume / "site")], check=True)
    program = (
        "import importlib.metadata as metadata, kvstore, kvstore.connector.vllm, grpc, xxhash\n"
        "found = metadata.entry_points(group='vllm.general_plugins')\n"
        "print(kvstore.__file__, [entry.load().__name__ for entry in found])\n"
    )
    environment = {"PYTHONPATH": str(volume / "site")}
    shown = subprocess.check_output([python, "-c", program], env=environment, text=True, cwd=tmp_path)
    assert shown == f"{volume}/site/kvstore/__init__.py ['register']\n"


BY_NIXL = """
import os
from kvstore import Client, NamespaceSpec
client = Client("kv://127.0.0.1:7000", transport="nixl", timeout=20)
ns = client.namespace(NamespaceSpec(model="fabric", block_tokens=16, block_bytes=1 << 20))
keys, block, back = ns.keys(list(range(16))), os.urandom(1 << 20), bytearray(1 << 20)
ns.evict(keys)
assert ns.put(keys, [block]).stored == 1
assert ns.get(keys, into=[back]) == 1
assert back == block
client.close()
"""


def test_an_image_for_rdma_has_the_transports_and_runs(base: str, volumes: tuple[str, ...]) -> None:
    values = ("EXTRAS=node,ucx", "NIXL=nixl-cu12", "PACKAGES=libibverbs1 ibverbs-providers")
    arguments = [f"--build-arg={value}" for value in values]
    accelerated = build("node.Dockerfile", f"kvstore:{__version__}-rdma", *arguments)
    try:
        command = ("node", "--capacity", "64MiB", "--transports", "shm,nixl,ucx,tcp")
        with Container(accelerated, *command, options=volumes) as container:
            wait_for(lambda: healthy(container, accelerated), container)
            wait_for(lambda: container.exec("python", "-c", BY_NIXL).returncode == 0, container)
            assert "WARNING" not in container.log()
            assert container.exec("python", "-c", "import torch").returncode != 0
            assert "rxe" in container.exec("sh", "-c", "ls /usr/lib/*/libibverbs").stdout
    finally:
        podman("rmi", "--force", accelerated)
