"""Real nodes for tests: `kvstore node` as a process, its files in directories of the test."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstore.cli.control import control
from kvstore.cli.stat import as_dict
from kvstore.v1 import control_pb2 as pb

COMMAND = [sys.executable, "-m", "kvstore.cli"]
PATIENCE = 60.0  # seconds after which a test gives up; nothing is measured with it


class NodeProcess:
    """A node. ``settings`` are keys of its TOML file, beside those that keep it away from other nodes."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.socket = folder / "node.sock"
        self.settings: dict[str, object] = {
            "socket": str(self.socket),
            "data_dir": str(folder / "data"),
            "data_address": "127.0.0.1:0",
            "control_address": "127.0.0.1:0",
            "http_address": "127.0.0.1:0",
            "capacity": "32MiB",
            **settings,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        path = self.folder / "node.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.settings.items()]
        path.write_text("\n".join(lines) + "\n")
        return path

    def start(self) -> NodeProcess:
        self._mark = len(self.log())
        with open(self.folder / "node.log", "ab") as log:
            self.process = subprocess.Popen([*COMMAND, "node", "--config", str(self.config)], stdout=log, stderr=log)
        wait_for(lambda: "serves:" in self.log()[self._mark :] or self.process.poll() is not None)
        assert self.process.poll() is None, f"the node did not start:\n{self.log()[self._mark :]}"
        line = next(line for line in self.log()[self._mark :].splitlines() if "serves:" in line)
        self.data, self.control, self.http = _addresses(line)
        return self

    def log(self) -> str:
        path = self.folder / "node.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def node_id(self) -> str:
        return (self.folder / "data" / "node-id").read_text().strip()

    @property
    def memory_file(self) -> Path:
        return Path("/dev/shm") / f"kvstore-{self.node_id}.mem"

    @property
    def target(self) -> str:
        return f"unix://{self.socket}"

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Sends a signal and waits for the end; the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def stop(self) -> int:
        return self.kill(signal.SIGTERM)

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Another command beside the node."""
        return cli(*arguments, KVSTORE_TARGET=self.target, **environ)

    def stat(self) -> Any:
        """What `kvstore stat --json` prints."""
        with control(f"grpc://{self.control}", PATIENCE) as stub:
            return as_dict(stub.Stat(pb.StatRequest()))

    def get(self, path: str) -> tuple[int, str]:
        """An HTTP page: status and text."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=PATIENCE) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name and labels."""
        status, text = self.get("/metrics")
        assert status == 200
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def remove(self) -> None:
        """Ends the process and removes what it left."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(OSError):
            for path in (self.memory_file, Path(f"{self.memory_file}.lock")):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def node(folder: Path, **settings: object) -> Iterator[NodeProcess]:
    """A started node that goes with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    process = NodeProcess(folder, **settings)
    try:
        yield process.start()
    finally:
        process.remove()


def cli(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs one command of `kvstore` to its end."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("KVSTORE_")}
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**clean, "COLUMNS": "200", **environ},
        check=False,
    )


def wait_for(condition: Any, what: str = "the condition") -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true"
        time.sleep(0.02)


def _addresses(line: str) -> tuple[str, str, str]:
    """Data, control and HTTP address in the start line; empty when off."""
    found = [re.search(pattern, line) for pattern in (r"data path (\S+) and", r"gRPC (\S+),", r"HTTP (\S+);")]
    return tuple(match[1] if match and ":" in match[1] else "" for match in found)  # type: ignore[return-value]
