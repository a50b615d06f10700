"""The connections (lanes) of one session: a caller takes one, uses it alone, gives it back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvstore.core.errors import DeadlineExceeded, Unavailable
from kvstore.transport.cancel import current
from kvstore.transport.wire import Wire


class WirePool:
    """At most ``limit`` connections; ``open_wire(deadline)`` makes a further one."""

    def __init__(self, first: Wire, open_wire: Callable[[float], Wire], limit: int) -> None:
        self._open_wire = open_wire
        self._limit = limit
        self._idle = [first]
        self._all = {first}
        self._aside: list[Wire] = []  # whose reply is overdue; they count for no one
        self._answered = 0.0
        self._opening = 0
        self._closed = False
        self._changed = threading.Condition(threading.Lock())

    def take(self, deadline: float) -> Wire:
        """An idle connection, a new one, or the next that is given back. Raises DeadlineExceeded, Unavailable."""
        wire, cancel = self._take(deadline), current()
        if cancel is not None:
            cancel.using(wire)
        return wire

    def _take(self, deadline: float) -> Wire:
        with self._changed:
            while not self._idle:
                if self._closed:
                    raise Unavailable("the session was closed")
                if len(self._all) + self._opening < self._limit:
                    self._opening += 1
                    break
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and not self._idle:
                    raise DeadlineExceeded(f"all {self._limit} connections were busy until the deadline")
            else:
                if self._closed:
                    raise Unavailable("the session was closed")
                return self._idle.pop()
        return self._opened(deadline)

    def take_idle(self) -> Wire | None:
        """An idle connection, without waiting."""
        with self._changed:
            return self._idle.pop() if self._idle and not self._closed else None

    def _opened(self, deadline: float) -> Wire:
        wire: Wire | None = None
        try:
            wire = self._open_wire(deadline)
        finally:
            with self._changed:
                self._opening -= 1
                if wire is not None:
                    self._all.add(wire)
                self._changed.notify()
        if self._closed:
            wire.close()
            raise Unavailable("the session was closed")
        return wire

    def give(self, wire: Wire) -> bool:
        """Gives a connection back; a broken one is closed. Whether any connection is left."""
        cancel = current()
        if cancel is not None:
            cancel.using(None)
        with self._changed:
            self._answered = max(self._answered, wire.last_used)
            if wire.broken or self._closed:
                self._all.discard(wire)
                wire.close()
            else:
                self._idle.append(wire)
            self._changed.notify()
            return bool(self._all)

    def set_aside(self, wire: Wire) -> bool:
        """Keeps a connection whose reply is overdue until it has come. False: there are too many such."""
        cancel = current()
        if cancel is not None:
            cancel.using(None)
        with self._changed:
            if self._closed or len(self._aside) >= self._limit:
                return False
            self._answered = max(self._answered, wire.last_used)
            self._all.discard(wire)
            self._aside.append(wire)
            self._changed.notify()
            return True

    def overdue(self) -> list[Wire]:
        """The connections that were set aside, for their replies to be read. All of them come back by :meth:`set_aside`
        or :meth:`take_back`."""
        with self._changed:
            aside, self._aside = self._aside, []
            return aside

    def take_back(self, wire: Wire) -> None:
        """The overdue reply has come, or never will."""
        with self._changed:
            self._answered = max(self._answered, wire.last_used)
            if wire.broken or self._closed or len(self._all) + self._opening >= self._limit:
                wire.close()
            else:
                self._all.add(wire)
                self._idle.append(wire)
                self._changed.notify()

    def close(self, *, interrupt: bool) -> list[Wire]:
        """No further calls; returns the idle connections for a last word, the caller closes them.

        ``interrupt``: calls in progress end with Unavailable, else they finish and their connection closes then.
        """
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            aside, self._aside = self._aside, []
            busy = self._all.difference(idle)
            self._all = busy if not interrupt else set()
            self._changed.notify_all()
        for wire in busy if interrupt else ():
            wire.interrupt()
        for wire in aside:
            wire.close()
        return idle

    @property
    def waits(self) -> bool:
        """Whether a reply is overdue."""
        return bool(self._aside)

    @property
    def last_used(self) -> float:
        """When a connection was last answered (``time.monotonic()``)."""
        with self._changed:
            return max((wire.last_used for wire in self._all), default=self._answered)

    @property
    def answered(self) -> float:
        """When any connection was last answered, also one that is gone (``time.monotonic()``)."""
        return max(self._answered, self.last_used)
