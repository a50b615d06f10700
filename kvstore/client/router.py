"""The nodes that a client reaches beside its home node: a link to each, kept while it is of use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from kvstore.client.crew import Crew
from kvstore.client.link import Link
from kvstore.client.recent import Recent
from kvstore.client.target import address_of
from kvstore.core.errors import InvalidArgument
from kvstore.transport.base import Transport
from kvstore.transport.tcp import TcpTransport
from kvstore.transport.wire import Address

_KEPT = 256  # a cell has at most as many nodes


class Router:
    """Safe for threads. ``make`` makes the link to an address. Like a Link it holds no reference to the Client."""

    def __init__(self, make: Callable[[Address], Link]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._links: OrderedDict[str, Link] = OrderedDict()
        self._closed = False
        self.crew = Crew()
        self.recent = Recent()

    def serves(self, home: Transport) -> bool:
        """Whether this client goes itself to the nodes that have its blocks. Else its home node does that for it: one
        on the same machine, alone, of an older version, or that does not answer with the bytes themselves."""
        return isinstance(home, TcpTransport) and not home.address.local and home.hello.routes

    def link(self, address: str) -> Link | None:
        """The link to the node at "host:port"; None: nobody could be reached there."""
        with self._lock:
            found = self._links.get(address)
            if found is not None:
                self._links.move_to_end(address)
                return found
            try:
                made = self._make(address_of(address))
            except InvalidArgument:
                return None
            if self._closed:
                made.close()
            self._links[address] = made
            former = self._links.popitem(last=False)[1] if len(self._links) > _KEPT else None
        if former is not None:
            former.close()
        return made

    def close(self) -> None:
        """Ends all sessions."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
        for link in links:
            link.close()
        self.crew.close()
