"""How an engine gets the connector: what the chart's example tells it, and the installer of the add-on image."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvstore.client.target import parse_target
from kvstore.connector.vllm.options import Options
from tests.helm.rendering import ROOT, find, manifests

INSTALLER = ROOT / "deploy" / "docker" / "install.py"
MINOR = sys.version_info[1]


@pytest.mark.parametrize(("values", "target"), [("vllm", "unix:///run/kvstore/node.sock"), ("pool-vllm", "kv://demo-")])
def test_vllm_is_told_where_the_cache_is_by_options_that_the_connector_takes(values: str, target: str) -> None:
    pod = find(manifests(values), "Deployment")["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    config = json.loads(next(one for one in arguments if one.startswith("--kv-transfer-config="))[21:])
    assert (config["kv_connector"], config["kv_load_failure_policy"]) == ("KVStoreConnector", "recompute")
    options = Options.parse(config["kv_connector_extra_config"])
    assert options.target.startswith(target)
    parse_target(options.target)
    sockets = [volume for volume in pod["volumes"] if volume["name"] == "socket"]
    assert bool(sockets) == target.startswith("unix://")


def wheel(folder: Path, name: str, tags: str, *needs: str, version: str = "1.0") -> None:
    """A wheel with one module, which says its tags."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {one}" for one in needs)]
    with zipfile.ZipFile(folder / f"{module}-{version}-{tags}.whl", "w") as archive:
        archive.writestr(f"{module}.py", f"TAGS = {tags!r}\n")
        archive.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")


def install(target: Path, wheels: Path) -> subprocess.CompletedProcess[str]:
    """By this Python, with the libraries that it has."""
    command = [sys.executable, str(INSTALLER), str(target), str(wheels)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def imported(target: Path, module: str) -> str:
    program = f"import {module}; print({module}.TAGS)"
    return subprocess.check_output([sys.executable, "-c", program], env={"PYTHONPATH": str(target)}, text=True).strip()


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "kvstore-llm", "py3-none-any", "numpy>=1.26", "lacking-one>=1", 'torch>=99; extra == "decoder"')
    for minor in (MINOR - 1, MINOR, MINOR + 1):
        wheel(folder, "lacking-one", f"cp3{minor}-cp3{minor}-manylinux_2_17_x86_64.manylinux2014_x86_64")
        wheel(folder, "lacking-one", f"cp3{minor}-cp3{minor}-manylinux_2_17_aarch64")
    wheel(folder, "lacking-two", "cp37-abi3-manylinux2014_x86_64")
    wheel(folder, "lacking-two", "cp37-abi3-manylinux2014_aarch64")
    wheel(folder, "numpy", "py3-none-any")
    return folder


def test_an_engine_gets_what_it_lacks_and_what_fits_its_python(wheels: Path, tmp_path: Path) -> None:
    done = install(tmp_path / "site", wheels)
    assert done.returncode == 0, done.stderr
    assert imported(tmp_path / "site", "lacking_one").startswith(f"cp3{MINOR}-")
    assert imported(tmp_path / "site", "lacking_two").startswith("cp37-abi3-")
    assert (tmp_path / "site" / "kvstore_llm.py").exists()


def test_what_the_engine_has_is_left_alone(wheels: Path, tmp_path: Path) -> None:
    assert install(tmp_path / "site", wheels).returncode == 0
    assert not (tmp_path / "site" / "numpy.py").exists()


@pytest.mark.parametrize(
    ("need", "message"),
    [
        ("numpy>=99", r"the engine has numpy [0-9.]+, and the connector needs >=99"),
        ("numpy>=1,<1.5", r"the engine has numpy [0-9.]+, and the connector needs >=1,<1.5"),
        ("absent-lib>=1", r"the engine has no absent-lib, and no wheel here is for Python"),
    ],
)
def test_an_engine_that_does_not_fit_is_told_and_gets_nothing(
    need: str, message: str, wheels: Path, tmp_path: Path
) -> None:
    wheel(wheels, "kvstore-llm", "py3-none-any", need)
    done = install(tmp_path / "site", wheels)
    assert done.returncode == 1
    assert re.search(message, done.stderr)
    assert not (tmp_path / "site").exists()


def test_a_folder_without_the_connector_is_refused(tmp_path: Path) -> None:
    done = install(tmp_path / "site", tmp_path)
    assert (done.returncode, "no wheel of kvstore-llm" in done.stderr) == (1, True)
