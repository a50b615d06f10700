"""A node of the benchmark's own: another process, its files in temporary directories that go with it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from kvstore import Client, errors

START_SECONDS = 180.0


class OwnNode:
    """``with OwnNode(capacity) as (shm_target, tcp_target)``: runs until the block ends. ``settings``: further ones.
    ``launcher``: the module that runs a node's command line, and arguments before it."""

    def __init__(
        self,
        capacity: int,
        settings: Mapping[str, str | int | float] | None = None,
        launcher: Sequence[str] = ("kvstore.cli",),
    ) -> None:
        self.capacity = capacity
        self.settings = dict(settings or {})
        self.launcher = tuple(launcher)

    @property
    def pid(self) -> int:
        """Process id of the node."""
        return self._process.pid

    def __enter__(self) -> tuple[str, str]:
        self._folder = Path(tempfile.mkdtemp(prefix="kvstore-bench-"))
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self._memory = Path(tempfile.mkdtemp(prefix="kvstore-bench-", dir=memory))
        self.shm_target = f"unix://{self._folder}/node.sock"
        try:
            return self.shm_target, self._start()
        except BaseException:
            self._remove()
            raise

    def _start(self) -> str:
        settings: dict[str, str | int | float] = {
            "socket": f"{self._folder}/node.sock",
            "data_dir": f"{self._folder}/data",
            "memory_dir": str(self._memory),
            "data_address": "127.0.0.1:0",
            "control_address": "127.0.0.1:0",
            "http_address": "127.0.0.1:0",
            "capacity": self.capacity,
            **self.settings,
        }
        config = self._folder / "node.toml"
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
        with open(self._folder / "node.log", "wb") as log:
            command = [sys.executable, "-m", *self.launcher, "node", "--config", str(config)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        return "kv://" + self._wait()

    def _wait(self) -> str:
        """Waits until the node serves and all its memory is prefaulted; its TCP address."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            if (self._folder / "node.sock").exists():
                with suppress(errors.NotServed), Client(self.shm_target, timeout=5, on_failure="raise") as client:
                    stat = client.stat()
                    if stat.tiers[0].segments_ready == stat.tiers[0].segments:  # others grow as they are used
                        return str(stat.data_address)
            time.sleep(0.05)
        log = (self._folder / "node.log").read_text(errors="replace")
        raise errors.Unavailable(f"the benchmark's node did not start:\n{log[-2000:]}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        process = getattr(self, "_process", None)
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._memory, ignore_errors=True)
