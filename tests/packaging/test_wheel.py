from __future__ import annotations

import tarfile
import zipfile
from email.parser import Parser

import pytest

from tests.packaging.conftest import Built, Environment

DIST_INFO = "kvstore_llm-0.1.0.dist-info"
DIRECT = {"grpcio", "protobuf", "xxhash", "numpy"}


def wheel_names(built: Built) -> set[str]:
    return set(zipfile.ZipFile(built.wheel).namelist())


def source_names(built: Built) -> set[str]:
    """Files of the package in the source tree, through the links tiers and connector as well."""
    found = set()
    for room in ("kvstore", "tiers", "connector"):
        prefix = "" if room == "kvstore" else "kvstore/"
        for path in (built.tree / room).rglob("*"):
            if path.is_file() and "kvstore_llm.egg-info" not in path.parts:
                found.add(prefix + path.relative_to(built.tree).as_posix())
    return found


def test_the_wheel_installs_nothing_but_kvstore(built: Built) -> None:
    assert {name.split("/")[0] for name in wheel_names(built)} == {"kvstore", DIST_INFO}


def test_the_wheel_holds_every_file_of_the_package_once(built: Built) -> None:
    packaged = {name for name in wheel_names(built) if name.startswith("kvstore/")}
    assert packaged == source_names(built)


def test_the_package_says_that_it_is_typed(built: Built) -> None:
    assert "kvstore/py.typed" in wheel_names(built)


def test_the_licence_travels_with_sdist_and_wheel(built: Built) -> None:
    text = zipfile.ZipFile(built.wheel).read(f"{DIST_INFO}/licenses/LICENSE").decode()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    with tarfile.open(built.sdist) as sdist:
        assert "kvstore_llm-0.1.0/LICENSE" in sdist.getnames()


def test_the_sdist_is_enough_to_build_the_wheel_and_brings_no_second_copy(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        members = sdist.getmembers()
    names = {member.name.removeprefix("kvstore_llm-0.1.0/") for member in members if member.isfile()}
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert source_names(built) <= names
    assert not [name for name in names if name.startswith(("tiers/", "connector/"))]


def test_the_metadata_names_four_dependencies_and_the_extras(built: Built) -> None:
    metadata = Parser().parsestr(zipfile.ZipFile(built.wheel).read(f"{DIST_INFO}/METADATA").decode())
    needed = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert {line.split(">")[0].split("=")[0].split("<")[0].strip() for line in needed} == DIRECT
    assert set(metadata.get_all("Provides-Extra") or []) == {"cli", "node", "decoder", "nixl", "ucx", "vllm", "dev"}
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"


def test_a_client_install_pulls_four_packages_and_what_they_need(client_environment: Environment) -> None:
    # typing-extensions comes with grpcio
    assert set(client_environment.installed()) - {"typing_extensions"} == DIRECT | {"kvstore-llm"}


@pytest.mark.parametrize("module", ["kvstore", "kvstore.errors", "kvstore.client", "kvstore.connector"])
def test_importing_the_client_loads_neither_torch_nor_grpc(client_environment: Environment, module: str) -> None:
    program = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    loaded = set(client_environment.python(program).split())
    assert not loaded & {"torch", "grpc", "typer", "rich", "lmdb", "prometheus_client", "asyncio"}


IMPORT_ALL = """
import importlib, kvstore.v1.control_pb2 as control, kvstore.v1.control_pb2_grpc, kvstore.v1.events_pb2
from kvstore.v1 import data_pb2, types_pb2
sent = data_pb2.GetRequest(namespace=1, keys=bytes(32), parts=[0, 1]).SerializeToString()
assert data_pb2.GetRequest.FromString(sent).parts == [0, 1]
import google.protobuf, kvstore
from kvstore import Client, NamespaceSpec
print(google.protobuf.__version__.split('.')[0])
"""


def test_the_wire_contract_loads_with_protobuf_7(client_environment: Environment) -> None:
    assert client_environment.python(f"import warnings; warnings.simplefilter('error')\n{IMPORT_ALL}") == "7"


def test_the_wire_contract_loads_with_the_oldest_versions_allowed(oldest_environment: Environment) -> None:
    assert oldest_environment.python(f"import warnings; warnings.simplefilter('error')\n{IMPORT_ALL}") == "6"


@pytest.mark.parametrize(("command", "extra"), [("stat", "cli"), ("node", "node"), ("demo", "decoder")])
def test_a_command_without_its_extra_says_which_to_install(
    client_environment: Environment, command: str, extra: str
) -> None:
    done = client_environment.run("kvstore", command, code=2)
    assert f"kvstore-llm[{extra}]" in done.stderr.replace("'", "")
    assert "Traceback" not in done.stderr
