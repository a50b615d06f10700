"""The record of a run: what was called and answered, and what was broken when. One line of JSON each.

Times are of CLOCK_MONOTONIC, which is one for all processes of a machine. A call is written down before it begins and
when it has ended, so that one whose process was killed is known as well.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

PUT, GET, BORROW, MATCH, PREFETCH, EVICT = "put", "get", "borrow", "match", "prefetch", "evict"
READS = (GET, BORROW)
LOOKUPS = (GET, BORROW, MATCH)


@dataclass
class Op:
    """A call. ``end`` None: its process ended first. ``late``: seconds for which the caller itself was kept from
    running meanwhile. ``must``: all that is owed has to be found. ``version``: the one that a put wrote."""

    client: str
    number: int
    kind: str
    tenant: str
    chain: int
    blocks: int  # of the chain, from block 0
    start: float
    timeout: float
    node: int = -1  # that was asked; -1: any
    first: int = 0
    ack: str = ""
    version: int = 0
    must: bool = False
    end: float | None = None
    late: float = 0.0
    found: int = 0  # length of the prefix
    seen: list[tuple[int, str]] = field(default_factory=list)  # index of a block, digest of its bytes
    complete: bool = False  # a put: every block is acknowledged
    reasons: dict[str, int] = field(default_factory=dict)
    error: str = ""  # an exception that no call may raise here

    @property
    def name(self) -> str:
        return f"{self.client}#{self.number} {self.kind} of {self.tenant} chain {self.chain}[:{self.blocks}]"


@dataclass
class Event:
    """What the harness did or found. ``what``: kill, start, reboot (memory is lost), wipe (memory and disk are lost),
    pause, resume, isolate, cut, heal, whole (all owed copies are there again), drained, rotated, evicted, note."""

    what: str
    at: float
    node: int = -1
    other: int = -1  # at the other end of a cut
    tenant: str = ""
    count: int = 0
    detail: str = ""


@dataclass
class Holding:
    """How many leading blocks of a chain a node has itself, when all is quiet."""

    at: float
    node: int
    tenant: str
    chain: int
    blocks: int


@dataclass
class History:
    ops: list[Op] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    holdings: list[Holding] = field(default_factory=list)


class Writer:
    """Appends to a file; a line that is written is not lost with the process."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = open(path, "a", buffering=1)  # noqa: SIM115 - as long as the process

    def add(self, record: Op | Event | Holding) -> None:
        self._file.write(json.dumps({"record": type(record).__name__, **asdict(record)}) + "\n")

    def close(self) -> None:
        self._file.close()


class Reader:
    """Reads what the writers of a folder have written, a second time only what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._ops: dict[tuple[str, int], Op] = {}
        self._events: list[Event] = []
        self._holdings: list[Holding] = []

    def history(self) -> History:
        """All so far, in order of its beginning."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):  # it is being written, or its process was killed in the middle of it
                        break
                    self._read[path] = self._read.get(path, 0) + len(line)
                    self._take(json.loads(line))
        self._events.sort(key=lambda event: event.at)
        return History(sorted(self._ops.values(), key=lambda op: op.start), self._events, self._holdings)

    def _take(self, values: dict[str, Any]) -> None:
        kind = values.pop("record")
        if kind == "Op":
            op = Op(**values)
            op.seen = [(index, found) for index, found in op.seen]
            self._ops[op.client, op.number] = op
        elif kind == "Event":
            self._events.append(Event(**values))
        else:
            self._holdings.append(Holding(**values))
