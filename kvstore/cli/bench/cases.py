"""The cases of ``kvstore bench local`` and ``transport``, and what every process of it must know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import Literal, TypeAlias

TransportName: TypeAlias = Literal["shm", "tcp", "nixl", "ucx"]
TRANSPORTS: tuple[TransportName, ...] = ("shm", "tcp")
BLOCK_TOKENS = 16
SIZES = {"64KiB": 64 << 10, "256KiB": 256 << 10, "2MiB": 2 << 20, "8MiB": 8 << 20, "32MiB": 32 << 20}
LABELS = ("2MiB", "64KiB")  # of the cases of ``bench local``
BATCHES = (16, 1)
MATCH_BLOCKS = 8192
MATCH_BLOCK_BYTES = 4096


@dataclass(frozen=True)
class Case:
    """Batches of ``batch`` blocks of ``size`` bytes, put or got by ``clients`` processes.

    ``full``: through a store that is full, so that room for each batch is made by eviction.
    """

    transport: TransportName
    op: str
    label: str
    batch: int
    clients: int = 1
    full: bool = False

    @property
    def size(self) -> int:
        return SIZES[self.label]

    @property
    def name(self) -> str:
        end = f".c{self.clients}" if self.clients > 1 else ""
        return f"{self.transport}.{self.op}.{self.label}.x{self.batch}{'.full' if self.full else ''}{end}"

    def params(self, working_set: int) -> dict[str, object]:
        return {
            "transport": self.transport,
            "block_bytes": self.size,
            "batch": self.batch,
            "clients": self.clients,
            "store_full": self.full,
            "working_set_bytes": working_set,
        }


def all_cases(clients: int) -> Iterator[Case]:
    """Cases with an empty enough store, for 1 and for ``clients`` processes."""
    for count in dict.fromkeys((1, clients)):
        for transport, op, label, batch in product(TRANSPORTS, ("get", "put"), LABELS, BATCHES):
            yield Case(transport, op, label, batch, count)


def full_cases(label: str, clients: int) -> Iterator[Case]:
    """Cases with a full store of blocks of one size."""
    for count in dict.fromkeys((1, clients)):
        for transport, op in product(TRANSPORTS, ("get", "put")):
            yield Case(transport, op, label, 16, count, full=True)


def wanted(name: str, patterns: tuple[str, ...]) -> bool:
    """True when no pattern is given or one fits (``*`` and ``?`` as in a shell)."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True)
class Setup:
    """Where the node is and what is moved. ``model`` names the namespaces of this run."""

    shm_target: str
    tcp_target: str
    region: str  # file on tmpfs, for the memcpy ceiling
    peer: tuple[str, int]  # raw socket peer, for the tcp ceiling
    working_set: int  # bytes that one pass moves, over all clients
    model: str

    def target(self, transport: TransportName) -> str:
        return self.shm_target if transport == "shm" else self.tcp_target
