"""A node as its own process, for tests that need one: started, stopped, killed, frozen."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


class NodeProcess:
    """One node with directories and ports of its own. ``settings``: flags of ``kvstore node`` (capacity="1GiB")."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.socket = home / "node.sock"
        self.memory = Path("/dev/shm") / f"kvstore-test-{os.getpid()}-{home.name}.mem"
        self.settings = {
            "data-address": "127.0.0.1:0",
            "control-address": "127.0.0.1:0",
            "http-address": "off",
            "socket": str(self.socket),
            "data-dir": str(home / "data"),
            "memory-file": str(self.memory),
            "capacity": "256MiB",
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.patience = 60.0  # seconds that it may take to start

    def start(self) -> NodeProcess:
        """Starts it and waits until it serves. The TCP port stays the same over restarts."""
        flags = [item for name, value in self.settings.items() for item in (f"--{name}", value)]
        self.log = self.home / "node.log"
        with self.log.open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvstore.cli", "node", *flags],
                stdout=log,
                stderr=log,
                cwd=self.home,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._await_serving(begin)
        return self

    def _await_serving(self, begin: int) -> None:
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            with self.log.open("rb") as log:
                log.seek(begin)
                text = log.read().decode(errors="replace")
            if " serves: " in text:
                self.port = int(text.split("127.0.0.1:", 1)[1].split()[0])
                self.settings["data-address"] = f"127.0.0.1:{self.port}"
                return
            assert self.process is not None
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"the node does not serve:\n{text}")

    def target(self, transport: str) -> str:
        """Target for a client of this transport ("unix" for bytes over the unix socket)."""
        return f"unix://{self.socket}" if transport in ("shm", "unix") else f"kv://127.0.0.1:{self.port}"

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP, and waits until it is stopped."""
        assert self.process is not None
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and waits for the end."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def remove(self) -> None:
        """Kills it and removes all its files."""
        self.kill()
        for path in self.memory.parent.glob(f"{self.memory.name}*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.home / "data", ignore_errors=True)


def wait_until(condition, seconds: float = 20.0) -> bool:  # type: ignore[no-untyped-def]
    """Whether a condition becomes true in time. Only an upper bound: no test says how fast."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        select.select([], [], [], 0.005)
    return True
