"""What the scheduler half knows of one request."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvstore.core.keys import KEY_BYTES, hashed_keys

from .lookup import Lookup
from .planner import Geometry


@dataclass
class Handoff:
    """What a prefill engine announced in kv_transfer_params."""

    blocks: int
    namespace: str
    node: str


@dataclass
class Track:
    """State of one request between its arrival and its end. ``request`` is vLLM's, read only."""

    request: Any
    tag: int
    may_load: bool
    may_save: bool
    salt: bytes = b""  # mixed into every hash: content of a LoRA adapter
    handoff: Handoff | None = None
    lookup: Lookup | None = None
    answered: tuple[int, int] | None = None  # (computed, end of the hit in blocks) of the last answer
    deadline_passed: bool = False
    failed: bool = False  # a load failed: compute, do not ask again
    counted: bool = False
    found: int = 0  # blocks of the prefix that the store had when asked
    saved: int = 0  # blocks planned to be saved, or known to be there
    sent: int = 0  # blocks whose keys the workers have
    keys: bytes = b""
    gap: bool = False  # a block in the middle was not saved: the ones after it are of no use
    new: bool = True  # no step has computed anything for it yet
    adopted: Lookup | None = None  # the lookup whose answer is in here already
    worth: bool | None = None  # whether loading is faster than computing, once decided

    @property
    def id(self) -> str:
        return str(self.request.request_id)

    def hashes(self, geometry: Geometry, first: int, end: int) -> list[bytes]:
        """What names the blocks ``first`` to ``end``, adapter content mixed in."""
        found = geometry.block_hashes(self.request.block_hashes, first, end)
        if self.salt:
            return [hashlib.blake2b(value + self.salt, digest_size=32).digest() for value in found]
        return found

    def extend(self, geometry: Geometry, root: bytes, end: int) -> int:
        """Makes the keys of blocks 0 to ``end``; returns how many there are now."""
        have = len(self.keys) // KEY_BYTES
        if have < end:
            self.keys += hashed_keys(root, self.hashes(geometry, have, end))
        return len(self.keys) // KEY_BYTES

    def key(self, block: int) -> bytes:
        return self.keys[block * KEY_BYTES : (block + 1) * KEY_BYTES]

    def key_list(self, first: int, end: int) -> list[bytes]:
        return [self.key(block) for block in range(first, min(end, len(self.keys) // KEY_BYTES))]

    def drop_lookup(self) -> None:
        if self.lookup is not None:
            self.lookup.cancel()
            self.lookup = None


def tag_of(request_id: str) -> int:
    """The request's id on the wire: 64 bits, never 0."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "little") | 1


def handoff_of(params: Mapping[str, Any] | None) -> Handoff | None:
    """The announcement in the ``kv_transfer_params`` of a request to a decode engine, when it is one of ours."""
    if not isinstance(params, Mapping) or not params.get("do_remote_prefill"):
        return None
    ours = params.get("kvstore")
    if not isinstance(ours, Mapping):
        return None
    blocks = ours.get("blocks")
    if not isinstance(blocks, int) or not 0 <= blocks <= 1 << 24:
        return None
    return Handoff(blocks, str(ours.get("namespace", "")), str(ours.get("node", "")))


def announcement(blocks: int, namespace: str, node: str) -> dict[str, Any]:
    """NIXL's convention for routers, with what a decode engine needs to find the blocks in the store."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "kvstore": {"blocks": blocks, "namespace": namespace, "node": node},
    }
