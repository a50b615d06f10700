"""Load or recompute: by measured rates."""

from __future__ import annotations

from dataclasses import dataclass, field

LEAST_SAMPLES = 2
TRY_ANYWAY = 16  # one refusal in so many is loaded all the same, so that the measurement stays fresh


@dataclass(slots=True)
class Average:
    """Exponential average, weight 1/4 for the newest sample."""

    value: float = 0.0
    samples: int = 0

    def add(self, sample: float) -> None:
        self.value = sample if not self.samples else self.value + (sample - self.value) / 4
        self.samples += 1


@dataclass(slots=True)
class Rates:
    """Prefill and transfer in tokens a second, and what a load costs whatever its size, in seconds."""

    prefill: Average = field(default_factory=Average)
    transfer: Average = field(default_factory=Average)
    overhead_s: Average = field(default_factory=Average)
    _refused: int = 0

    def prefilled(self, tokens: int, seconds: float) -> None:
        """A step computed so many prompt tokens. Small steps say nothing about the rate."""
        if tokens >= 64 and seconds > 0:
            self.prefill.add(tokens / seconds)

    def loaded(self, tokens: int, transfer_s: float, total_s: float) -> None:
        """A load took ``transfer_s`` for the bytes, ``total_s`` from the plan to its end."""
        if tokens > 0 and transfer_s > 0:
            self.transfer.add(tokens / transfer_s)
            self.overhead_s.add(max(0.0, total_s - transfer_s))

    def load_seconds(self, tokens: int) -> float | None:
        if self.transfer.samples < LEAST_SAMPLES:
            return None
        return self.overhead_s.value + tokens / self.transfer.value

    def prefill_seconds(self, tokens: int) -> float | None:
        if self.prefill.samples < LEAST_SAMPLES:
            return None
        return tokens / self.prefill.value

    def worth_loading(self, tokens: int) -> bool:
        """True until both rates are known; then when the load is expected to take less time."""
        load, prefill = self.load_seconds(tokens), self.prefill_seconds(tokens)
        if load is None or prefill is None or load < prefill:
            return True
        self._refused += 1
        return self._refused % TRY_ANYWAY == 0
