"""Gives an engine the connector: run by the engine's own Python, in the engine's own image.

    python3 install.py TARGET [WHEELS]

Unpacks the wheels that lie beside this file into TARGET, which goes onto PYTHONPATH: kvstore, and those of its
libraries that the engine lacks. What the engine has is left alone; when it does not fit, nothing is installed and the
exit status is 1. Standard library only, since an engine need not have pip.
"""

from __future__ import annotations

import platform
import re
import sys
import zipfile
from importlib import metadata
from pathlib import Path

CONNECTOR = "kvstore-llm"


def name_of(wheel: Path) -> str:
    return normal(wheel.name.split("-")[0])


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def fits(wheel: Path, minor: int = sys.version_info[1], machine: str = platform.machine()) -> bool:
    """Whether this Python can import it."""
    pythons, abi, systems = wheel.stem.split("-")[-3:]
    ours = any(
        python in ("py3", f"cp3{minor}") or (abi == "abi3" and python.startswith("cp3") and int(python[3:]) <= minor)
        for python in pythons.split(".")
    )
    return ours and (systems == "any" or machine in systems)


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements(wheel: Path) -> dict[str, str]:
    """What a wheel needs without extras: version ranges by name."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    lines = [line[len("Requires-Dist: ") :] for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    found = [re.match(r"([A-Za-z0-9._-]+)\s*(.*)", line) for line in lines if "extra ==" not in line]
    return {normal(match[1]): match[2].split(";")[0].strip("() ") for match in found if match}


def satisfies(version: str, ranges: str) -> bool:
    """Of the ranges that the connector uses: >=, < and ==, by numbers."""
    number = numbers(version)
    for part in filter(None, (part.strip() for part in ranges.split(","))):
        sign, bound = re.match(r"(>=|==|<)\s*(.+)", part).groups()  # type: ignore[union-attr]
        least = numbers(bound)
        good = {">=": number >= least, "<": number < least, "==": number == least}[sign]
        if not good:
            return False
    return True


def numbers(version: str) -> tuple[int, ...]:
    found = [int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", version)[0])]
    return tuple([*found, 0, 0, 0, 0][:4])


def plan(wheels: list[Path]) -> tuple[list[Path], list[str]]:
    """Wheels to unpack, and what is wrong."""
    usable = {name_of(wheel): wheel for wheel in wheels if fits(wheel)}
    if CONNECTOR not in usable:
        return [], [f"no wheel of {CONNECTOR} is here"]
    wanted = [wheel for name, wheel in usable.items() if name == CONNECTOR or installed(name) is None]
    bad = []
    for name, ranges in requirements(usable[CONNECTOR]).items():
        have = installed(name)
        if have is None and name not in usable:
            bad.append(f"the engine has no {name}, and no wheel here is for Python {platform.python_version()}")
        elif have is not None and not satisfies(have, ranges):
            bad.append(f"the engine has {name} {have}, and the connector needs {ranges}; use another engine image")
    return wanted, bad


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        print(__doc__, file=sys.stderr)
        return 2
    target, folder = Path(arguments[0]), Path(arguments[1]) if arguments[1:] else Path(__file__).parent / "wheels"
    wanted, bad = plan(sorted(folder.glob("*.whl")))
    for problem in bad:
        print(f"error: {problem}", file=sys.stderr)
    if bad:
        return 1
    target.mkdir(parents=True, exist_ok=True)
    for wheel in wanted:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        print(f"{wheel.name} -> {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
