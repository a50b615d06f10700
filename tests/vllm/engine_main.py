"""A vLLM engine that takes commands: one JSON object a line on stdin, one JSON answer a line on descriptor 3."""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
import traceback
from typing import Any

from tests.vllm.harness import counter
from tests.vllm.nursery import serve_forks
from tests.vllm.patches import PATCHES


def prompt(length: int, seed: int, shared: int = 0, shared_seed: int = 7) -> list[int]:
    """``length`` random tokens, the first ``shared`` of them the same for every seed."""
    head, tail = random.Random(shared_seed), random.Random(seed)
    return [head.randrange(3, 1000) for _ in range(shared)] + [tail.randrange(3, 1000) for _ in range(length - shared)]


class Engine:
    def __init__(self, settings: dict[str, Any]) -> None:
        if settings.get("patch"):
            PATCHES[settings["patch"]]()
        from vllm import LLM
        from vllm.config import KVTransferConfig

        llm = {
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "dtype": "bfloat16",
            "max_model_len": 2048,
            "disable_log_stats": False,
            **settings["llm"],
        }
        if settings.get("transfer"):
            llm["kv_transfer_config"] = KVTransferConfig(**settings["transfer"])
        began = time.monotonic()
        self.llm = LLM(**llm)
        self.started = time.monotonic() - began

    def _params(self, sampling: dict[str, Any]) -> Any:
        from vllm import SamplingParams

        values = {"max_tokens": 24, "temperature": 0, "detokenize": False, "ignore_eos": True, **sampling}
        return SamplingParams(**values)

    def _prompts(self, prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        out = []
        for given in prompts:
            given = dict(given)
            salt = given.pop("salt", None)
            one: dict[str, Any] = {"prompt_token_ids": given.pop("ids", None) or prompt(**given)}
            out.append({**one, "cache_salt": salt} if salt else one)
        return out

    def generate(
        self,
        prompts: list[dict[str, Any]],
        sampling: Any = None,
        lora: dict[str, Any] | None = None,
        together: bool = False,
    ) -> list[dict[str, Any]]:
        """One request after the other, unless ``together``: sums of one shape give the same bits in every engine,
        and when requests come together it is chance which of them share a step."""
        sampling = sampling or {}
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        if together:
            return self._generate(prompts, each, lora)
        return [self._generate([p], [s], lora)[0] for p, s in zip(prompts, each, strict=True)]

    def _generate(
        self, prompts: list[dict[str, Any]], sampling: list[dict[str, Any]], lora: dict[str, Any] | None
    ) -> list[dict[str, Any]]:
        request = None
        if lora:
            from vllm.lora.request import LoRARequest

            request = LoRARequest(lora["name"], lora["id"], lora["path"])
        params = [self._params(one) for one in sampling]
        began = time.monotonic()
        outputs = self.llm.generate(self._prompts(prompts), params, use_tqdm=False, lora_request=request)
        seconds = time.monotonic() - began
        return [
            {
                "tokens": [list(completion.token_ids) for completion in output.outputs],
                "finish": [completion.finish_reason for completion in output.outputs],
                "cached": output.num_cached_tokens,
                "params": output.kv_transfer_params,
                "seconds": seconds,
            }
            for output in outputs
        ]

    def abort(self, prompts: list[dict[str, Any]], victim: int, after_steps: int, when: str = "") -> list[Any]:
        """Starts all, aborts one after some steps (once the file ``when`` is there), finishes the others."""
        core = self.llm.llm_engine
        for index, one in enumerate(self._prompts(prompts)):
            core.add_request(f"r{index}", one, self._params({}))
        for _ in range(after_steps):
            core.step()
        end = time.monotonic() + 180
        while when and not os.path.exists(when) and time.monotonic() < end:
            core.step()
        core.abort_request([f"r{victim}"])
        done = []
        while core.has_unfinished_requests():
            done += [output for output in core.step() if output.finished]
        return [{"id": o.request_id, "tokens": [list(c.token_ids) for c in o.outputs]} for o in done]

    def settle(self) -> None:
        """Steps until all that was to be saved is stored (or was dropped): counters come with the steps."""
        end = time.monotonic() + 180
        while True:
            self._generate([{"length": 2, "seed": 0}], [{"max_tokens": 2}], None)
            found = self.metrics()
            done = sum(counter(found, f"kvstore_{name}_tokens") for name in ("saved", "present", "dropped"))
            if done >= counter(found, "kvstore_offered_tokens"):
                return
            if time.monotonic() > end:
                raise TimeoutError(f"saves do not end: {found}")

    def forget(self) -> None:
        """Settles and empties the engine's own prefix cache. Pages of loads under way are held: they end first."""
        end = time.monotonic() + 180
        self.settle()
        while not self.reset(connector=False):
            if time.monotonic() > end:
                raise TimeoutError("pages are held")
            self.settle()

    def reset(self, connector: bool = True) -> bool:
        return bool(self.llm.reset_prefix_cache(reset_connector=connector))

    def metrics(self) -> dict[str, float]:
        from prometheus_client import REGISTRY

        found: dict[str, float] = {}
        for metric in REGISTRY.collect():
            for sample in metric.samples:
                if sample.name.startswith("vllm:") and not sample.name.endswith(("_bucket", "_created")):
                    shown = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
                    name = sample.name + ("{" + ",".join(shown.values()) + "}" if shown else "")
                    found[name] = found.get(name, 0) + sample.value
        return found

    def cpu(self) -> dict[str, float]:
        """CPU seconds of this process and of all its children so far."""
        import psutil

        me = psutil.Process()
        total = sum(sum(p.cpu_times()[:2]) for p in [me, *me.children(recursive=True)])
        return {"total": total, "self": resource.getrusage(resource.RUSAGE_SELF).ru_utime}


def serve(settings: str, descriptor: int) -> None:
    out = os.fdopen(descriptor, "w", buffering=1)
    engine = Engine(json.loads(settings))
    out.write(json.dumps({"ok": engine.started}) + "\n")
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        if name == "stop":
            break
        try:
            out.write(json.dumps({"ok": getattr(engine, name)(**command)}) + "\n")
        except Exception:
            out.write(json.dumps({"error": traceback.format_exc()}) + "\n")
    engine.llm.llm_engine.engine_core.shutdown()
    out.write(json.dumps({"ok": "stopped"}) + "\n")


def main() -> None:
    first, descriptor = sys.argv[1], int(sys.argv[2])
    if first != "nursery":
        serve(first, descriptor)
        return
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.cpu_worker  # noqa: F401  imported once, for all engines

    serve_forks(descriptor, serve)


if __name__ == "__main__":
    main()
