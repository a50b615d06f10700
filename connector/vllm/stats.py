"""Counters of the connector, as one plain dictionary that crosses processes and adds up."""

from __future__ import annotations

import threading
from typing import Any

# name: help. Values are numbers; with a label ("failed:checksum") there is one counter a label value.
COUNTERS: dict[str, str] = {
    "queries": "Requests looked up in the store",
    "query_tokens": "Tokens of requests looked up, beyond those cached in the engine",
    "hits": "Requests with a usable hit in the store",
    "hit_tokens": "Tokens promised from the store",
    "recomputed_tokens": "Tokens in the store that were computed instead, because loading them takes longer",
    "loads": "Loads finished, failed ones included",
    "loaded_tokens": "Tokens loaded from the store and verified",
    "loaded_bytes": "Bytes loaded from the store and verified",
    "offered_tokens": "Tokens that were to be saved: in the end the sum of saved, present and dropped ones",
    "saves": "Batches handed to the store",
    "saved_tokens": "Tokens stored",
    "saved_bytes": "Bytes stored",
    "present_tokens": "Tokens that were to be saved and that the store had already",
    "dropped_tokens": "Tokens not saved, by reason",
    "failed_tokens": "Tokens promised from the store that did not arrive, by reason; they are computed",
    "lookup_misses": "Lookups that ended in no usable answer, by reason",
    "hook_errors": "Exceptions caught in hooks, by hook",
    "hook_cpu_seconds": "CPU seconds spent inside the hooks of the connector",
    "breaker_opened": "Times that the circuit breaker opened, by half",
}
TIMES: dict[str, str] = {
    "lookup_seconds": "Lookup, from the request's arrival to the answer",
    "load_seconds": "Load, from the plan to the last verified byte in place",
    "save_seconds": "Save of one batch, from the copy to the store's acknowledgement",
}
GAUGES: dict[str, str] = {
    "breaker_state": "Circuit breaker by half: 0 closed, 1 half-open, 2 open",
    "namespace_open": "1 when the namespace is open on the node, 0 while not connected, -1 when caching is refused",
}
LABELS: dict[str, str] = {
    "dropped_tokens": "reason",
    "failed_tokens": "reason",
    "lookup_misses": "reason",
    "hook_errors": "hook",
    "breaker_opened": "half",
    "breaker_state": "half",
    "namespace_open": "half",
}
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
MAX_TIMES = 1000  # observations kept between two collections


def kind(name: str) -> str:
    """counter, time or gauge, of a key with or without label."""
    base = name.partition(":")[0]
    return "time" if base in TIMES else "gauge" if base in GAUGES else "counter"


class Recorder:
    """Thread-safe. ``take`` gives what came together since the last call, or None."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data: dict[str, Any] = {}
        self._gauges: dict[str, float] = {}
        self._totals: dict[str, float] = {}

    def add(self, name: str, value: float = 1, label: str | None = None) -> None:
        key = name if label is None else f"{name}:{label}"
        with self._lock:
            self._data[key] = self._data.get(key, 0) + value

    def time(self, name: str, seconds: float) -> None:
        with self._lock:
            seen = self._data.setdefault(name, [])
            if len(seen) < MAX_TIMES:
                seen.append(seconds)

    def total(self, name: str, value: float, label: str) -> None:
        """A counter that somebody else keeps: what it grew by is added."""
        key = f"{name}:{label}"
        grown = value - self._totals.get(key, 0)
        if grown:
            self._totals[key] = value
            self.add(name, grown, label)

    def gauge(self, name: str, value: float, label: str) -> None:
        """Reported when it changes."""
        key = f"{name}:{label}"
        with self._lock:
            if self._gauges.get(key) != value:
                self._gauges[key] = self._data[key] = value

    def take(self) -> dict[str, Any] | None:
        if not self._data:
            return None
        with self._lock:
            data, self._data = self._data, {}
        return data


def merge(into: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Counters add up, times are joined, of two gauges the worse one (breaker) or the lower one (namespace) stays."""
    for key, value in other.items():
        how = kind(key)
        if key not in into:
            into[key] = list(value) if how == "time" else value
        elif how == "time":
            into[key] = (into[key] + list(value))[:MAX_TIMES]
        elif how == "gauge":
            into[key] = max(into[key], value) if key.startswith("breaker") else min(into[key], value)
        else:
            into[key] += value
    return into


def summary(data: dict[str, Any]) -> dict[str, float | int | str]:
    """One line for the log: tokens, failures by reason, mean times in ms, breaker."""
    out: dict[str, float | int | str] = {}
    for key, value in sorted(data.items()):
        how = kind(key)
        if how == "time" and value:
            out[key.replace("_seconds", "_ms")] = round(1000 * sum(value) / len(value), 2)
        elif how == "gauge" and key.startswith("breaker"):
            out[key] = ("closed", "half-open", "open")[int(value)]
        elif how == "counter" and value:
            out[key] = round(value, 3)
    return out
