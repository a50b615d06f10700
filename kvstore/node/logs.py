"""Log lines of a node: text for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        value = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return json.dumps(value)


def set_up(level: str, log_format: str) -> None:
    """Sends the log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class Seldom:
    """Warnings that whoever reaches a port could cause at will: one of a kind a minute, then how many were left out."""

    def __init__(self, logger: logging.Logger, every: float = 60.0) -> None:
        self._logger = logger
        self._every = every
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}

    def warn(self, kind: str, text: str) -> None:
        """``kind``: one of a few; ``text``: what is logged."""
        now = time.monotonic()
        with self._lock:
            when, dropped = self._last.get(kind, (now - self._every, 0))
            if now - when < self._every:
                self._last[kind] = (when, dropped + 1)
                return
            self._last[kind] = (now, 0)
        self._logger.warning("%s%s", text, f" ({dropped} more like it)" if dropped else "")
