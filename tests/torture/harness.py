"""Processes of a torture run: a real node, real clients, SIGKILL and SIGSTOP at seeded moments."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from kvstore import Client, errors

Settings: TypeAlias = "Mapping[str, object] | None"
Environ: TypeAlias = "Mapping[str, str] | None"
StatReply: TypeAlias = Any


class TortureNode:
    """A `kvstore node` process with its own files. Restarting keeps them. ``settings``: further ones; ``environ``: of
    the process."""

    def __init__(self, folder: Path, capacity: int, settings: Settings = None, environ: Environ = None) -> None:
        self.folder = folder
        self.target = f"unix://{folder}/node.sock"
        self.memory_file = Path("/dev/shm") / f"kvstore-torture-{os.getpid()}-{folder.name}.mem"
        self.config = folder / "node.toml"
        self.config.write_text(
            f'socket = "{folder}/node.sock"\n'
            f'data_dir = "{folder}/data"\n'
            f'memory_file = "{self.memory_file}"\n'
            f"capacity = {capacity}\n"
            'data_address = "127.0.0.1:0"\n'
            'control_address = "127.0.0.1:0"\n'
            'http_address = "127.0.0.1:0"\n'
            + "".join(f"{name} = {json.dumps(value)}\n" for name, value in (settings or {}).items())
        )
        self.environ = {**os.environ, **(environ or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.folder / "node.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvstore.cli", "node", "--config", str(self.config)],
                stdout=log, stderr=log, env=self.environ,
            )  # fmt: skip
        self.wait_ready()

    def wait_ready(self, limit: float = 300.0) -> None:
        end = time.monotonic() + limit
        while time.monotonic() < end:
            assert self.process is not None
            if self.process.poll() is not None:
                raise AssertionError(f"the node exited with {self.process.returncode}:\n{self.log()[-3000:]}")
            if self.answers():
                return
            time.sleep(0.05)
        raise AssertionError(f"the node did not become ready in {limit} s:\n{self.log()[-3000:]}")

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(self.target.removeprefix("unix://")) != 0:
                return False
        try:
            with Client(self.target, timeout=10.0, on_failure="raise") as client:
                return client.stat() is not None
        except errors.KVStoreError:
            return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stat(self) -> dict[str, int]:
        """Counters and gauges of the node as one flat mapping."""
        with Client(self.target, timeout=30.0, on_failure="raise") as client:
            stat = client.stat()
        return {
            "blocks": stat.blocks,
            "writing": stat.writing,
            "leases": stat.leases,
            "leased_blocks": stat.leased_blocks,
            "sessions": stat.sessions,
            "orphan_sessions": stat.orphan_sessions,
            **dict(stat.counters),
        }

    def nvme(self) -> StatReply:
        """What stat says of the NVMe tier: state, reason, counters."""
        with Client(self.target, timeout=10.0, on_failure="raise") as client:
            return client.stat().tiers[1]

    def health(self) -> dict[str, object]:
        """The page /health."""
        address = re.findall(r"HTTP (\S+);", self.log())[-1]
        with urllib.request.urlopen(f"http://{address}/health", timeout=10.0) as reply:
            found = json.load(reply)
        assert isinstance(found, dict)
        return found

    def lose_memory(self) -> None:
        """What a crash of the machine does to the memory file."""
        for file in Path("/dev/shm").glob(self.memory_file.name + "*"):
            file.unlink()

    def log(self) -> str:
        return (self.folder / "node.log").read_text(errors="replace")

    def destroy(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.lose_memory()


@dataclass
class Tally:
    """What the logs of all workers say."""

    acknowledged: int = 0
    checked: int = 0
    wrong: int = 0
    acks: dict[int, int] = field(default_factory=dict)  # chain -> longest acknowledged prefix
    durable: dict[int, int] = field(default_factory=dict)  # the same, acknowledged as durable

    def add(self, log: Path) -> None:
        if not log.exists():  # killed before its first word
            return
        for line in log.read_text().splitlines():
            word, *values = line.split()
            if word == "ack" and len(values) == 2:
                chain, blocks = int(values[0]), int(values[1])
                self.acks[chain] = max(self.acks.get(chain, 0), blocks)
                self.acknowledged += 1
            elif word == "durable" and len(values) == 2:
                chain, blocks = int(values[0]), int(values[1])
                self.durable[chain] = max(self.durable.get(chain, 0), blocks)
            elif word == "checked":
                self.checked += int(values[0])
            elif word == "wrong":
                self.wrong += 1


class Worker:
    """A client process (tests/torture/worker.py)."""

    def __init__(self, role: str, log: Path, target: str, **options: object) -> None:
        self.log = log
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        with open(log.with_suffix(".err"), "ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.torture.worker", role, f"--target={target}", f"--log={log}", *arguments],
                stderr=err,
                cwd=Path(__file__).resolve().parents[2],
            )

    def wait_for(self, word: str, count: int = 1, limit: float = 300.0) -> None:
        """Until the log holds ``count`` lines that start with ``word``."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if self.log.exists() and sum(line.startswith(word) for line in self.log.read_text().splitlines()) >= count:
                return
            if self.process.poll() is not None:
                raise AssertionError(f"worker exited with {self.process.returncode}: {self.errors()}")
            time.sleep(0.02)
        raise AssertionError(f"no {count} lines {word!r} in {limit} s: {self.errors()}")

    def errors(self) -> str:
        return self.log.with_suffix(".err").read_text(errors="replace")[-2000:]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def alive(self) -> bool:
        return self.process.poll() is None


@contextmanager
def arena(capacity: int, settings: Settings = None, environ: Environ = None) -> Iterator[tuple[TortureNode, Path]]:
    """A started node and a folder for logs; everything is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="kvstore-torture-"))
    node = TortureNode(folder, capacity, settings, environ)
    try:
        node.start()
        yield node, folder
    finally:
        node.destroy()
        shutil.rmtree(folder, ignore_errors=True)


def eventually(condition, what: str, limit: float = 120.0) -> None:  # type: ignore[no-untyped-def]
    """Waits until ``condition()`` holds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit} s: {what}")
        time.sleep(0.05)
