"""Loading the fabric libraries: they are extras, come in one build a CUDA version, and are slow to import."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
from functools import cache
from typing import Any

from kvstore.core.errors import Unsupported

_NIXL = ("nixl_cu12", "nixl_cu13", "nixl")
_UCX = ("ucxx",)
EXTRAS = {"nixl": _NIXL, "ucx": _UCX}


@cache
def installed(kind: str) -> str:
    """Name of the module that brings ``kind`` ("nixl" or "ucx"), without importing it; empty when there is none."""
    for name in EXTRAS[kind]:
        try:
            if importlib.util.find_spec(name) is not None:
                return name
        except (ImportError, ValueError):
            continue
    return ""


def load_nixl() -> Any:
    """NIXL's bindings. Raises Unsupported."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")  # what fails is raised; its log would go to the engine's stderr
    _bind_system_libraries()
    return _load("nixl", "._bindings")


def _bind_system_libraries() -> None:
    """Loads the system's RDMA libraries, if there are any, before NIXL makes the symbols of its own copies global.

    Bound to those, the system's libnl corrupts a list, and the process crashes at its exit.
    """
    for name in ("libnl-3.so.200", "libnl-route-3.so.200", "libibverbs.so.1"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)


def load_ucx() -> tuple[Any, Any]:
    """The interface of ucxx below its asyncio, and what it takes buffers as. Raises Unsupported."""
    before = {name: value for name, value in os.environ.items() if name.startswith("UCX_")}
    try:
        return _load("ucx", "._lib.libucxx"), _load("ucx", "._lib.arr").Array
    finally:  # it sets variables that are for GPUs, and would be for whatever else uses UCX in this process
        for name in [name for name in os.environ if name.startswith("UCX_") and name not in before]:
            del os.environ[name]


def _load(kind: str, module: str) -> Any:
    name = installed(kind)
    if not name:
        raise Unsupported(
            f"transport {kind!r} needs a library that is not installed here; pip install 'kvstore-llm[{kind}]'"
        )
    try:
        return importlib.import_module(name + module)
    except (ImportError, OSError) as error:
        raise Unsupported(f"transport {kind!r}: {name} cannot be loaded: {error}") from error


def forked(kind: str) -> Unsupported:
    """UCX has a thread of its own for each process, which a forked child lacks and does not start again."""
    return Unsupported(
        f"transport {kind!r} was used by the process that this one was forked from, and UCX does not survive a fork; "
        "start this process by spawn, or use transport='tcp' in it"
    )
