"""Time to first token with vLLM on CPUs: cold, from vLLM's own prefix cache, from kvstore; its cost; its worst stall.

    make test-vllm-core ARGS=--collect-only      # once: makes .venv-vllm
    .venv-vllm/bin/python bench/vllm_ttft.py [--json] [--runs 5] [--model DIR]

Engines and nodes are real processes. Runs of the cases compared are interleaved. The ceiling of a time to first token
is vLLM's own prefix cache, of the cost 3 % of the engine's CPU time, of a stall one second.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kvstore.cli.bench.report import Report, row  # noqa: E402
from tests.vllm import models  # noqa: E402
from tests.vllm.harness import Engine, Node, counter  # noqa: E402

LENGTH = 1990
FIRST = {"max_tokens": 1}
AS_DELIVERED = {"lookup_timeout_ms": 10, "stall_timeout_s": 0.5}  # the defaults of the two bounds


def transfer(target: str, **options: Any) -> dict[str, Any]:
    """A hit is wanted in every run, so nothing gives up early; what is measured is how long it takes."""
    extra = {"target": target, "load": "always", "lookup_timeout_ms": 2000, "stall_timeout_s": 5.0, **options}
    return {
        "kv_connector": "KVStoreConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


class Bench:
    """``seed`` gives a prompt that no run has seen."""

    def __init__(self, folder: Path, model: Path, runs: int) -> None:
        self.folder, self.model, self.runs = folder, model, runs
        self._seed = 1000
        self._logs = 0

    def seed(self) -> int:
        self._seed += 1
        return self._seed

    @contextmanager
    def engine(self, kv: dict[str, Any] | None) -> Iterator[Engine]:
        self._logs += 1
        engine = Engine(self.folder / f"engine{self._logs}.log", {"model": str(self.model)}, kv, {})
        try:
            for _ in range(3):
                self.first_token(engine, self.seed(), 300)
            yield engine
        finally:
            engine.stop()

    @staticmethod
    def first_token(engine: Engine, seed: int, length: int = LENGTH) -> tuple[float, int]:
        """Seconds until the first token, and tokens that were cached."""
        output = engine.call("generate", prompts=[{"length": length, "seed": seed}], sampling=FIRST)[0]
        return output["seconds"], output["cached"]

    def checked(self, engine: Engine, seed: int, cached: bool) -> float:
        seconds, tokens = self.first_token(engine, seed)
        if bool(tokens) != cached:
            raise SystemExit(f"the run counts for nothing: {tokens} of {LENGTH} tokens were cached")
        return seconds


def first_tokens(bench: Bench, node: Node, report: Report) -> list[int]:
    """Cold, local, and from the store by each transport; returns seeds that the store holds."""
    found: dict[str, list[float]] = {"cold": [], "local prefix cache": []}
    seeds = [bench.seed() for _ in range(bench.runs)]
    for name, target in (("kvstore by shm", node.target), ("kvstore by tcp", node.tcp)):
        found[name] = []
        with bench.engine(transfer(target)) as engine:
            for seed in seeds:
                cold = seed if name.endswith("shm") else bench.seed()
                found["cold"].append(bench.checked(engine, cold, cached=False))
                found["local prefix cache"].append(bench.checked(engine, cold, cached=True))
                engine.call("forget")
                found[name].append(bench.checked(engine, cold, cached=True))
    with bench.engine(transfer(node.target)) as engine:
        found["kvstore after a restart of vLLM"] = []
        for seed in seeds:
            found["kvstore after a restart of vLLM"].append(bench.checked(engine, seed, cached=True))
            found["cold"].append(bench.checked(engine, bench.seed(), cached=False))
    ceiling = {"local prefix cache": found["local prefix cache"]}
    for name, values in found.items():
        limit = None if name in ("cold", "local prefix cache") else ceiling
        report.rows.append(row(f"first token, {name}", "s", values, ceilings=limit, params={"tokens": LENGTH}))
    return seeds


def cost(bench: Bench, node: Node, report: Report) -> None:
    """CPU seconds of a workload without any reuse, with and without connector, in turns; and inside the hooks."""
    spent: dict[str, list[float]] = {"with": [], "without": []}
    with bench.engine(transfer(node.target)) as ours, bench.engine(None) as plain:
        hooks = -counter(ours.call("metrics"), "kvstore_hook_cpu_seconds")
        total = 0.0
        for turn in range(2 * bench.runs):
            for name, engine in (("with", ours), ("without", plain))[:: 1 if turn % 2 else -1]:
                prompts = [{"length": 600, "seed": bench.seed()} for _ in range(8)]
                before = engine.call("cpu")["total"]
                engine.call("generate", prompts=prompts, sampling={"max_tokens": 32}, together=True)
                engine.call("settle")
                used = engine.call("cpu")["total"] - before
                spent[name].append(used)
                total += used if name == "with" else 0.0
        hooks += counter(ours.call("metrics"), "kvstore_hook_cpu_seconds")
    pairs = [a / b - 1 for a, b in zip(spent["with"], spent["without"], strict=True)]
    limit = {"allowed": [0.03]}
    report.rows.append(row("CPU in hooks / CPU of the engine, no reuse", "ratio", [hooks / total], params=limit))
    report.rows.append(row("extra CPU of engine and workers, no reuse", "ratio", pairs))


def stalls(bench: Bench, node: Node, report: Report, seeds: list[int]) -> None:
    """How much longer a request takes when the node dies or hangs under it than one that is computed."""
    for name, number in (("SIGKILL", signal.SIGKILL), ("SIGSTOP", signal.SIGSTOP)):
        waits: list[float] = []
        with bench.engine(transfer(node.target, **AS_DELIVERED, breaker_seconds=0.2)) as engine:
            cold = statistics.median(bench.first_token(engine, bench.seed())[0] for _ in range(3))
            for turn, seed in enumerate(seeds):
                engine.call("forget")
                timer = threading.Timer(0.004 * turn, node.signal, [number])
                timer.start()
                waits.append(max(0.0, bench.first_token(engine, seed)[0] - cold))
                timer.join()
                _revive(node, number)
                _until_used(bench, engine)
        report.rows.append(row(f"longest wait beyond computing, {name}", "s", [max(waits)], params={"allowed": 1.0}))


def _revive(node: Node, number: int) -> None:
    if number == signal.SIGKILL:
        node.kill()
        node.start()
    else:
        node.signal(signal.SIGCONT)


def _until_used(bench: Bench, engine: Engine) -> None:
    """Until a prompt is stored and found again."""
    for _ in range(100):
        seed = bench.seed()
        bench.first_token(engine, seed, 300)
        engine.call("forget")
        if bench.first_token(engine, seed, 300)[1]:
            return
    raise SystemExit("the node was not used again")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", type=Path, help="directory of a model (default: a tiny random llama)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or models.make("llama", Path(folder))
        bench, report = Bench(Path(folder), model, arguments.runs), Report("vllm ttft")
        node = Node(Path(folder) / "node", capacity="1GiB")
        try:
            seeds = first_tokens(bench, node, report)
            cost(bench, node, report)
            stalls(bench, node, report, seeds)
        finally:
            node.stop()
    print(report.to_json() if arguments.json else report.to_text())


if __name__ == "__main__":
    main()
