"""A namespace as its users see it: keys, match, get, put, borrow, evict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from kvstore.client import keeping, prefetching, putting, reading
from kvstore.client.arguments import chosen_parts, fitting, hints_of, whole
from kvstore.client.arguments import span as checked_span
from kvstore.client.borrow import Borrow
from kvstore.client.buffers import rows
from kvstore.client.counters import reason_of
from kvstore.client.link import Link
from kvstore.client.results import PrefetchResult, PutResult
from kvstore.client.writer import Writer
from kvstore.core.errors import (
    InternalError,
    InvalidArgument,
    KVStoreError,
    NotServed,
    ProtocolError,
    TooManyKeys,
    UnknownNamespace,
)
from kvstore.core.keys import KEY_BYTES, Keys, Tokens, chain_keys, hashed_keys
from kvstore.core.namespace import NamespaceSpec
from kvstore.transport.base import Transport
from kvstore.transport.batch import GetCall, GetResult, PutCall
from kvstore.transport.plan import Plan, make_plan
from kvstore.v1 import types_pb2

if TYPE_CHECKING:
    from kvstore.client.client import Client

T = TypeVar("T")
Ack: TypeAlias = Literal["visible", "replicated", "durable"]
Parts: TypeAlias = "Sequence[str | int] | None"
Span: TypeAlias = "tuple[int, int] | None"
AnyKeys: TypeAlias = "Keys | bytes | Iterable[bytes]"
_ACKS = {
    "visible": types_pb2.ACK_LEVEL_VISIBLE,
    "replicated": types_pb2.ACK_LEVEL_REPLICATED,
    "durable": types_pb2.ACK_LEVEL_DURABLE,
}


class Namespace:
    """Blocks of one :class:`NamespaceSpec` on the client's node. Made by ``Client.namespace``; safe for threads.

    Arguments of all calls: ``keys`` is a chain from block 0; ``first`` the first block to move (the ones before it
    are only looked up, which keeps them from being evicted); ``parts`` names or indexes, None for all; ``range`` an
    ``(offset, length)`` in each part on chunk borders; ``request_id`` ties the lookups and puts of one request of
    the engine together; ``timeout`` seconds, None for the client's. Wrong arguments raise; a node that is away, busy
    or late is a miss (unless the client was made with ``on_failure="raise"``).
    """

    def __init__(self, client: Client, spec: NamespaceSpec, strict: bool = False) -> None:
        self.client = client
        self.spec = spec
        self.root = spec.root
        self.differs: tuple[str, ...] = ()  # fields in which the nearest stored namespace differed when it was opened
        self.nearest_root = b""
        self._canonical = spec.canonical()
        self._strict = strict
        self._plans: dict[tuple[tuple[int, ...], Span], Plan] = {}
        self._names = {part.name: index for index, part in enumerate(spec.parts)}

    def __repr__(self) -> str:
        return f"Namespace({self.spec.model!r}, root {self.root.hex()[:8]}, {self.client!r})"

    # --- keys --------------------------------------------------------------------------------------------

    def keys(self, token_ids: Tokens) -> Keys:
        """Keys of the full blocks of a token sequence, in order."""
        return Keys(chain_keys(self.root, token_ids, self.spec.block_tokens))

    def keys_from_hashes(self, hashes: Iterable[bytes]) -> Keys:
        """Keys for blocks that an engine hashed itself (chained hashes, in order)."""
        return Keys(hashed_keys(self.root, hashes))

    # --- lookups -----------------------------------------------------------------------------------------

    def match(self, keys: AnyKeys, *, parts: Parts = None, request_id: int = 0, timeout: float | None = None) -> int:
        """Length of the longest cached prefix, in blocks. Holds nothing: a get may find less a moment later."""
        chain, plan, deadline = Keys.of(keys), self.plan(parts, None), self.client.deadline(timeout)
        request_id = fitting("request_id", request_id)

        def action(transport: Transport, handle: int) -> GetResult:
            return reading.match(self, transport, GetCall(handle, chain.raw, 0, plan, request_id), deadline)

        return self._looked_up("match", len(chain), 0, deadline, action).blocks

    def get(
        self,
        keys: AnyKeys,
        into: object,
        *,
        first: int = 0,
        parts: Parts = None,
        range: Span = None,
        request_id: int = 0,
        holes: set[tuple[int, int]] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Fills ``into`` with the longest cached prefix and returns its length, counted from block 0.

        ``into``: one writable buffer a block (or a (block, part)) for blocks ``first`` to the end, or one buffer for
        all of them. Bytes are checked; buffers of blocks past the returned length may have been written to.
        ``holes``: gets (block, position of the part) of window and state parts that are not here; their buffers are
        left alone.
        """
        chain, plan, deadline = self._chain(keys, first), self.plan(parts, range), self.client.deadline(timeout)
        request_id, targets = fitting("request_id", request_id), rows(into, len(chain) - first, plan, writable=True)

        def action(transport: Transport, handle: int) -> GetResult:
            return reading.get(self, transport, GetCall(handle, chain.raw, first, plan, request_id), targets, deadline)

        result = self._looked_up("get", len(chain), first, deadline, action)
        self.client.counters_.add("get_bytes", max(0, result.blocks - first) * plan.block_bytes)
        self._drop_damaged(chain, result)
        if holes is not None:
            holes.update(result.holes)
        return result.blocks

    def borrow(
        self,
        keys: AnyKeys,
        *,
        first: int = 0,
        parts: Parts = None,
        range: Span = None,
        request_id: int = 0,
        timeout: float | None = None,
    ) -> Borrow:
        """``with ns.borrow(keys) as views:`` gives read-only memoryviews of the longest cached prefix from block
        ``first`` on, one a (block, part), block-major; empty where a window or state part is not here. By shared
        memory they lie in the node's own memory, which is pinned until the ``with`` block has ended and no view (or
        array made from one) lives any more; the prefix ends where the node's bound on what a session leases is reached.
        A forked child does not inherit that memory: touching a view there ends it with SIGSEGV. Copy before the fork.
        """
        self.client.link.check_open()
        chain, plan = self._chain(keys, first), self.plan(parts, range)
        return Borrow(self, chain, first, plan, request_id, timeout)

    def prefetch(
        self,
        keys: AnyKeys,
        tier: str = "dram",
        deadline: float | None = None,
        *,
        parts: Parts = None,
        timeout: float | None = None,
    ) -> PrefetchResult:
        """Starts bringing blocks of a chain to a tier ahead of their use, and does not wait for them; what is on its
        way already is joined. What has not started after ``deadline`` seconds (None: no bound), or when this client
        goes, is dropped. Raises Unsupported for a tier that the node cannot fill."""
        return prefetching.prefetch(self, keys, tier, deadline, parts, timeout)

    # --- puts --------------------------------------------------------------------------------------------

    def put(
        self,
        keys: AnyKeys,
        blocks: object,
        *,
        first: int = 0,
        parts: Parts = None,
        range: Span = None,
        ack: Ack = "visible",
        request_id: int = 0,
        importance: Sequence[int] | None = None,
        appended_tokens: int = 0,
        timeout: float | None = None,
    ) -> PutResult:
        """Stores blocks ``first`` to the end of a chain; those that are there already are skipped.

        ``blocks``: one buffer a block (or a (block, part)), or one for all of them. ``importance``: 0 to 65535 a
        block, attention mass. ``appended_tokens``: how many tokens this request adds after its known prefix so far.
        ``ack``: when it returns: blocks can be read (visible), are on NVMe (durable), or on as many nodes as are to
        hold them (replicated); what is not so in time is there, but counts as failed. Blocks that are written a range
        at a time go through :meth:`writer`.
        """
        chain, plan, deadline = self._chain(keys, first), self.plan(parts, range), self.client.deadline(timeout)
        if not plan.whole:
            raise InvalidArgument(
                "put stores whole parts; use ns.writer(keys) to write them a range at a time", field="range"
            )
        sources = rows(blocks, len(chain) - first, plan, writable=False)
        call = self._put_call(chain, first, plan, ack, request_id, importance, appended_tokens)
        result = putting.put(self, call, chain.raw, sources, deadline)
        self._count_put(result, plan)
        return result

    def writer(
        self,
        keys: AnyKeys,
        *,
        first: int = 0,
        parts: Parts = None,
        ack: Ack = "visible",
        request_id: int = 0,
        importance: Sequence[int] | None = None,
        appended_tokens: int = 0,
        timeout: float | None = None,
    ) -> Writer:
        """``with ns.writer(keys) as w: w.write((offset, length), buffers)`` stores blocks a range (a layer) at a
        time. They become visible together when the ``with`` block ends, and not at all when it raises."""
        self.client.link.check_open()
        chain, plan = self._chain(keys, first), self.plan(parts, None)
        call = self._put_call(chain, first, plan, ack, request_id, importance, appended_tokens)
        return Writer(self, call, chain.raw, parts, timeout)

    def evict(self, keys: AnyKeys, *, timeout: float | None = None) -> int:
        """Drops blocks, and with an inner block all that follow it in its chains. How many were dropped."""
        chain, deadline = Keys.of(keys), self.client.deadline(timeout)
        if not len(chain):
            return 0
        reply = self.served(deadline, lambda transport, handle: transport.evict(handle, chain.raw, deadline))
        return 0 if isinstance(reply, str) else reply.evicted

    # --- keeping and voiding -----------------------------------------------------------------------------

    def pin(self, keys: AnyKeys, *, hard: bool = False, ttl: float | None = None, timeout: float | None = None) -> int:
        """Keeps blocks: they are the last to be evicted or, ``hard``, never are. How many are pinned now.

        ``ttl``: seconds until the pin ends by itself, None for good. For a hard pin ``keys`` is a chain from block 0. A
        later call changes kind and time. Raises NoSpace when hard pins would take more bytes than the node allows, and
        sets none then. Eviction by name, purge and drop win over pins. A restart of the node keeps them.
        """
        return keeping.pin(self, keys, hard, ttl, timeout)

    def unpin(self, keys: AnyKeys, *, timeout: float | None = None) -> int:
        """Lifts pins; how many. A block that hard-pinned blocks hang on keeps its own."""
        return keeping.unpin(self, keys, timeout)

    def rotate(self, *, timeout: float | None = None) -> int:
        """Voids all that the namespace holds on the node and all others of its cell, as after new weights: from when
        this returns nothing old is found, and puts begun before are lost. The log names nodes that were not reached:
        they void it when they hear of it. The new generation. Raises NotServed whatever ``on_failure`` says."""
        return keeping.rotate(self, timeout)

    # --- inside ------------------------------------------------------------------------------------------

    def plan(self, parts: Parts, span: Span) -> Plan:
        """What a call with these parts and this range moves. Raises InvalidArgument, MisalignedRange."""
        if parts is None and span is None:
            chosen: tuple[int, ...] = ()
        else:
            chosen = chosen_parts(parts, self._names)
            span = checked_span(span)
        plan = self._plans.get((chosen, span))
        if plan is None:
            plan = make_plan(self.spec.parts, chosen, span)
            if len(self._plans) < 1024:
                self._plans[chosen, span] = plan
        return plan

    def _chain(self, keys: AnyKeys, first: int) -> Keys:
        chain, first = Keys.of(keys), whole("first", first)
        if first > len(chain):
            raise InvalidArgument(f"first is {first}, the chain has {len(chain)} blocks", field="first")
        return chain

    def _put_call(
        self,
        chain: Keys,
        first: int,
        plan: Plan,
        ack: str,
        request_id: int,
        importance: Sequence[int] | None,
        appended_tokens: int,
    ) -> PutCall:
        if ack not in _ACKS:
            raise InvalidArgument(f"ack must be one of {', '.join(_ACKS)}, not {ack!r}", field="ack")
        most = self.client.link.bounds()[0]
        if len(chain) > most:  # no lookup could ever name it
            raise TooManyKeys(
                f"the chain has {len(chain)} blocks, this node accepts {most} keys", got=len(chain), want=most
            )
        fitting("request_id", request_id), fitting("appended_tokens", appended_tokens, 32)
        raw, at = chain.raw, first * KEY_BYTES
        hints = hints_of(importance, len(chain) - first)
        parent = raw[at - KEY_BYTES : at] if first else b""
        return PutCall(0, raw[at:], parent, first, plan, request_id, hints, _ACKS[ack], appended_tokens)

    def _count_put(self, result: PutResult, plan: Plan) -> None:
        counters = self.client.counters_
        for name, count in (("stored", result.stored), ("present", result.present), ("pending", result.pending)):
            if count:
                counters.add(f"put_{name}", count)
        if result.stored:
            counters.add("put_bytes", result.stored * plan.block_bytes)
        for reason, count in result.reasons.items():
            counters.add(f"put_failed.{reason}", count)

    def _looked_up(
        self, op: str, asked: int, first: int, deadline: float, action: Callable[[Transport, int], GetResult]
    ) -> GetResult:
        if first >= asked:
            return GetResult(asked, False, "")
        result = self.served(deadline, action)
        if isinstance(result, str):
            result = GetResult(0, False, result)
        self.client.counters_.lookup(op, asked - first, max(0, result.blocks - first), result.miss)
        return result

    def _drop_damaged(self, chain: Keys, result: GetResult) -> None:
        """A block that failed its check must not be offered again."""
        if result.bad < 0:
            return
        key = chain[result.bad]
        self.client.link.reporter.warn("checksum", f"block {key.hex()} failed its check and is dropped; a miss")
        deadline = self.client.deadline(None)
        self.served(deadline, lambda transport, handle: transport.evict(handle, key, deadline), quiet=True)

    def served(
        self, deadline: float, action: Callable[[Transport, int], T], *, quiet: bool = False, link: Link | None = None
    ) -> T | str:
        """Runs an action with the namespace's handle. When the node does not serve it, the reason (a str). ``link``: to
        another node than the client's own; its failures are not the caller's."""
        way = link or self.client.link
        try:
            home = way is self.client.link
            return way.run(deadline, lambda transport: self.with_handle(transport, deadline, action, home))
        except (NotServed, InternalError, ProtocolError) as error:
            return self._not_served(error, quiet or way is not self.client.link)

    def attempt(self, step: Callable[[], T]) -> T | str:
        """Runs a step of something begun in a session; when that is lost or late, the reason (a str)."""
        self.client.link.check_open()
        try:
            return step()
        except (NotServed, InternalError, ProtocolError) as error:
            self.client.link.check_open()
            return self._not_served(error, quiet=False)

    def open_now(self, deadline: float) -> None:
        """Opens the namespace ahead of its first use; when that is not served, later calls try again."""
        try:
            self.client.link.run(deadline, lambda transport: self.open(transport, deadline))
        except (NotServed, InternalError, ProtocolError) as error:
            self._not_served(error, quiet=False)

    def _not_served(self, error: KVStoreError, quiet: bool) -> str:
        if self.client.on_failure == "raise" and not quiet:
            raise error
        reason = reason_of(error)
        if reason == "namespaces_full":
            self.client.link.reporter.warn(reason, f"no cache for model {self.spec.model!r}: {error}")
        return reason

    def with_handle(
        self, transport: Transport, deadline: float, action: Callable[[Transport, int], T], home: bool = True
    ) -> T:
        """Runs an action with the namespace's handle in a session, opening it first where need be."""
        handle = transport.handles.get(self.root)
        if handle is not None:
            try:
                return action(transport, handle)
            except UnknownNamespace:  # dropped meanwhile: a put creates it anew
                transport.handles.pop(self.root, None)
        return action(transport, self.open(transport, deadline, home))

    def open(self, transport: Transport, deadline: float, home: bool = True) -> int:
        """Opens the namespace in a session; its handle there. What other nodes (not ``home``) have beside it says
        nothing to its user."""
        reply = transport.open_namespace(self._canonical, self.root, home and self._strict, deadline)
        if not home:
            return reply.handle
        self.differs, self.nearest_root = tuple(reply.differs), bytes(reply.nearest_root)
        if reply.created and reply.differs:
            self.client.link.reporter.warn(
                f"differs {self.root.hex()}",
                f"namespace {self.root.hex()[:8]} of model {self.spec.model!r} is new; the nearest one stored "
                f"({reply.nearest_root.hex()[:8]}) differs in {', '.join(reply.differs)}: its blocks are no hits here",
            )
        return reply.handle
