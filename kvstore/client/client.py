"""The client: one link to a node, shared by its namespaces."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias

from kvstore.client.arguments import whole
from kvstore.client.choosing import TransportName
from kvstore.client.counters import Counters
from kvstore.client.link import Link
from kvstore.client.namespace import Namespace
from kvstore.client.router import Router
from kvstore.client.target import Target, client_target
from kvstore.core.errors import InvalidArgument, Unsupported
from kvstore.core.namespace import NamespaceSpec
from kvstore.transport.wire import Address

if TYPE_CHECKING:
    from kvstore.v1.control_pb2 import StatReply

OnFailure: TypeAlias = Literal["miss", "raise"]


class Client:
    """A cache client. Safe for threads; connects on first use, and again when the node comes back.

    ``target``: ``unix://PATH``, ``kv://HOST[:PORT]`` (several with commas, tried in order) or ``dns://NAME[:PORT]``;
    None and ``auto`` mean what the environment variable KVSTORE_TARGET says, as for the commands, and without it this
    user's node on this host. ``timeout``: seconds a call may take unless it says otherwise; past it
    the call is a miss. ``transport``: ``auto`` takes shared memory when the node is on this host's unix socket, over a
    network nixl or ucx where both sides have that and RDMA, else TCP.
    ``on_failure="raise"``: a node that is away, busy or late raises instead of being a miss. ``connections``: at
    most so many to the node at a time.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        timeout: float = 1.0,
        transport: TransportName = "auto",
        on_failure: OnFailure = "miss",
        connections: int = 4,
    ) -> None:
        if on_failure not in ("miss", "raise"):
            raise InvalidArgument(f"on_failure must be 'miss' or 'raise', not {on_failure!r}", field="on_failure")
        whole("connections", connections, least=1)
        self.timeout = _seconds(timeout)
        self.on_failure = on_failure
        self.counters_ = Counters()
        self.link = Link(client_target(target), transport, connections, self.counters_)
        self.router = Router(self._link_to(transport, connections))
        self._finalizer = weakref.finalize(self, _close, self.link, self.router)

    def _link_to(self, transport: TransportName, connections: int) -> Callable[[Address], Link]:
        """Makes links to further nodes of the cell. Nothing here may keep this Client alive."""
        counters = self.counters_

        def make(address: Address) -> Link:
            target = Target(f"kv://{address}", (address,))
            return Link(target, transport, connections, counters, spare=True)

        return make

    def __repr__(self) -> str:
        return f"Client({self.link.target.text!r})"

    def namespace(self, spec: NamespaceSpec, *, strict: bool = False, timeout: float | None = None) -> Namespace:
        """Opens a namespace. ``strict``: raise NamespaceMismatch when the same tenant and model are stored with other
        fields. When the node is away, the namespace opens itself as soon as it is back."""
        if not isinstance(spec, NamespaceSpec):
            raise InvalidArgument(f"spec must be a NamespaceSpec, not {type(spec).__name__}", field="spec")
        namespace = Namespace(self, spec, strict)
        namespace.open_now(self.deadline(timeout))
        return namespace

    @property
    def last_miss(self) -> str | None:
        """Reason of the latest miss of any thread (absent, pending, deadline, unavailable ...); None before one."""
        return self.counters_.last_miss

    def counters(self) -> dict[str, int]:
        """What this client did so far: blocks asked for, hits, misses by reason, puts by outcome, bytes, sessions."""
        return self.counters_.snapshot()

    def stat(self, *, timeout: float | None = None) -> StatReply:
        """What the node says of itself, over its control plane. Raises NotServed when it cannot be asked."""
        from kvstore.client.control import stat

        deadline = self.deadline(timeout)
        node = self.link.run(deadline, lambda transport: transport.node)
        if not node.control_address:
            raise Unsupported("the node runs without its control plane")
        return stat(node.control_address, deadline)

    def close(self) -> None:
        """Ends the session. Calls in progress end with Closed; borrowed views stay valid while they live."""
        self._finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- for namespaces ----------------------------------------------------------------------------------

    def deadline(self, timeout: float | None) -> float:
        """When a call that begins now must be over. Raises Closed, InvalidArgument."""
        self.link.check_open()
        return time.monotonic() + (self.timeout if timeout is None else _seconds(timeout))


def _close(link: Link, router: Router) -> None:
    link.close()
    router.close()


def _seconds(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InvalidArgument(f"timeout must be a positive number of seconds, not {timeout!r}", field="timeout")
    return float(min(timeout, 1e6))
