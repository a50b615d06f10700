"""Put over gRPC: parts arrive as messages and go into reserved slots; nothing is visible before the last one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from kvstore.core.checksum import chunk_sums, part_seed
from kvstore.core.errors import InvalidArgument, KVStoreError, WrongBlockSize
from kvstore.core.keys import KEY_BYTES
from kvstore.node.acks import Acks, Blocks, sliced
from kvstore.node.checks import checked_importance, checked_slice
from kvstore.node.layout import Layout, layout_of
from kvstore.node.outcomes import STORED, merge
from kvstore.tiers.sessions import Session
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import NamespaceView, Reserved
from kvstore.v1 import control_pb2 as pb


@dataclass(frozen=True, slots=True)
class Put:
    """A put that is stored; ``ack``: what is to be acknowledged of it."""

    blocks: Blocks
    outcomes: bytes
    ack: int


def put(
    store: BlockStore,
    find: Callable[[bytes], NamespaceView],
    max_keys: int,
    acks: Acks,
    requests: Iterator[pb.ControlPutRequest],
) -> Put:
    """Takes one Put stream. Whatever goes wrong leaves nothing behind. Raises KVStoreError."""
    first = next(requests, None)
    if first is None:
        raise InvalidArgument("the stream of Put is empty; its first message names namespace and keys")
    ack = acks.check(first.ack)
    view = find(first.root)
    layout = layout_of(view.spec, first.parts)
    chain = checked_slice(first.chain, max_keys)
    importance = checked_importance(first.importance, len(chain.keys))
    session = store.open_session(False, "grpc put")
    try:
        reserved = store.reserve(session, view.handle, chain, layout.parts, first.request_id, importance, 0, ack)
        filler = _Filler(store, layout, chain.keys.tobytes(), reserved)
        outcomes = _fill(store, session, filler, first.data, requests, ack)
    finally:
        store.close_session(session)
    return Put(sliced(view.handle, chain), outcomes, first.ack)


def answer(outcomes: bytes) -> pb.ControlPutReply:
    return pb.ControlPutReply(stored=outcomes.count(STORED), outcomes=outcomes)


def _fill(
    store: BlockStore,
    session: Session,
    filler: _Filler,
    first: bytes,
    requests: Iterator[pb.ControlPutRequest],
    ack: int,
) -> bytes:
    reserved = filler.reserved
    try:
        filler.take(first)
        for request in requests:
            filler.take(request.data)
        filler.check_complete()
    except BaseException:
        if reserved.id:
            with contextlib.suppress(KVStoreError):
                store.abort(session, reserved.id)
        raise
    if not reserved.id:
        return reserved.outcomes
    sums = np.concatenate(filler.sums)
    return merge(reserved.outcomes, store.commit(session, reserved.id, sums, ack))


class _Filler:
    """Takes payloads in order, block-major, and puts those that got slots into them."""

    def __init__(self, store: BlockStore, layout: Layout, keys: bytes, reserved: Reserved) -> None:
        self.reserved = reserved
        self.sums: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = []
        self._store = store
        self._layout = layout
        self._keys = keys
        self._offsets = iter(reserved.offsets.tolist())
        self._taken = 0

    @property
    def _wanted(self) -> int:
        return len(self.reserved.outcomes) * len(self._layout.parts)

    def take(self, data: bytes) -> None:
        """One message: any number of whole payloads."""
        view, at = memoryview(data), 0
        while at < len(view):
            if self._taken == self._wanted:
                raise WrongBlockSize(f"{len(view) - at} bytes came after the last of {self._wanted} payloads")
            block, position = divmod(self._taken, len(self._layout.parts))
            size = self._layout.cuts[position].length
            if len(view) - at < size:
                raise WrongBlockSize(
                    f"part {self._layout.parts[position]} of block {block} takes {size} bytes, the message has "
                    f"{len(view) - at} left; each message must hold whole parts",
                    got=len(view) - at,
                    want=size,
                )
            self._one(block, position, view[at : at + size])
            self._taken, at = self._taken + 1, at + size

    def _one(self, block: int, position: int, payload: memoryview) -> None:
        if self.reserved.outcomes[block] != STORED:
            return
        self._store.dram.writable(next(self._offsets), len(payload))[:] = payload
        seed = part_seed(self._keys[block * KEY_BYTES : (block + 1) * KEY_BYTES], self._layout.parts[position])
        self.sums.append(chunk_sums(payload, seed, self._layout.cuts[position]))

    def check_complete(self) -> None:
        """Raises WrongBlockSize when payloads are missing."""
        if self._taken < self._wanted:
            raise WrongBlockSize(
                f"the stream ended after {self._taken} of {self._wanted} payloads", got=self._taken, want=self._wanted
            )
