"""One half's connection to the store: opened in the background, kept, reopened; every call bounded."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from kvstore.core.errors import (
    Busy,
    ChecksumMismatch,
    DeadlineExceeded,
    InvalidArgument,
    KVStoreError,
    NamespaceMismatch,
    NoSpace,
    VersionMismatch,
)
from kvstore.core.namespace import NamespaceSpec

from .breaker import Breaker
from .options import Options

RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def reason_of(error: BaseException) -> str:
    """Short name for metrics: the SDK's, or ``error`` for what is not one of kvstore's errors."""
    from kvstore.client.counters import reason_of as sdk_reason

    return sdk_reason(error) if isinstance(error, KVStoreError) else "error"


def is_outage(error: BaseException) -> bool:
    """Whether the node is at fault as a whole, not this call."""
    return isinstance(error, KVStoreError) and not isinstance(error, (Busy, NoSpace, ChecksumMismatch, InvalidArgument))


class Link:
    """``namespace`` is the open namespace or None. Opening happens on a thread of its own and never ends a process."""

    def __init__(
        self,
        options: Options,
        breaker: Breaker,
        log: logging.Logger,
        make_client: Callable[[Options], Any] | None = None,
    ) -> None:
        self._options, self._breaker, self._log = options, breaker, log
        self._make_client = make_client or _client
        self._client: Any = None
        self._spec: NamespaceSpec | None = None
        self._ready = threading.Event()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._namespace: Any = None
        self.failing = False  # the last try to open failed: nobody needs to wait for the next one

    @property
    def namespace(self) -> Any:
        return self._namespace

    @property
    def spec(self) -> NamespaceSpec | None:
        return self._spec

    @property
    def client(self) -> Any:
        return self._client

    @property
    def node_id(self) -> bytes:
        """Of the node of the current session; empty without one."""
        session = getattr(getattr(self._client, "link", None), "_current", None)
        return bytes(getattr(getattr(session, "node", None), "node_id", b""))

    def open(self, spec: NamespaceSpec | None) -> None:
        """Makes ``spec`` the namespace (None: none). Returns at once."""
        with self._lock:
            self._spec, self._namespace, self.failing = spec, None, False
            self._ready.clear()
            if spec is None or self._closed:
                return
            self._wake.set()
            self._start()

    def prepare(self) -> None:
        """Imports and makes the client while no request waits for it: the first load after a start is not late then."""
        with self._lock:
            if not self._closed:
                self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kvstore-open", daemon=True)
            self._thread.start()

    def wait(self, timeout: float) -> Any:
        """The namespace, after at most ``timeout`` seconds; None when it is not open by then."""
        if self._namespace is None and self._spec is not None and timeout > 0:
            self._ready.wait(timeout)
        return self._namespace

    def close(self) -> None:
        with self._lock:
            self._closed, self._namespace = True, None
            self._wake.set()
        if self._thread is not None:
            self._thread.join(2.0)
        with contextlib.suppress(Exception):
            if self._client is not None:
                self._client.close()

    def _run(self) -> None:
        attempt = 0
        while not self._closed:
            spec = self._spec
            if spec is None or self._namespace is not None:
                self._make_early()
                self._wake.wait()
                self._wake.clear()
                attempt = 0
                continue
            if not self._try(spec, attempt):
                self._wake.wait(RETRY_S[min(attempt, len(RETRY_S) - 1)])
                self._wake.clear()
                attempt += 1

    def _make_early(self) -> None:
        try:
            if self._client is None:
                self._client = self._make_client(self._options)
        except Exception as error:  # tried again, and told, when there is a namespace to open
            self._log.debug("kvstore: no client yet: %s", error)

    def _try(self, spec: NamespaceSpec, attempt: int) -> bool:
        try:
            if self._client is None:
                self._client = self._make_client(self._options)
            namespace = self._client.namespace(spec)
        except (NamespaceMismatch, VersionMismatch) as error:
            self._tell(attempt, "refuses this engine", error)
            return False
        except Exception as error:  # whatever it is, the engine runs without a cache meanwhile
            self._tell(attempt, "is not reachable yet", error)
            return False
        with self._lock:
            if self._spec is not spec or self._closed:
                return False
            self._namespace, self.failing = namespace, False
            self._ready.set()
        self._breaker.success()
        self._log.info("kvstore: namespace %s open at %s", spec.root.hex(), self._options.target)
        explain(self._log, namespace, spec)
        return True

    def _tell(self, attempt: int, what: str, error: Exception) -> None:
        self.failing = True
        if attempt == 0 or attempt % 60 == 0:
            self._log.warning(
                "kvstore: the node at %s %s: %s; running without a cache", self._options.target, what, error
            )


def explain(log: logging.Logger, namespace: Any, spec: NamespaceSpec) -> None:
    """Which field differs when an engine of the same model stored other blocks. The node tells it once, to whoever
    opens a new namespace first: that may be either half."""
    differs = [str(name) for name in getattr(namespace, "differs", ()) or ()]
    if differs:
        nearest = getattr(namespace, "nearest_root", b"") or b""
        log.warning(
            "kvstore: the node holds no blocks of this engine's namespace; the nearest one of %s (%s) differs in: "
            "%s. Blocks stored there cannot be used here, so expect no hits until this engine has stored its own",
            spec.model, bytes(nearest).hex(), ", ".join(differs),
        )  # fmt: skip


def _client(options: Options) -> Any:
    from kvstore import Client
    from kvstore.client.counters import Reporter

    class ButForNamespaces(Reporter):
        """Which field differs is told by :func:`explain`, in the engine's log and once."""

        def warn(self, kind: str, text: str) -> None:
            if not kind.startswith("differs "):
                super().warn(kind, text)

    client = Client(
        options.target,
        timeout=options.stall_timeout_s,
        transport=options.transport,  # type: ignore[arg-type]
        on_failure="raise",
    )
    client.link.reporter = ButForNamespaces()
    return client


class Timer:
    """Remaining time of a bounded piece of work."""

    def __init__(self, seconds: float) -> None:
        self.start = time.monotonic()
        self.end = self.start + seconds

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    @property
    def passed(self) -> float:
        return time.monotonic() - self.start

    def check(self) -> float:
        """Seconds left. Raises DeadlineExceeded."""
        left = self.left
        if left <= 0:
            raise DeadlineExceeded(f"{self.passed:.2f} s passed")
        return left
