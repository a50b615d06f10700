"""What the documents show works: every python block runs against a real node, every link leads somewhere."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
BLOCKS = [
    pytest.param(match.group(1), id=f"{path.name}-{number}")
    for path in DOCUMENTS
    for number, match in enumerate(FENCE.finditer(path.read_text()))
]


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of a user whose node runs on defaults, but for its ports and size."""
    home = tmp_path_factory.mktemp("home")
    memory = Path(tempfile.mkdtemp(prefix="kvstore-documents-", dir="/dev/shm"))
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(home),
        "XDG_STATE_HOME": str(home),
        "KVSTORE_MEMORY_DIR": str(memory),
        "KVSTORE_CAPACITY": "256MiB",
        **{f"KVSTORE_{plane}_ADDRESS": "127.0.0.1:0" for plane in ("DATA", "CONTROL", "HTTP")},
    }
    log = home / "node.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "kvstore.cli", "node"]
        node = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        end = time.monotonic() + 60
        while not (home / "kvstore" / "node.sock").exists():
            assert node.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        yield {name: value for name, value in environment.items() if not name.startswith("KVSTORE_")}
    finally:
        node.send_signal(signal.SIGTERM)
        node.wait(30)
        shutil.rmtree(memory)


@pytest.mark.parametrize("program", BLOCKS)
def test_every_python_block_runs_against_a_real_node(program: str, user: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=user,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, f"{program}\n{done.stdout}{done.stderr}"


def test_the_readme_shows_the_sdk() -> None:
    assert [param.id for param in BLOCKS if str(param.id).startswith("README")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file(document: Path) -> None:
    missing = [link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()]
    assert missing == []
