"""Warnings and errors of the last hours, for people who do not read logs."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass

KEPT = 50  # kinds of messages
_LONGEST = 600  # characters of one


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as it came last, when (time.time()), and how often its kind came."""

    level: str
    logger: str
    text: str
    at: float
    count: int


class Recent(logging.Handler):
    """Keeps what the product's loggers warn of, once for each kind: messages of one template are of one kind."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._guard = threading.Lock()
        self._entries: OrderedDict[tuple[str, str], Entry] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()[:_LONGEST]
        except (TypeError, ValueError):
            text = str(record.msg)[:_LONGEST]
        kind = (record.name, str(record.msg))
        with self._guard:
            before = self._entries.pop(kind, None)
            count = before.count + 1 if before else 1
            self._entries[kind] = Entry(record.levelname.lower(), record.name, text, record.created, count)
            if len(self._entries) > KEPT:
                self._entries.popitem(last=False)

    def entries(self) -> list[Entry]:
        """The latest first."""
        with self._guard:
            return list(self._entries.values())[::-1]


def listen() -> Recent:
    """From now on; :func:`unlisten` ends it."""
    handler = Recent()
    logging.getLogger("kvstore").addHandler(handler)
    return handler


def unlisten(handler: Recent) -> None:
    logging.getLogger("kvstore").removeHandler(handler)
