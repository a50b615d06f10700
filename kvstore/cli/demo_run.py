"""The demo's processes, and the places they use. All of it is gone when the workspace is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from kvstore.core.errors import Unavailable

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
START_SECONDS = 180.0  # for a node to listen, on a very busy machine
PATIENCE = 15.0  # between words about a node that does not listen yet


@dataclass(frozen=True, slots=True)
class Stage:
    """What all processes of one demo have in common."""

    model: Path
    document: Path
    max_new: int
    threads: int
    capacity: str


class Workspace:
    """A temporary directory, a memory file and child processes."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kvstore-demo-"))
        self.memory_file = Path("/dev/shm") / f"kvstore-demo-{uuid.uuid4().hex[:12]}.mem"
        self._children: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in INTERRUPTS:  # a second Ctrl-C must not stop the cleaning
            signal.signal(number, signal.SIG_IGN)
        for child in self._children:
            kill(child)
        for path in self.memory_file.parent.glob(f"{self.memory_file.name}*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, name: str, command: Sequence[str], threads: int) -> subprocess.Popen[str]:
        """A child in a session of its own, so that Ctrl-C reaches only the demo, which then ends its children.

        It has a pipe to read events from, and one at whose end it is to leave.
        """
        settings = {key: value for key, value in os.environ.items() if not key.startswith("KVSTORE_")}
        settings |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        pipe, program = subprocess.PIPE, [sys.executable, "-m", *command]
        with self.log(name).open("a") as log:
            child = subprocess.Popen(
                program, stdin=pipe, stdout=pipe, stderr=log, text=True, env=settings, start_new_session=True
            )
        self._children.append(child)
        return child

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def ended(self, name: str) -> Unavailable:
        """The error for a process that ended early: the last lines that it logged."""
        return Unavailable(f"the process {name!r} of the demo ended early:\n{self.tail(name)}", key="demo")

    def tail(self, name: str) -> str:
        """The last lines that a process logged."""
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-12:])


def kill(child: subprocess.Popen[str]) -> None:
    """SIGKILL, and wait until it is gone."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


class Node:
    """A node with its own directory, socket and memory file, otherwise on defaults. Made: it listens."""

    def __init__(self, stage: Stage, workspace: Workspace) -> None:
        path = workspace.directory / "node.sock"
        self.target = f"unix://{path}"
        flags = {
            "--socket": path,
            "--data-dir": workspace.directory / "node",
            "--memory-file": workspace.memory_file,
            "--capacity": stage.capacity,
            "--data-address": "127.0.0.1:0",
            "--control-address": "127.0.0.1:0",
            "--http-address": "127.0.0.1:0",
        }
        flat = [str(item) for pair in flags.items() for item in pair]
        self._child = workspace.start("node", ["kvstore.cli", "node", *flat], threads=1)
        self.pid = self._child.pid
        self._wait(path, workspace)

    def _wait(self, path: Path, workspace: Workspace) -> None:
        began = told = time.monotonic()
        while not _listens(path):
            if self._child.poll() is not None:
                raise workspace.ended("node")
            now = time.monotonic()
            if now - began > START_SECONDS:
                raise Unavailable(
                    f"the demo's node does not listen after {START_SECONDS:.0f} s:\n{workspace.tail('node')}",
                    key="demo",
                )
            if now - told > PATIENCE:
                told = now
                print(f"the node lives, but does not listen after {now - began:.0f} s:", file=sys.stderr)
                print(workspace.tail("node") or "(it has logged nothing yet)", file=sys.stderr, flush=True)
            time.sleep(0.02)

    def kill(self) -> None:
        kill(self._child)


def _listens(path: Path) -> bool:
    """True when something accepts connections there; a dead node's socket file stays behind and refuses them."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


class Decoder:
    """A decoder process that answers questions and then stays until it is killed."""

    def __init__(
        self, stage: Stage, workspace: Workspace, name: str, questions: Sequence[str], target: str | None
    ) -> None:
        self.name, self.questions = name, list(questions)
        self._workspace = workspace
        command = ["kvstore.connector.decoder", "--json", "--linger", "--model", str(stage.model)]
        command += ["--document", str(stage.document), "--max-new", str(stage.max_new), "--threads", str(stage.threads)]
        for question in questions:
            command += ["--question", question]
        self._child = workspace.start(name, command + (["--node", target] if target else []), stage.threads)
        self.pid = self._child.pid

    def events(self) -> Iterator[dict[str, Any]]:
        """Its events up to the last answer. Raises Unavailable when it ends before."""
        open_answers = len(self.questions)
        output: IO[str] | None = self._child.stdout
        while open_answers and output is not None:
            line = output.readline()
            if not line:
                raise self._workspace.ended(self.name)
            event = json.loads(line)
            yield event
            open_answers -= event["event"] == "answer"

    def kill(self) -> None:
        kill(self._child)
