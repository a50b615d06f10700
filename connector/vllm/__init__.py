"""vLLM's KV connector for kvstore (docs/vllm.md).

``--kv-transfer-config '{"kv_connector": "KVStoreConnector", "kv_role": "kv_both"}'`` finds it through the
``vllm.general_plugins`` entry point; with ``"kv_connector_module_path": "kvstore.connector.vllm"`` it is found
without. Importing this package imports neither vLLM nor torch; naming the class does.
"""

from __future__ import annotations

from typing import Any

NAME = "KVStoreConnector"
__all__ = ["NAME", "register"]


def register() -> None:
    """Entry point ``vllm.general_plugins``: makes the name known to vLLM's factory. Called in every process."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(NAME, "kvstore.connector.vllm.adapter", NAME)


def __getattr__(name: str) -> Any:
    if name == NAME:
        from kvstore.connector.vllm.adapter import KVStoreConnector

        return KVStoreConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
