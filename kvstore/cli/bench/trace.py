"""Request traces in the format of Mooncake's published ones: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvstore.core.errors import InvalidArgument
from kvstore.core.keys import KeyArray

BLOCK_TOKENS = 512  # what one hash id of these traces stands for


@dataclass(frozen=True, slots=True)
class Request:
    """One request: seconds since the start, prompt length, and the keys of its full blocks, shape (n, 2)."""

    seconds: float
    tokens: int
    keys: KeyArray


def load_trace(path: Path) -> list[Request]:
    """Reads lines ``{"timestamp": ms, "input_length": tokens, "hash_ids": [...]}``.

    Raises InvalidArgument naming the line.
    """
    requests = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                full = entry["input_length"] // BLOCK_TOKENS
                ids = np.array(entry["hash_ids"][:full], np.uint64)
                requests.append(Request(entry["timestamp"] / 1000, entry["input_length"], trace_keys(ids)))
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidArgument(f"{path}, line {number}: not a trace entry: {error!r}", line=number) from error
    return requests


def trace_keys(ids: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> KeyArray:
    """Keys of hash ids (which already name a block with all before it): spread over 128 bits as real keys are."""
    low = (ids + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    low = (low ^ (low >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    low = (low ^ (low >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.stack((low ^ (low >> np.uint64(31)), ids), axis=1)
