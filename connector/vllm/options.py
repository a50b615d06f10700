"""Options of the connector: the keys of ``kv_connector_extra_config``, checked at start."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvstore.core.errors import ConfigError

CHOICES: dict[str, tuple[str, ...]] = {
    "load": ("always", "auto", "never"),
    "load_mode": ("async", "sync"),
    "save": ("all", "prompt", "none"),
    "transport": ("auto", "shm", "tcp"),
    "lora": ("digest", "trust-name", "refuse"),
}


def _option(default: Any, doc: str, low: float | None = None, high: float | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


@dataclass(frozen=True, slots=True)
class Options:
    """Every option with its default. docs/vllm.md is checked against this class by a test."""

    target: str = _option("auto", "where the node is: auto, unix://PATH, kv://HOST:PORT or dns://NAME:PORT")
    transport: str = _option("auto", "shm, tcp, or auto (shm when the node is on this host)")
    tenant: str = _option("default", "tenant of the namespace; tenants never share blocks")
    load: str = _option("auto", "always, auto (only when faster than computing) or never")
    load_mode: str = _option("async", "async, or sync (loads inside the step; one cache group only)")
    save: str = _option("all", "all, prompt (no blocks of generated tokens) or none")
    min_hit_tokens: int = _option(64, "shorter hits are computed instead", 1)
    lookup_timeout_ms: float = _option(10.0, "how long a request may wait for its lookup before it is a miss", 0)
    load_timeout_s: float = _option(30.0, "hard bound of one load; what has not arrived is computed", 0.05)
    stall_timeout_s: float = _option(
        0.5, "bound of one transfer of a load or save; past it the node counts as down", 0.02
    )
    handoff_timeout_s: float = _option(2.0, "how long a decode request waits for the blocks its prefill announced", 0)
    lookup_valid_s: float = _option(5.0, "age at which a lookup that was not used yet is repeated", 0.1)
    staging_mib: int = _option(256, "memory for blocks on their way, for loads and saves each", 8)
    load_threads: int = _option(2, "loads in progress at once per worker", 1, 16)
    max_lookups: int = _option(256, "lookups waiting at once; more are misses", 1)
    weights_id: str = _option("", "name of the weights, instead of the digest of their files; you vouch for it")
    weights_generation: str = _option("", "generation of the weights, for weights that change in place")
    head_parts: int = _option(
        0, "cut KV heads into this many parts, so that TP sizes that divide it share blocks", 0, 64
    )
    lora: str = _option("digest", "digest (of the adapter's files), trust-name, or refuse (adapters are not cached)")
    multimodal: bool = _option(False, "cache requests with images or audio (identifiers given by users are trusted)")
    breaker_seconds: float = _option(1.0, "first pause after the node failed; doubles up to 30 s", 0.01)
    cache_dir: str = _option("", "where digests of weight files are kept (empty: ~/.cache/kvstore)")

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Options:
        """From ``kv_connector_extra_config``. Raises ConfigError naming the key and the nearest valid one."""
        known = {f.name: f for f in dataclasses.fields(cls)}
        for key in config:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
                raise ConfigError(f"kv_connector_extra_config: unknown key {key!r}{hint}", key=key)
        return cls(**{key: _checked(known[key], value) for key, value in config.items()})

    @property
    def digest_dir(self) -> str:
        return self.cache_dir or os.path.join(os.path.expanduser("~"), ".cache", "kvstore")


def _checked(spec: dataclasses.Field[Any], value: Any) -> Any:
    wanted = type(spec.default)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not wanted:
        raise ConfigError(
            f"kv_connector_extra_config: {spec.name} must be {wanted.__name__}, not {value!r}", key=spec.name
        )
    choices = CHOICES.get(spec.name)
    if choices and value not in choices:
        raise ConfigError(
            f"kv_connector_extra_config: {spec.name} must be one of {', '.join(choices)}, not {value!r}", key=spec.name
        )
    low, high = spec.metadata["low"], spec.metadata["high"]
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"{low} to {high}"
        raise ConfigError(f"kv_connector_extra_config: {spec.name} must be {bounds}, not {value!r}", key=spec.name)
    return value
