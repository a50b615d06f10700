"""Engines and nodes as processes of their own, driven by tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .nursery import Forked, Nursery

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
START_S, CALL_S = 600.0, 400.0
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT),
}


class EngineDied(Exception):
    """The engine's process ended or did not answer; the message has the end of its log."""


def execute(settings: str, log: int, answers: int, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "engine_main.py"), settings, str(answers)],
        stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=(answers,),
        env={**os.environ, **ENVIRONMENT, **env}, start_new_session=True, cwd=ROOT,
    )  # fmt: skip


class Engine:
    """A vLLM engine. ``call("generate", prompts=[...])`` and the other methods of engine_main.Engine."""

    def __init__(
        self,
        log: Path,
        llm: dict[str, Any],
        transfer: dict[str, Any] | None,
        env: dict[str, str],
        patch: str = "",
        wait: bool = True,
        nursery: Nursery | None = None,
    ) -> None:
        """``patch``: one of tests.vllm.patches. Without ``wait`` it is only begun; the first answer is waited for
        by :meth:`ready`."""
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        read, write = os.pipe()
        settings = json.dumps({"llm": llm, "transfer": transfer, "patch": patch})
        self._process: Forked | subprocess.Popen[bytes]
        with log.open("ab") as out:
            if nursery is not None:
                self._process = nursery.fork(settings, out.fileno(), write, env)
            else:
                self._process = execute(settings, out.fileno(), write, env)
        os.close(write)
        self._answers, self._buffer = read, b""
        self._ready = False
        if wait:
            self.ready()

    def ready(self) -> None:
        """Waits until it has started."""
        if not self._ready:
            self._answer(START_S)
            self._ready = True

    def call(self, name: str, **arguments: Any) -> Any:
        self.send(name, **arguments)
        return self.answer()

    def send(self, name: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self.ready()
        try:
            self._process.stdin.write(json.dumps({"do": name, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineDied(self._tail()) from None

    def answer(self, timeout: float = CALL_S) -> Any:
        return self._answer(timeout)

    def _answer(self, timeout: float) -> Any:
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._answers, 1 << 20) if ready else b""
            if not piece:
                why = "it ended" if ready else f"no answer in {timeout} s"
                self.kill()
                raise EngineDied(f"{why}; log {self.log}:\n{self._tail()}")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineDied(f"{answer['error']}\n{self._tail()}")
        return answer["ok"]

    def text(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _tail(self) -> str:
        return self.text()[-6000:]

    def stop(self) -> None:
        """A clean end."""
        left = shared_memory(self._process.pid)
        with contextlib.suppress(EngineDied, subprocess.TimeoutExpired):
            self.call("stop")
            self._process.wait(20)
        kill_group(self._process, left)

    def kill(self) -> None:
        """SIGKILL to the engine and everything it started."""
        kill_group(self._process)


def kill_group(leader: Forked | subprocess.Popen[bytes], left: Iterable[Path] = ()) -> None:
    """SIGKILL to a session of processes, and away with the shared memory that vLLM's ranks talk through; ``left``:
    what is known of it already."""
    left = {*left, *shared_memory(leader.pid)}
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()
    for path in left:
        path.unlink(missing_ok=True)


def shared_memory(session: int) -> set[Path]:
    """Files in /dev/shm that processes of a session have mapped, without those of nodes."""
    found: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(process.name)) == session:
                found |= {Path(path) for path in re.findall(r" (/dev/shm/.+)$", (process / "maps").read_text(), re.M)}
    return {path for path in found if not path.name.startswith("kvstore-") and not path.name.endswith("(deleted)")}


class Node:
    """A storage node of its own: unix socket, TCP, memory file, data directory all under ``folder``."""

    def __init__(self, folder: Path, capacity: str = "512MiB", port: int = 0) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.socket = folder / "node.sock"
        self.capacity = capacity
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port or free_port()
        self.start()

    @property
    def target(self) -> str:
        return f"unix://{self.socket}"

    @property
    def tcp(self) -> str:
        return f"kv://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it; again after :meth:`kill`, with the same identity and memory file."""
        command = [
            sys.executable, "-m", "kvstore.cli", "node",
            "--data-address", f"127.0.0.1:{self.port}", "--control-address", "off", "--http-address", "off",
            "--socket", str(self.socket), "--data-dir", str(self.folder / "data"), "--capacity", self.capacity,
        ]  # fmt: skip
        with (self.folder / "node.log").open("ab") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )  # fmt: skip
        self._wait_until_it_serves()

    def _wait_until_it_serves(self) -> None:
        end = time.monotonic() + 120
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(str(self.socket))
                return
            except OSError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > end:
                    raise EngineDied((self.folder / "node.log").read_text()) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """A clean stop, and nothing left in shared memory."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        for line in (self.folder / "node.log").read_text(errors="replace").splitlines():
            for found in re.findall(r"/dev/shm/kvstore-[0-9a-f]+\.mem", line):
                for path in (Path(found), Path(found + ".lock")):
                    path.unlink(missing_ok=True)

    def signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, when it lives; the memory file stays."""
        assert self._process is not None
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait()


class Relay:
    """A TCP relay in front of a node. An action it is armed with is called once, when so many more bytes came from
    the node; that connection ends there, or waits for the action's end when it is to be kept. ``delay``: seconds
    that each piece from the node is held up."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._left = 0
        self._armed: Callable[[], object] | None = None
        self._keep = False
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.fired = False
        self.delay = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def target(self) -> str:
        return f"kv://127.0.0.1:{self._listener.getsockname()[1]}"

    def arm(self, limit: int, action: Callable[[], object], keep: bool = False) -> None:
        with self._lock:
            self._left, self._armed, self._keep, self.fired = limit, action, keep, False

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                client.close()
                continue
            for source, sink, counted in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, sink, counted), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(64 << 10):
                if counted and self.delay:
                    time.sleep(self.delay)
                if counted and self._fires(len(data)) and not self._keep:
                    break  # what the kernel still holds is lost as well
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _fires(self, size: int) -> bool:
        with self._lock:
            self._left -= size
            action = self._armed if self._left <= 0 else None
            if action is not None:
                self._armed, self.fired = None, True
        if action is not None:
            action()
        return action is not None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def counter(metrics: dict[str, float], name: str) -> float:
    """Sum of a metric over its labels, by the part of the name after ``vllm:``."""
    pattern = re.compile(rf"^vllm:{re.escape(name)}(_total)?(\{{.*\}})?$")
    return sum(value for key, value in metrics.items() if pattern.match(key))
