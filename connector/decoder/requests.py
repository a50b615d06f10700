"""What a caller asks of the engine, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvstore.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Sampling:
    """``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 keep the whole vocabulary. Seeded, so repeatable."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise InvalidArgument(
                f"temperature and top_k must be at least 0, top_p in (0, 1]: {self}", field="sampling"
            )


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to continue ``samples`` times, each until a ``stop`` id or ``max_new_tokens``."""

    tokens: tuple[int, ...]
    max_new_tokens: int = 64
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[int, ...] = ()
    samples: int = 1

    def __post_init__(self) -> None:
        if not self.tokens or self.max_new_tokens < 1 or self.samples < 1:
            raise InvalidArgument("a request needs tokens, and at least one new token and one sample", field="tokens")


@dataclass(slots=True)
class Result:
    """What became of a request. ``found + computed`` is the number of prompt tokens."""

    tokens: int  # of the prompt
    found: int = 0  # prompt tokens whose KV came from the service
    computed: int = 0  # prompt tokens counted inside attention
    first_token_seconds: float = 0.0  # since the request was submitted
    seconds: float = 0.0  # since the request was submitted, all samples done
    ids: list[list[int]] = field(default_factory=list)  # new tokens of each sample
    done: bool = False


@dataclass(frozen=True, slots=True)
class NewToken:
    """One token that a step of the engine brought forth."""

    request: int
    sample: int
    id: int
    result: Result


class Sampler:
    """Picks token ids from scores, for one sample of one request."""

    def __init__(self, sampling: Sampling, sample: int) -> None:
        self._sampling = sampling
        self._generator = torch.Generator().manual_seed(sampling.seed * 1_000_003 + sample)

    def __call__(self, logits: Tensor) -> int:
        """The next id from scores (vocabulary,)."""
        if self._sampling.temperature == 0:
            return int(logits.argmax())
        scores = self._top_p(self._top_k(logits / self._sampling.temperature))
        return int(torch.multinomial(torch.softmax(scores, dim=-1), 1, generator=self._generator))

    def _top_k(self, scores: Tensor) -> Tensor:
        if not 0 < self._sampling.top_k < len(scores):
            return scores
        least = scores.topk(self._sampling.top_k).values[-1]
        return scores.masked_fill(scores < least, float("-inf"))

    def _top_p(self, scores: Tensor) -> Tensor:
        """Keeps the fewest most likely ids that together reach top_p."""
        if self._sampling.top_p == 1:
            return scores
        ordered, ids = scores.sort(descending=True)
        shares = torch.softmax(ordered, dim=-1)
        dropped = shares.cumsum(dim=-1) - shares >= self._sampling.top_p
        return scores.masked_fill(torch.zeros_like(dropped).scatter(0, ids, dropped), float("-inf"))
