"""A match that keeps what it found: blocks stay until the hold is closed, without their bytes being looked at."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from types import TracebackType

import numpy as np
import numpy.typing as npt

from kvstore.client.namespace import AnyKeys, Namespace
from kvstore.core.keys import KEY_BYTES, Keys
from kvstore.transport.base import Transport
from kvstore.transport.batch import GetCall, GetResult, get_request, parsed
from kvstore.transport.frame import Op
from kvstore.transport.outcome import miss_name
from kvstore.v1 import data_pb2 as pb


@dataclass
class Hold:
    """``blocks``: longest cached prefix. ``leased``: blocks of it that cannot go away (0 over the network).

    ``present``: for window and state parts, by position, which of the blocks have them.
    """

    blocks: int = 0
    leased: int = 0
    miss: str = ""
    present: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)
    _lease: tuple[Transport, int] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def has(self, part: int, block: int) -> bool:
        """Whether the block has this part. True for prefix parts of every block of the prefix."""
        bits = self.present.get(part)
        return block < self.blocks if bits is None else block < len(bits) and bool(bits[block])

    def close(self) -> None:
        """Gives the lease back. May be called more than once, from any thread."""
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            transport, number = lease
            transport.give_lease_back(number)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def hold(
    namespace: Namespace,
    keys: AnyKeys,
    *,
    request_id: int = 0,
    lease: bool = True,
    timeout: float | None = None,
) -> Hold:
    """Matches a chain in all parts and leases what was found, where the session can lease (shared memory)."""
    chain, plan = Keys.of(keys), namespace.plan(None, None)
    deadline = namespace.client.deadline(timeout)
    found = Hold()

    def action(transport: Transport, handle: int) -> GetResult:
        call = GetCall(handle, chain.raw, 0, plan, request_id)
        reply = transport.match(call, deadline)
        found.blocks, found.miss = reply.blocks, miss_name(reply.miss)
        found.present = {part.part: _bits(part) for part in reply.parts if part.present}
        if lease and reply.blocks and transport.capabilities.zero_copy:
            _lease(transport, namespace, call, found, deadline)
        return GetResult(found.blocks, False, found.miss)

    namespace._looked_up("match", len(chain), 0, deadline, action)
    return found


def _bits(part: pb.PartPrefix) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(part.present, dtype=np.uint8), bitorder="little").astype(bool)


def _lease(transport: Transport, namespace: Namespace, call: GetCall, found: Hold, deadline: float) -> None:
    """A lease is on whole blocks, so one chunk of one part is asked for: the answer stays small."""
    part = next(index for index, part in enumerate(namespace.spec.parts) if part.kind == "prefix")
    whole = namespace.plan((part,), None)
    first_chunk = whole.pieces[0].chunks[0]
    plan = namespace.plan((part,), (0, first_chunk[1] - first_chunk[0]))
    narrow = replace(call, keys=call.keys[: found.blocks * KEY_BYTES], plan=plan)
    transport.pin()
    number = 0
    try:
        reply = parsed(pb.GetReply(), transport.call(Op.GET, get_request(narrow), deadline))
        number, found.leased = reply.lease, reply.blocks
        found.blocks = min(found.blocks, reply.prefix_blocks)
    finally:
        if number:
            found._lease = (transport, number)
        else:
            transport.unpin()
