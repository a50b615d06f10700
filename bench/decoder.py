"""The decoder against transformers' LlamaForCausalLM on the same weights, float32, equal threads, interleaved.

    python bench/decoder.py [--model DIR] [--threads N] [--runs N] [--json]

``share`` is transformers' time divided by ours: 1.0 is as fast. Prefill is measured to the first token's scores,
decoding over 32 tokens behind the prompt. Needs the extra ``dev``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from kvstore.cli.bench.report import Report, interleave, row
from kvstore.connector.decoder import Engine, Llama, Request, Tokenizer, bundled_model

PREFILLS = (512, 2048, 6144)
DECODE_AFTER, DECODED = 2048, 32


@dataclass(frozen=True)
class Pair:
    """The same model twice, and a text to feed it."""

    ours: Engine
    theirs: LlamaForCausalLM
    tokens: tuple[int, ...]

    @classmethod
    def load(cls, directory: Path) -> Pair:
        """Both warmed up."""
        text = (bundled_model() / "jonah.txt").read_text()
        tokens = tuple(Tokenizer(directory).encode(text))
        while len(tokens) < max(PREFILLS):
            tokens += tokens
        pair = cls(
            Engine(Llama.load(directory)),
            LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval(),
            tokens,
        )
        pair.ours.warm_up()
        pair.prefill_theirs(256)
        return pair

    def prefill_ours(self, length: int) -> float:
        (result,) = self.ours.run([Request(self.tokens[:length], max_new_tokens=1)])
        return result.first_token_seconds

    @torch.inference_mode()
    def prefill_theirs(self, length: int) -> float:
        start = time.perf_counter()
        self.theirs(input_ids=torch.tensor([self.tokens[:length]]), use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start

    def decode_ours(self) -> float:
        (result,) = self.ours.run([Request(self.tokens[:DECODE_AFTER], max_new_tokens=DECODED + 1)])
        return (result.seconds - result.first_token_seconds) / DECODED

    @torch.inference_mode()
    def decode_theirs(self) -> float:
        out = self.theirs(input_ids=torch.tensor([self.tokens[:DECODE_AFTER]]), use_cache=True, logits_to_keep=1)
        start = time.perf_counter()
        for _ in range(DECODED):
            step = out.logits[:, -1].argmax(dim=-1, keepdim=True)
            out = self.theirs(input_ids=step, past_key_values=out.past_key_values, use_cache=True)
        return (time.perf_counter() - start) / DECODED


def measure(pair: Pair, runs: int, threads: int) -> Report:
    """All cases; each run of ours has one of theirs beside it."""
    report = Report("decoder")
    cases: list[tuple[str, str, float, Callable[[], float], Callable[[], float]]] = [
        (f"prefill.{length}", "s", 1.0, lambda n=length: pair.prefill_ours(n), lambda n=length: pair.prefill_theirs(n))
        for length in PREFILLS
    ]
    cases.append((f"decode.token.after.{DECODE_AFTER}", "us", 1e6, pair.decode_ours, pair.decode_theirs))
    for case, unit, scale, ours, theirs in cases:
        found = interleave({"ours": ours, "transformers": theirs}, runs)
        values = {name: [seconds * scale for seconds in times] for name, times in found.items()}
        ceilings = {"transformers": values["transformers"]}
        report.rows.append(row(case, unit, values["ours"], ceilings=ceilings, params={"threads": threads}))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--model", type=Path, default=bundled_model())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report = measure(Pair.load(options.model), options.runs, options.threads)
    print(report.to_json() if options.json else report.to_text())


if __name__ == "__main__":
    main()
