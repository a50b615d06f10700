"""LoRA adapters: vLLM's hashes cover an adapter's name and path, not its content, so the content is mixed in here."""

from __future__ import annotations

import logging
from typing import Any

from .options import Options
from .weights import digest_dir


class AdapterDigests:
    """Digest of each adapter, taken when it is first seen and kept while the engine runs."""

    def __init__(self, options: Options) -> None:
        self._mode, self._cache_dir = options.lora, options.digest_dir
        self._known: dict[tuple[int, str, str], bytes | None] = {}
        self._log = logging.getLogger("vllm.kvstore")

    def salt(self, lora: Any | None) -> bytes | None:
        """What to mix into the hashes: b"" without an adapter, None when requests of this adapter are not cached."""
        if lora is None:
            return b""
        name, path = str(getattr(lora, "lora_name", "")), str(getattr(lora, "lora_path", ""))
        if self._mode == "trust-name":
            return f"name:{name}:{path}".encode()
        key = (int(getattr(lora, "lora_int_id", 0)), name, path)
        if getattr(lora, "load_inplace", False):
            self._known[key] = None  # its content may change under the same name from now on
        if key not in self._known:
            self._known[key] = self._digest(name, path)
        return self._known[key]

    def _digest(self, name: str, path: str) -> bytes | None:
        if self._mode == "refuse":
            return None
        try:
            return b"content:" + digest_dir(path, self._cache_dir).encode()
        except Exception as error:  # whatever stops us from reading it: this adapter is not cached
            self._log.warning("kvstore: requests of adapter %r are not cached: %s", name, error)
            return None
