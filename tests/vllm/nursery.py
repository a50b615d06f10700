"""A process that has imported vLLM and forks an engine whenever one is wanted: imports are most of an engine's start.

An engine that needs its environment at the start of its interpreter (PYTHONHASHSEED) is not forked but executed."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
MESSAGE = 1 << 20


class Forked:
    """A process of somebody else's, as far as it must look like a Popen."""

    def __init__(self, pid: int, pidfd: int, stdin: io.BufferedWriter) -> None:
        self.pid, self.stdin = pid, stdin
        self._pidfd = pidfd

    def poll(self) -> int | None:
        return 0 if select.select([self._pidfd], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("engine", timeout or 0.0)
        return 0


class Nursery:
    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with log.open("ab") as out, theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "engine_main.py"), "nursery", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=(theirs.fileno(),), env=environment,
                cwd=HERE.parents[1],
            )  # fmt: skip

    def fork(self, settings: str, log: int, answers: int, env: dict[str, str]) -> Forked:
        """An engine in a session of its own. ``log``, ``answers``: descriptors that it gets."""
        read, write = os.pipe()
        request = json.dumps({"settings": settings, "env": env}).encode()
        socket.send_fds(self._socket, [request], [read, log, answers])
        os.close(read)
        reply, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE, 1)
        if not reply:
            raise RuntimeError("the process that forks engines ended")
        return Forked(int(reply), descriptors[0], os.fdopen(write, "wb"))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(20)


def serve_forks(descriptor: int, serve: Callable[[str, int], None]) -> None:
    """The nursery's own loop; returns in it at its end, and in each engine when ``serve`` is done."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for engines here
    with socket.socket(fileno=descriptor) as control:
        while True:
            request, descriptors, _, _ = socket.recv_fds(control, MESSAGE, 3)
            if not request:
                return
            wanted = json.loads(request)
            pid = os.fork()
            if pid == 0:
                break
            pidfd = os.pidfd_open(pid)
            socket.send_fds(control, [str(pid).encode()], [pidfd])
            for used in (*descriptors, pidfd):
                os.close(used)
    _become(descriptors[:2], wanted["env"])
    serve(wanted["settings"], descriptors[2])


def _become(descriptors: list[int], env: dict[str, str]) -> None:
    """A process like one that was executed: session, standard streams, environment."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stdin, log = descriptors
    for source, target in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(stdin)
    os.close(log)
    os.environ.update(env)
