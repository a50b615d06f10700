"""The suites that need no torch, with every other supported Python that is installed.

    python -m tests.pythons [--short] [PYTEST OPTION...]

``--short`` (CI) runs the unit suite with the oldest (but for the store's tests) and the newest, the full form adds the
contract suite, the versions in between and the integration suite.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
TOOLS = ("hypothesis", "psutil", "pytest", "pytest-timeout")
IMPORTS_TORCH = re.compile(r"^\s*(?:import|from) (?:torch|transformers|kvstore\.connector\.decoder)\b", re.MULTILINE)
PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def works(program: str, version: str) -> bool:
    """True when this interpreter starts (a version manager's shim may not) and is the version wanted."""
    try:
        done = subprocess.run([program, "-c", PROBE], capture_output=True, text=True, check=False, timeout=30)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def find(version: str) -> str | None:
    """An interpreter of this version on the PATH or among a version manager's, newest first."""
    home = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
    managed = sorted(glob.glob(f"{home}/versions/{version}.*/bin/python"), reverse=True)
    candidates = [found for found in [shutil.which(f"python{version}")] if found]
    return next((program for program in [*candidates, *managed] if works(program, version)), None)


def prepare(program: str, version: str) -> Path:
    """An environment with kvstore, its cli and node extras and the test tools, but without torch."""
    path = ROOT / f".venv-{version}"
    python = path / "bin" / "python"
    if not python.exists():
        subprocess.run([program, "-m", "venv", str(path)], check=True)
    install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-c", "constraints.txt"]
    subprocess.run([*install, "-e", ".[cli,node]", *TOOLS], cwd=ROOT, check=True)
    return python


def needs_torch(suite: str) -> list[str]:
    """Options that leave out what cannot even be imported without torch."""
    files = (ROOT / "tests" / suite).rglob("test_*.py")
    return [f"--ignore={path.relative_to(ROOT)}" for path in files if IMPORTS_TORCH.search(path.read_text())]


def run(version: str, suites: list[str], options: list[str]) -> bool:
    program = find(version)
    if program is None:
        print(f"python {version}: not installed here, nothing run", flush=True)
        return True
    python = prepare(program, version)
    left_out = [option for suite in suites for option in needs_torch(suite)]
    print(f"\n===== python {version}: {', '.join(suites)} =====", flush=True)
    command = [str(python), "-m", "pytest", "-q", *(f"tests/{suite}" for suite in suites), *left_out, *options]
    environment = {**os.environ, "KVSTORE_TEST_FABRIC": "off"}  # its libraries are heavy, and tried with one version
    command += ["-o", f"cache_dir={ROOT / 'build' / 'pytest-cache' / version}"]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if code == 1:  # on a busy machine a time-out is no verdict: once more
        code = subprocess.run([*command, "--last-failed"], cwd=ROOT, env=environment, check=False).returncode
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="unit, oldest and newest only")
    parser.add_argument("--only", action="append", choices=VERSIONS, help="this version (may be repeated)")
    chosen, options = parser.parse_known_args()
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    suites = ["unit"] if chosen.short else ["unit", "contract", "integration"]
    among = (VERSIONS[0], VERSIONS[-1]) if chosen.short else VERSIONS
    versions = chosen.only or [version for version in among if version != own]
    less = ["--ignore=tests/unit/tiers"] if chosen.short else []
    failed = [version for version in versions if not run(version, suites, options + less * (version == VERSIONS[0]))]
    if failed:
        print(f"failed with Python {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
