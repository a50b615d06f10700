"""What goes on in a store beside its calls: pins that end, namespaces that expire, blocks that are checked at rest,
others that are told of all this."""

from __future__ import annotations

from collections.abc import Callable

from kvstore.tiers.background import Background
from kvstore.tiers.evicting import Evictor
from kvstore.tiers.lifecycle import Lifecycle
from kvstore.tiers.scrubbing import Scrubber
from kvstore.tiers.state import State


class Upkeep:
    """``start`` gives the threads; everything it does takes the lock itself."""

    def __init__(self, state: State, evictor: Evictor) -> None:
        config = state.config
        self._pins, self._journal = state.pins, state.journal
        self.lifecycle = Lifecycle(state, evictor)
        self.scrubber = Scrubber(state, config.scrub_bytes, config.scrub_interval) if config.scrub_bytes else None

    def start(self, failed: Callable[[str], None]) -> list[Background]:
        """Threads that run until they are stopped."""
        journal = Background("journal", self._journal.step, failed)
        self._journal.wake = journal.wake
        threads = [
            journal,
            Background("pins", self._pins.expire, failed),
            Background("namespaces", self.lifecycle.expire, failed),
        ]
        if self.scrubber:
            threads.append(Background("scrub", self.scrubber.step, failed))
        return threads
