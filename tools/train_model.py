"""Trains the bundled model of kvstore.connector.decoder: a byte-level Llama of 3 million parameters.

    python tools/train_model.py --out connector/decoder/bundled        (about 40 minutes on one core)

Text: tools/corpus/kjv.txt.xz (public domain, see PROVENANCE.md beside it), without the book of Jonah, which the demo
reads and the evaluation uses. The model learns plain text and two ways of finding a verse in what it has read:

    Question: What is written in 1:17?          Question: How does it go on: Now the LORD had
    Answer: Now the LORD had prepared ...       Answer: prepared a great fish ...

Three phases: short windows whose positions skip ahead at random, so that all positions up to the maximum are seen;
then windows of 2 thousand tokens; then of 7.5 thousand. Seeded: the same torch build gives the same weights. An
interrupted run goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
BOS, EOS, PAD, VOCABULARY = 256, 257, 258, 259
HELD_OUT = "Jonah"
POSITIONS = 16_384
SEED = 1611


@dataclass(frozen=True)
class Phase:
    """``steps`` optimizer steps, each over ``rows`` windows of ``length`` tokens."""

    steps: int
    rows: int
    length: int


PHASES = (Phase(1440, 8, 512), Phase(160, 2, 2048), Phase(80, 1, 7680))


@dataclass(frozen=True)
class Verse:
    place: str  # chapter:verse
    text: str


def books(path: Path = HERE / "corpus" / "kjv.txt.xz") -> dict[str, list[Verse]]:
    """The verses of each book, in order."""
    found: dict[str, list[Verse]] = {}
    for line in lzma.decompress(path.read_bytes()).decode().splitlines():
        book, place, text = line.split("\t")
        found.setdefault(book, []).append(Verse(place, text))
    return found


def document(verses: list[Verse]) -> str:
    """Verses as the model reads them: one a line, each after its place."""
    return "".join(f"{verse.place} {verse.text}\n" for verse in verses)


def question(verse: Verse, rng: np.random.Generator) -> tuple[str, str]:
    """A question about a verse that was read, and its answer."""
    words = verse.text.split(" ")
    if rng.random() < 0.5 or len(words) < 6:
        return f"What is written in {verse.place}?", verse.text
    given = int(rng.integers(3, min(7, len(words) - 2)))
    return f"How does it go on: {' '.join(words[:given])}", " ".join(words[given:])


class Windows:
    """Endless seeded windows of text and questions, as token ids and positions."""

    def __init__(self, texts: dict[str, list[Verse]], seed: int) -> None:
        self._texts = list(texts.values())
        sizes = np.array([sum(len(v.text) for v in verses) for verses in self._texts], dtype=np.float64)
        self._weights = sizes / sizes.sum()
        self._rng = np.random.default_rng(seed)

    def window(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids (length + 1,) and positions (length,)."""
        rng = self._rng
        share = 1.0 if rng.random() < 0.3 else float(rng.uniform(0.35, 0.8)) if length < 4096 else 0.85
        verses, ids = self._read(int(length * share))
        split = len(ids)
        while len(ids) <= length:
            verse = verses[int(rng.integers(len(verses)))]
            asked, answer = question(verse, rng)
            ids += [*f"\nQuestion: {asked}\nAnswer: {answer}".encode(), EOS]
        return np.array(ids[: length + 1]), self._positions(length, min(split, length))

    def _read(self, size: int) -> tuple[list[Verse], list[int]]:
        book = self._texts[int(self._rng.choice(len(self._texts), p=self._weights))]
        start = int(self._rng.integers(len(book)))
        verses: list[Verse] = []
        ids = [BOS]
        for verse in book[start:]:
            if verses and len(ids) + len(verse.text) + 8 > size:
                break
            verses.append(verse)
            ids += document([verse]).encode()
        return verses, ids

    def _positions(self, length: int, split: int) -> np.ndarray:
        """0..length-1, but mostly with two random skips, the second between the text and its questions."""
        positions = np.arange(length)
        if length > 4096 or self._rng.random() < 0.3:
            return positions
        room = POSITIONS - length
        skip = int(room * self._rng.random() ** 2)
        positions[split:] += skip
        return positions + int((room - skip) * self._rng.random() ** 2)

    def batches(self, phases: tuple[Phase, ...]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for phase in phases:
            for _ in range(phase.steps):
                ids, positions = zip(*(self.window(phase.length) for _ in range(phase.rows)), strict=True)
                yield torch.tensor(np.stack(ids)), torch.tensor(np.stack(positions))


def config() -> LlamaConfig:
    """4 layers of 256, 4 heads over 2 KV heads of 64: a KV block of 16 tokens is 64 KiB in float32."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-5,
        rope_theta=20_000.0,
        tie_word_embeddings=True,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )


class Optimizers:
    """Muon for the matrices of the layers, AdamW for embeddings and norms, one schedule for both."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim < 2 or "embed" in n]
        self._all = [
            torch.optim.Muon(matrices, lr=3e-3, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self._plans = [torch.optim.lr_scheduler.LambdaLR(each, schedule) for each in self._all]

    def step(self) -> None:
        for each, plan in zip(self._all, self._plans, strict=True):
            each.step()
            each.zero_grad(set_to_none=True)
            plan.step()

    def state(self) -> list[dict[str, object]]:
        return [each.state_dict() for each in (*self._all, *self._plans)]

    def restore(self, state: list[dict[str, object]]) -> None:
        for each, saved in zip((*self._all, *self._plans), state, strict=True):
            each.load_state_dict(saved)


def schedule(step: int) -> float:
    """Warm up over 60 steps, hold, fall slowly from step 896 on, and over the long windows to a fiftieth."""
    if step < 60:
        return (step + 1) / 60
    steps, long_steps = sum(phase.steps for phase in PHASES), sum(phase.steps for phase in PHASES[1:])
    slowly = min(1.0, 0.05 + 0.95 * (1990 - step) / (1990 * 0.55))
    return min(slowly, 0.02 + 0.507 * (steps - step) / long_steps)


def train(phases: tuple[Phase, ...], checkpoint: Path) -> LlamaForCausalLM:
    """Trains, printing progress every 20 steps and saving every 100; goes on from ``checkpoint`` when it is there."""
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(config())
    optimizers = Optimizers(model)
    done = _restore(checkpoint, model, optimizers)
    texts = {book: verses for book, verses in books().items() if book != HELD_OUT}
    start, losses = time.monotonic(), []
    for step, (ids, positions) in enumerate(Windows(texts, SEED).batches(phases), start=1):
        if step <= done:
            continue
        losses.append(_learn(model, ids, positions))
        optimizers.step()
        if step % 20 == 0:
            print(
                f"step {step} length {ids.shape[1] - 1} loss {np.mean(losses):.3f} {time.monotonic() - start:.0f} s",
                flush=True,
            )
            losses.clear()
        if step % 100 == 0:
            torch.save({"step": step, "model": model.state_dict(), "optimizers": optimizers.state()}, checkpoint)
    return model


def _restore(checkpoint: Path, model: LlamaForCausalLM, optimizers: Optimizers) -> int:
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizers.restore(saved["optimizers"])
    return int(saved["step"])


def _learn(model: LlamaForCausalLM, ids: torch.Tensor, positions: torch.Tensor) -> float:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=ids[:, :-1], position_ids=positions).logits
    loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return float(loss.detach())


def save(model: LlamaForCausalLM, out: Path) -> None:
    """Writes a Hugging Face checkpoint: config.json, model.safetensors (bfloat16), tokenizer.json."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        n: p.detach().to(torch.bfloat16).contiguous() for n, p in model.state_dict().items() if n != "lm_head.weight"
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    settings = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    (out / "tokenizer.json").write_text(json.dumps(tokenizer(), indent=1, ensure_ascii=False) + "\n")


def byte_names() -> dict[str, int]:
    """The printable stand-in that byte-level tokenizers use for each byte, to its id: the byte itself."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    names = {chr(byte): byte for byte in shown} | {chr(256 + at): byte for at, byte in enumerate(hidden)}
    return dict(sorted(names.items(), key=lambda item: item[1]))


def tokenizer() -> dict[str, object]:
    """tokenizer.json: byte-level without merges, so that each byte is a token; <bos> goes first."""
    special = [("<bos>", BOS), ("<eos>", EOS), ("<pad>", PAD)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    first = [{"SpecialToken": {"id": "<bos>", "type_id": 0}}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": at, "content": name, **flags} for name, at in special],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [*first, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [BOS], "tokens": ["<bos>"]}},
        },
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": byte_names() | dict(special),
            "merges": [],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE.parent / "connector" / "decoder" / "bundled")
    parser.add_argument("--checkpoint", type=Path, default=Path("train_model.ckpt"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    save(train(PHASES, options.checkpoint), options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
