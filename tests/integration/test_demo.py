"""kvstore demo: what it shows is true, and it leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.nodes import COMMAND

PATIENCE = 240.0

pytestmark = pytest.mark.timeout(290)


def start(temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    """The demo, with its temporary directory inside ``temporary``."""
    environ = {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "100"}
    return subprocess.Popen(
        [*COMMAND, "demo", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    )


def memory_files() -> set[Path]:
    return set(Path("/dev/shm").glob("kvstore-demo-*"))


def children_of(temporary: Path) -> list[str]:
    """Command lines of living processes that use the directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(temporary) in line:
            found.append(line)
    return found


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[Path]:
    before = memory_files()
    yield tmp_path
    assert not list(tmp_path.iterdir())
    assert not children_of(tmp_path)
    assert memory_files() <= before


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """Exit status and report of one run."""
    demo = start(tmp_path_factory.mktemp("demo"), "--json", "--max-new", "24")
    out, err = demo.communicate(timeout=PATIENCE)
    assert not err, err
    return demo.returncode, json.loads(out)


def test_warm_requests_compute_only_the_tail_and_say_the_same(shown: tuple[int, dict[str, Any]]) -> None:
    status, report = shown
    first, *warm = report["requests"]
    assert status == 0
    assert report["ok"]
    assert [request["process"] for request in report["requests"]] == ["A", "B", "C"]
    assert first["tokens"] > 6000
    assert (first["found"], first["computed"]) == (0, first["tokens"])
    for request in warm:
        assert request["equal"]
        assert request["found"] + request["computed"] == request["tokens"]
        assert request["computed"] < 256


def test_the_first_token_comes_at_least_five_times_sooner(shown: tuple[int, dict[str, Any]]) -> None:
    assert all(request["ratio"] >= 5 for request in shown[1]["requests"][1:])


def test_the_text_is_readable(shown: tuple[int, dict[str, Any]]) -> None:
    for request in shown[1]["requests"]:
        words = request["text"].split()
        assert len(words) >= 3
        assert all(character.isprintable() or character == "\n" for character in request["text"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing(nothing_left: Path, number: signal.Signals) -> None:
    demo = start(nothing_left)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("A (pid"):
            break
    time.sleep(0.5)
    assert children_of(nothing_left)
    demo.send_signal(number)
    demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130


def test_a_finished_demo_prints_each_request_and_a_table(nothing_left: Path) -> None:
    document = nothing_left.parent / "short.txt"
    document.write_text("In the beginning God created the heaven and the earth.\n" * 30)
    demo = start(nothing_left, "--document", str(document), "--max-new", "8")
    out, err = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 0, err
    for part in ("A (pid", "B (pid", "C (pid", "killed with SIGKILL", "cold TTFT", "uncached run"):
        assert part in out


def test_no_hits_is_status_1(nothing_left: Path) -> None:
    document = nothing_left.parent / "tiny.txt"
    document.write_text("In the beginning.\n")
    demo = start(nothing_left, "--document", str(document), "--max-new", "4")
    out, _ = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 1
    assert "found nothing" in out


def test_a_model_that_cannot_be_read_is_one_line(nothing_left: Path) -> None:
    demo = start(nothing_left, "--model", str(nothing_left))
    _, err = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 1
    assert "config.json" in err
    assert "Traceback" not in err


def test_the_command_line_itself_needs_no_torch() -> None:
    code = "import sys, kvstore.cli.demo; sys.exit('torch' in sys.modules)"
    assert importlib.util.find_spec("torch")
    assert subprocess.run([COMMAND[0], "-c", code], check=False).returncode == 0
