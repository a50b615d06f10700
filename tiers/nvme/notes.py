"""Pins noted in NVMe's index, whatever tier their blocks are in: they outlive the slot headers in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvstore.tiers.nvme.committer import Committer

_PREFIX = b"pin"  # of keys among the settings: then the namespace's number and the block's key
_VALUE_BYTES = 8


class PinNotes:
    """``found``: the notes of the last life, by number of the namespace and key."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self.found: dict[tuple[int, bytes], int] = {}

    def load(self, settings: Mapping[bytes, bytes]) -> None:
        """Takes the notes out of what the index holds."""
        for key, value in settings.items():
            if key.startswith(_PREFIX):
                at = len(_PREFIX)
                number = int.from_bytes(key[at : at + 2], "big")
                self.found[number, key[at + 2 :]] = int.from_bytes(value, "big")

    def set(self, number: int, keys: Iterable[bytes], value: int) -> None:
        """Notes a value with blocks, 0 forgets it. It is durable one commit later."""
        note = value.to_bytes(_VALUE_BYTES, "big") if value else b""
        self._committer.note({_PREFIX + number.to_bytes(2, "big") + key: note for key in keys})
