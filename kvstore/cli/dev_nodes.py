"""One node of `kvstore dev-cluster`: a child process with files and ports of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from kvstore.node.config import load

_LAST_LINES = 12


class DevNode:
    """Made: its process runs. It listens on 127.0.0.1 at ``port`` and the two after it."""

    def __init__(
        self, number: int, home: Path, port: int, capacity: str, discovery: str, replicas: int, nvme: str = ""
    ) -> None:
        self.number = number
        self.data, self.control, self.http = (f"127.0.0.1:{port + plane}" for plane in range(3))
        self.log = home / "node.log"
        self._socket = home / "node.sock"
        self._config = home / "node.toml"
        settings = {
            "data_address": self.data,
            "control_address": self.control,
            "http_address": self.http,
            "socket": str(self._socket),
            "data_dir": str(home / "data"),
            "capacity": capacity,
            "discovery": discovery,
            "replicas": replicas,
            "host_name": f"dev-{number}",  # else all copies would be on one machine
            **({"nvme_dir": str(home / "nvme"), "nvme_capacity": nvme} if nvme else {}),
        }
        home.mkdir(parents=True, exist_ok=True)
        self._config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        clean = {key: value for key, value in os.environ.items() if not key.startswith("KVSTORE_")}
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvstore.cli", "node", "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean,
                start_new_session=True,  # Ctrl-C is for the parent, which then stops the nodes
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> str | None:
        """How it ended; None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        return f"exit status {status}" if status >= 0 else signal.Signals(-status).name

    def serves(self) -> bool:
        """Whether it listens: on its socket, since somebody else may have its port."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket)) == 0

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def await_end(self, seconds: float) -> None:
        """Kills it when it takes longer."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def purge(self) -> None:
        """Removes its memory file; it must have ended."""
        from kvstore.server.purge import purge_stopped

        purge_stopped(load(self._config, environ={}))
