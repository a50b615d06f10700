"""The decoder against transformers' LlamaForCausalLM on the same weights, float32, equal threads, interleaved.

    python bench/decoder.py [--model DIR] [--threads N] [--runs N] [--clock wall|cpu] [--json]

``share`` is transformers' time divided by ours: 1.0 is as fast. Prefill is measured to the first token's scores,
decoding over 32 tokens behind the prompt. ``--clock cpu`` counts processor time, which other work on the machine
disturbs less. Needs the extra ``dev``.
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
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Pair:
    """The same model twice, and a text to feed it."""

    ours: Engine
    theirs: LlamaForCausalLM
    tokens: tuple[int, ...]
    clock: Callable[[], float]

    @classmethod
    def load(cls, directory: Path, clock: Callable[[], float]) -> Pair:
        """Both warmed up."""
        text = (bundled_model() / "jonah.txt").read_text()
        tokens = tuple(Tokenizer(directory).encode(text))
        while len(tokens) < max(PREFILLS):
            tokens += tokens
        pair = cls(
            Engine(Llama.load(directory)),
            LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval(),
            tokens,
            clock,
        )
        pair.ours.warm_up()
        pair.prefill_theirs(256)
        return pair

    def prefill_ours(self, length: int) -> float:
        start = self.clock()
        self.ours.run([Request(self.tokens[:length], max_new_tokens=1)])
        return self.clock() - start

    @torch.inference_mode()
    def prefill_theirs(self, length: int) -> float:
        start = self.clock()
        self.theirs(input_ids=torch.tensor([self.tokens[:length]]), use_cache=True, logits_to_keep=1)
        return self.clock() - start

    def decode_ours(self) -> float:
        _, result = self.ours.submit(Request(self.tokens[:DECODE_AFTER], max_new_tokens=DECODED + 1))
        while not result.ids:
            self.ours.step()
        start, made = self.clock(), len(result.ids[0])
        while not result.done:
            self.ours.step()
        return (self.clock() - start) / (len(result.ids[0]) - made)

    @torch.inference_mode()
    def decode_theirs(self) -> float:
        out = self.theirs(input_ids=torch.tensor([self.tokens[:DECODE_AFTER]]), use_cache=True, logits_to_keep=1)
        start = self.clock()
        for _ in range(DECODED):
            step = out.logits[:, -1].argmax(dim=-1, keepdim=True)
            out = self.theirs(input_ids=step, past_key_values=out.past_key_values, use_cache=True)
        return (self.clock() - start) / DECODED


def measure(pair: Pair, runs: int, params: dict[str, object]) -> Report:
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
        report.rows.append(row(case, unit, values["ours"], ceilings=ceilings, params=params))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--model", type=Path, default=bundled_model())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    params: dict[str, object] = {"threads": options.threads, "clock": options.clock}
    report = measure(Pair.load(options.model, CLOCKS[options.clock]), options.runs, params)
    print(report.to_json() if options.json else report.to_text())


if __name__ == "__main__":
    main()
