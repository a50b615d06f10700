"""What every way of discovery does: it says which nodes there are, and never that one is dead."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from kvstore.cluster.member import Member

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seed:
    """Where a node's control plane listens ("host:port"), and who it is when discovery knows that."""

    address: str
    member: Member | None = None


OnChange = Callable[[frozenset[Seed]], None]


class Discovery(ABC):
    """``start`` once, ``stop`` once. Neither waits for the network longer than a second or two.

    A source that is lost takes back nothing that it said.
    """

    @property
    def problem(self) -> str:
        """For people, while what is known cannot be kept up to date; else empty."""
        return ""

    @property
    def visible(self) -> bool:
        """Whether others find this node now, as far as it has anything to do with that."""
        return True

    @abstractmethod
    def start(self, announce: Member, on_change: OnChange) -> None:
        """Announces this node, and tells all seeds but itself whenever they change.

        ``on_change`` is called on some thread, one call at a time. It must be quick: the source's lease waits for it.
        """

    @abstractmethod
    def update(self, announce: Member) -> None:
        """This node says something new of itself (that it drains)."""

    @abstractmethod
    def stop(self) -> None:
        """Takes the announcement back. No call of ``on_change`` begins after it."""


class Report:
    """Tells seeds when they differ from those told last, until it is closed."""

    def __init__(self, on_change: OnChange, own_address: str) -> None:
        self._on_change = on_change
        self._own_address = own_address
        self._told: frozenset[Seed] | None = None
        self._closed = False
        self._lock = threading.RLock()  # on_change may stop the discovery that calls it

    def tell(self, seeds: frozenset[Seed]) -> None:
        """An error of the listener is logged: discovery goes on."""
        seeds = frozenset(seed for seed in seeds if seed.address != self._own_address)
        with self._lock:
            if self._closed or seeds == self._told:
                return
            self._told = seeds
            try:
                self._on_change(seeds)
            except Exception:
                _log.exception("a change of the seeds could not be dealt with")

    def close(self) -> None:
        with self._lock:
            self._closed = True
