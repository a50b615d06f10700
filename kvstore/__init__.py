"""kvstore: a distributed KV-cache service for LLM inference. This is the public face of its SDK.

Importing it is cheap: what a name needs is imported when the name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from kvstore import errors

if TYPE_CHECKING:
    from kvstore.client.borrow import Borrow
    from kvstore.client.client import Client
    from kvstore.client.namespace import Namespace
    from kvstore.client.results import PrefetchResult, PutResult
    from kvstore.client.writer import Writer
    from kvstore.core.keys import Keys
    from kvstore.core.namespace import NamespaceSpec, PartSpec

__version__ = "0.1.0"
__all__ = [
    "Borrow",
    "Client",
    "Keys",
    "Namespace",
    "NamespaceSpec",
    "PartSpec",
    "PrefetchResult",
    "PutResult",
    "Writer",
    "__version__",
    "errors",
]
_HOMES = {
    "Borrow": "kvstore.client.borrow",
    "Client": "kvstore.client.client",
    "Keys": "kvstore.core.keys",
    "Namespace": "kvstore.client.namespace",
    "NamespaceSpec": "kvstore.core.namespace",
    "PartSpec": "kvstore.core.namespace",
    "PrefetchResult": "kvstore.client.results",
    "PutResult": "kvstore.client.results",
    "Writer": "kvstore.client.writer",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvstore' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
