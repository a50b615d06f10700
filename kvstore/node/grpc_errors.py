"""Typed errors over gRPC: a status code, a text, and ``kvstore.v1.Error`` in the trailing metadata."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import grpc

from kvstore.core import errors
from kvstore.core.errors import InternalError, KVStoreError
from kvstore.node.metrics import NodeMetrics
from kvstore.node.replies import code_name
from kvstore.transport.wire_error import encode_error

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
ERROR_METADATA = "kvstore-error-bin"
_STATUS: tuple[tuple[type[KVStoreError], grpc.StatusCode], ...] = (  # first match counts: special before general
    (errors.UnknownNamespace, grpc.StatusCode.NOT_FOUND),
    (errors.NamespaceMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Unsupported, grpc.StatusCode.UNIMPLEMENTED),
    (errors.ProtocolError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Busy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.NoSpace, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.ChecksumMismatch, grpc.StatusCode.DATA_LOSS),
    (errors.NotServed, grpc.StatusCode.UNAVAILABLE),
    (errors.Closed, grpc.StatusCode.UNAVAILABLE),
)


def status_of(error: BaseException) -> grpc.StatusCode:
    """The gRPC status code of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def unary(metrics: NodeMetrics, name: str, run: Callable[[Any, grpc.ServicerContext], _T]) -> Callable[..., _T]:
    """A servicer method that counts calls and turns errors into typed status."""

    def call(request: Any, context: grpc.ServicerContext) -> _T:
        metrics.count("control", name)
        began = time.monotonic()
        try:
            return run(request, context)
        except Exception as error:
            _abort(metrics, name, error, context)
        finally:
            metrics.control(name, time.monotonic() - began)

    return call


def streaming(
    metrics: NodeMetrics, name: str, run: Callable[[Any, grpc.ServicerContext], Iterator[_T]]
) -> Callable[..., Iterator[_T]]:
    """The same for methods that answer with a stream."""

    def call(request: Any, context: grpc.ServicerContext) -> Iterator[_T]:
        metrics.count("control", name)
        began = time.monotonic()
        try:
            yield from run(request, context)
        except Exception as error:
            _abort(metrics, name, error, context)
        finally:
            metrics.control(name, time.monotonic() - began)

    return call


def _abort(metrics: NodeMetrics, name: str, error: Exception, context: grpc.ServicerContext) -> NoReturn:
    if not context.is_active():
        raise error  # the caller is gone, there is nobody to tell
    metrics.error(code_name(error), error)
    if not isinstance(error, KVStoreError):
        _log.error("%s failed", name, exc_info=error)
        error = InternalError(f"internal error ({type(error).__name__}); the node's log has the details")
    context.set_trailing_metadata(((ERROR_METADATA, encode_error(error)),))
    context.abort(status_of(error), error.message)
    raise AssertionError("abort raises")


class Patience:
    """Cancels a streaming call whose peer has stalled for ``seconds``, so that it cannot hold slots for ever."""

    def __init__(self, context: grpc.ServicerContext, seconds: float) -> None:
        self._context = context
        self._seconds = seconds
        self._moved = time.monotonic()
        self._over = threading.Event()

    def moved(self) -> None:
        """The peer took or sent something."""
        self._moved = time.monotonic()

    def __enter__(self) -> Patience:
        threading.Thread(target=self._watch, name="patience", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        left = self._seconds
        while not self._over.wait(left):
            left = self._moved + self._seconds - time.monotonic()
            if left <= 0:
                self._context.cancel()
                return
