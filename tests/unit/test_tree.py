"""Rules of the source tree that no linter knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("kvstore", "tiers", "connector", "tests", "bench", "tools")
SOURCES = sorted(
    path
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")  # follows no links, so no file comes twice
    if not path.is_relative_to(ROOT / "kvstore" / "v1")
)


def test_no_file_passes_400_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_nothing_is_left_to_do() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [path for path in SOURCES if path != Path(__file__) and mark.search(path.read_text())]
    assert found == []


@pytest.mark.parametrize("link", ["tiers", "connector"])
def test_the_rooms_beside_the_package_are_linked_into_it(link: str) -> None:
    path = ROOT / "kvstore" / link
    assert path.is_symlink()
    assert path.resolve() == ROOT / link


def test_the_version_is_written_alike_everywhere() -> None:
    import kvstore

    match = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert match is not None
    assert match.group(1) == kvstore.__version__
