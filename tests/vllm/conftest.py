"""One node a module, engines one at a time, references by engines without any connector."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import models
from .harness import ENVIRONMENT, ROOT, Engine, Node
from .nursery import Nursery

MODELS = ROOT / "build" / "vllm-models"
Start = Callable[..., Engine]
# Engine processes that spin on both cores of a small machine can keep a node from running for seconds.
PATIENT: dict[str, Any] = {"stall_timeout_s": 30.0, "lookup_timeout_ms": 30_000}


def transfer(node: Node, role: str = "kv_both", policy: str = "recompute", **extra: Any) -> dict[str, Any]:
    """A --kv-transfer-config. Hits do not depend on how fast this machine happens to be."""
    options = {"target": node.target, "load": "always", "lookup_timeout_ms": 2000, **extra}
    return {
        "kv_connector": "KVStoreConnector",
        "kv_role": role,
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": options,
    }


@pytest.fixture(scope="session")
def model() -> Callable[..., Path]:
    """``model("llama")``: a tiny random model of this kind."""
    MODELS.mkdir(parents=True, exist_ok=True)
    return lambda kind, seed=0, **changes: models.make(kind, MODELS, seed, **changes)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"))
    yield node
    node.stop()


class Engines:
    """Starts engines; an earlier one is stopped first unless it is kept."""

    def __init__(self, folder: Path, nursery: Nursery) -> None:
        self.folder, self.nursery = folder, nursery
        self.running: list[Engine] = []
        self.count = 0
        self._references: dict[str, Any] = {}

    def start(
        self,
        llm: dict[str, Any],
        transfer: dict[str, Any] | None = None,
        keep: bool = False,
        patch: str = "",
        wait: bool = True,
        **env: str,
    ) -> Engine:
        """Without ``wait`` it is only begun: its first call waits until it runs."""
        if not keep:
            self.stop()
        self.count += 1
        given = {**llm, "model": str(llm["model"])}
        environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **env}  # a process less, and a quicker start
        nursery = None if "PYTHONHASHSEED" in env else self.nursery
        engine = Engine(self.folder / f"engine{self.count}.log", given, transfer, environment, patch, False, nursery)
        self.running.append(engine)
        if wait:
            engine.ready()
        return engine

    def reference(self, llm: dict[str, Any], *calls: dict[str, Any], **env: str) -> list[list[Any]]:
        """Tokens that an engine without connector gives for each generate call, in order."""
        key = json.dumps([{**llm, "model": str(llm["model"])}, calls, env], sort_keys=True)
        if key not in self._references:
            engine = self.start(llm, **env)
            self._references[key] = [tokens(engine.call("generate", **call)) for call in calls]
            self.stop()
        return self._references[key]  # type: ignore[no-any-return]

    def stop(self) -> None:
        for engine in self.running:
            engine.stop()
        self.running.clear()

    def kill(self) -> None:
        for engine in self.running:
            engine.kill()
        self.running.clear()


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery") / "log", {**os.environ, **ENVIRONMENT})
    yield made
    made.close()


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Iterator[Engines]:
    made = Engines(tmp_path_factory.mktemp("engines"), nursery)
    yield made
    made.stop()


def tokens(outputs: list[dict[str, Any]]) -> list[Any]:
    return [output["tokens"] for output in outputs]


def cached(outputs: list[dict[str, Any]]) -> list[int]:
    return [output["cached"] for output in outputs]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Failures are shown when they happen: the whole suite takes long."""
    if report.failed:
        print(f"\nFAILED {report.nodeid}\n{report.longreprtext[-4000:]}", flush=True)
