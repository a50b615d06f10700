"""Builds sdist and wheel once, from a copy of the tree, and installs the wheel into clean environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "*.egg-info", "build", "dist", "__pycache__", ".*_cache", ".hypothesis", "*.pyc"
)


@dataclass(frozen=True)
class Built:
    tree: Path
    sdist: Path
    wheel: Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds the wheel, what it pulls, and nothing else."""

    path: Path

    def run(self, *command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment outside the source tree, with no Python settings of ours."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KVSTORE"))}
        return checked([str(self.path / "bin" / command[0]), *command[1:]], self.path, kept, code)

    def python(self, program: str) -> str:
        return self.run("python", "-c", program).stdout.strip()

    def install(self, *requirements: str) -> None:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.path / "bin" / "python"),
            "--disable-pip-version-check",
        ]
        checked([*pip, "install", "--quiet", *requirements], self.path, dict(os.environ))

    def installed(self) -> dict[str, str]:
        listed = self.python(
            "import importlib.metadata as m; print(*(f'{d.name.lower()}={d.version}' for d in m.distributions()))"
        )
        return dict(item.split("=", 1) for item in listed.split())


def checked(
    command: list[str], cwd: Path, environment: dict[str, str], code: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == code, f"{' '.join(command)} exited {done.returncode}\n{done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    tree = tmp_path_factory.mktemp("source") / "tree"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=LEFT_OUT)
    checked([sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"], tree, dict(os.environ))
    (sdist,), (wheel,) = (tree / "dist").glob("*.tar.gz"), (tree / "dist").glob("*.whl")
    return Built(tree, sdist, wheel)


@pytest.fixture(scope="session")
def make_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    def make(*requirements: str) -> Environment:
        path = tmp_path_factory.mktemp("clean")
        checked([sys.executable, "-m", "venv", "--without-pip", str(path)], path, dict(os.environ))
        environment = Environment(path)
        environment.install(*requirements)
        return environment

    return make


@pytest.fixture(scope="session")
def client_environment(built: Built, make_environment: Callable[..., Environment]) -> Environment:
    """What ``pip install kvstore-llm`` gives today."""
    return make_environment(str(built.wheel))


@pytest.fixture(scope="session")
def oldest_environment(built: Built, make_environment: Callable[..., Environment]) -> Environment:
    """The lowest versions that the metadata allows."""
    numpy = "numpy==1.26.4" if sys.version_info < (3, 13) else "numpy==2.1.0"  # the first with a wheel for 3.13
    return make_environment(str(built.wheel), "grpcio==1.75.1", "protobuf==6.31.1", "xxhash==3.5.0", numpy)
