"""Runs a node as a process: log, signals, exit status."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from types import FrameType

from kvstore.core.errors import ConfigError, KVStoreError
from kvstore.node import logs
from kvstore.node.config import NodeConfig
from kvstore.server.node import Node

_log = logging.getLogger("kvstore.node")
_SWITCH_SECONDS = 0.0005  # a thread that computes must not keep the others from their sockets for 5 ms


def run(config: NodeConfig) -> int:
    """Serves until SIGTERM or SIGINT; a second one ends the process at once. Raises nothing: the exit status.

    0: stopped as asked. 1: it could not run. 2: the configuration is wrong.
    """
    logs.set_up(config.log_level, config.log_format)
    sys.setswitchinterval(_SWITCH_SECONDS)
    stop = _Stop()
    try:
        node = Node(config)
    except KVStoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if error.code == ConfigError.code else 1
    try:
        node.start()
        gc.collect()
        gc.freeze()  # what lives now lives on: later collections need not look at it
        stop.wait()
        _log.info("%s: stopping; blocks stay in the memory file", stop.name)
    finally:
        node.stop()
    return 0


class _Stop:
    """The first signal is noted, the second one ends the process."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.name = ""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, and shells for background jobs
                signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set():
            os._exit(128 + number)
        self.name = signal.Signals(number).name
        self._event.set()

    def wait(self) -> None:
        self._event.wait()
