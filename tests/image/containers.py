"""Images built from the shipped Dockerfiles, and containers of them, by podman and runc.

Nothing is pulled: the base that the Dockerfiles name is one made here (base.sh). Settings of the package index are
mounted while an image is built, so that none of them is part of it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BASE = "python:3.11-slim"
_SETTINGS = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")  # of this machine, where they are
_BUILD = ["podman", "build", "--isolation=chroot", "--ulimit", "nofile=20000:20000", "--network", "host"]
# What the chart asks of a pod: nobody's network, nothing to write, no capability. The limits are what a machine
# without CAP_SYS_RESOURCE can set.
_RUN = [
    "podman", "run", "--runtime", "runc", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1000:1000",
    "--network", "none", "--read-only", "--read-only-tmpfs=false", "--cap-drop=all",
    "--security-opt=no-new-privileges", "--no-healthcheck",
]  # fmt: skip


def podman(*arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False, timeout=timeout)


def make_base(folder: Path) -> None:
    subprocess.run(["sh", str(ROOT / "tests" / "image" / "base.sh"), BASE, str(folder)], check=True, timeout=900)


def build(dockerfile: str, tag: str, *arguments: str) -> str:
    """The image's name. Docker's format: it has health checks."""
    mounts = [f"--volume={path}:{path}:ro" for path in _SETTINGS if os.path.exists(path)]
    path = ROOT / "deploy" / "docker" / dockerfile
    command = [*_BUILD, *mounts, "--pull=never", "--format=docker", *arguments, "-f", str(path), "-t", tag, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return f"localhost/{tag}"


def inspect(image: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(podman("image", "inspect", image).stdout)[0]
    return found


def run(
    image: str, *command: str, options: tuple[str, ...] = (), timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """A container to its end."""
    whole = [*_RUN, "--rm", *options, image, *command]
    return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=timeout)


class Container:
    """One in the background, removed at the end of the block."""

    def __init__(self, image: str, *command: str, options: tuple[str, ...] = ()) -> None:
        self._command = [*_RUN, "--detach", *options, image, *command]
        self.id = ""

    def __enter__(self) -> Container:
        done = subprocess.run(self._command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.strip()
        return self

    def __exit__(self, *_: object) -> None:
        podman("rm", "--force", "--time", "0", self.id)

    def exec(self, *command: str) -> subprocess.CompletedProcess[str]:
        return podman("exec", self.id, *command)

    def log(self) -> str:
        done = podman("logs", self.id)
        return done.stdout + done.stderr

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(podman("inspect", self.id).stdout)[0]["State"]
        return found

    def stop(self) -> dict[str, Any]:
        podman("stop", "--time", "30", self.id)
        return self.state()
