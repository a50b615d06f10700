"""vLLM's OpenAI-compatible server as a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .harness import ENVIRONMENT, ROOT, START_S, EngineDied, free_port, kill_group, shared_memory
from .proxy import post


class Server:
    """Started at once, and waited for by :meth:`ready`."""

    def __init__(self, log: Path, model: Path, transfer: dict[str, Any] | None = None) -> None:
        self.log, self.port = log, free_port()
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
            "--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "tiny", "--enforce-eager",
            "--dtype", "float32", "--max-model-len", "2048", "--seed", "0",
        ]  # fmt: skip
        if transfer is not None:
            command += ["--kv-transfer-config", json.dumps(transfer)]
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, cwd=ROOT, start_new_session=True, env={**os.environ, **ENVIRONMENT}
            )

    def ready(self) -> Server:
        end = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError):
                if self._get("/health")[0] == 200:
                    return self
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise EngineDied(f"log {self.log}:\n{self.log.read_text(errors='replace')[-6000:]}")
            time.sleep(0.2)

    def _get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def metric(self, name: str) -> float:
        """Sum over the labels of ``vllm:name_total``."""
        text = self._get("/metrics")[1]
        return sum(float(value) for value in re.findall(rf"^vllm:{name}_total(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        answer = post(self.port, path, body)
        return json.loads(answer.read())

    def stop(self) -> None:
        left = shared_memory(self._process.pid)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        kill_group(self._process, left)
