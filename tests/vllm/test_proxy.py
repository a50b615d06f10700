"""Prefill and decode servers behind a router, by HTTP: the answers are those of one server without connector."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import models
from .conftest import PATIENT, transfer
from .harness import Node
from .proxy import Proxy, post
from .server import Server

BLOCK = 128
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def words(length: int, seed: int) -> str:
    """``length`` tokens of text."""
    return " ".join(f"w{random.Random(seed * 10_000 + at).randrange(3, 1000)}" for at in range(length))


def completion(length: int, seed: int, **more: Any) -> tuple[str, dict[str, Any]]:
    body = {"model": "tiny", "prompt": words(length, seed), "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    return COMPLETIONS, {**body, **more}


def chat(length: int, seed: int) -> tuple[str, dict[str, Any]]:
    message = {"role": "user", "content": words(length, seed)}
    body = {"model": "tiny", "messages": [message], "max_completion_tokens": 24, "temperature": 0, "ignore_eos": True}
    return CHAT, body


def text(port: int, path: str, body: dict[str, Any]) -> str:
    """The generated text, of a streamed answer as well."""
    answer = post(port, path, body)
    content = answer.read().decode()
    assert answer.status == 200, content
    if not body.get("stream"):
        return shown(json.loads(content))
    pieces = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: {")]
    return "".join(shown(json.loads(piece)) for piece in pieces)


def shown(answer: dict[str, Any]) -> str:
    choice = answer["choices"][0] if answer["choices"] else {"text": ""}
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


class Pair:
    """A prefill server, a decode server, a router before them, and a server without connector."""

    def __init__(self, folder: Path, model: Path, node: Node) -> None:
        kv = [transfer(node, role=role, **PATIENT) for role in ("kv_producer", "kv_consumer")]
        self.started: list[Server] = []
        try:
            self.plain = self._start(folder / "plain.log", model, None)
            self.prefill = self._start(folder / "prefill.log", model, kv[0])
            self.plain.ready()
            self.decode = self._start(folder / "decode.log", model, kv[1])
            self.prefill.ready()
            self.decode.ready()
            self.proxy = Proxy(self.prefill.port, self.decode.port)
        except BaseException:
            self.stop()
            raise

    def _start(self, log: Path, model: Path, kv: dict[str, Any] | None) -> Server:
        self.started.append(Server(log, model, kv))
        return self.started[-1]

    def both(self, path: str, body: dict[str, Any]) -> tuple[str, str, int]:
        """The texts by way of the router and from the server alone; prompt tokens that the decode server loaded."""
        before = self.decode.metric("kvstore_loaded_tokens")
        routed = text(self.proxy.port, path, body)
        loaded = int(self.decode.metric("kvstore_loaded_tokens") - before)
        return routed, text(self.plain.port, path, body), loaded

    def stop(self) -> None:
        if hasattr(self, "proxy"):
            self.proxy.close()
        for server in self.started:
            server.stop()


@pytest.fixture(scope="module")
def pair(node: Node, model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    path = model("llama", 3)
    models.add_tokenizer(path)
    made = Pair(tmp_path_factory.mktemp("servers"), path, node)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("request_", "blocks"),
    [
        (completion(700, 1), 5),
        (completion(4 * BLOCK, 2), 3),
        (completion(1300, 3, stream=True), 10),
        (completion(600, 4, stream=True, stream_options={"include_usage": True}), 4),
        (chat(900, 5), 7),
        (completion(40, 6), 0),
        (completion(700, 7, logprobs=2, min_tokens=3), 5),
    ],
    ids=["text", "whole blocks", "streamed", "streamed with usage", "chat", "less than a block", "more parameters"],
)
def test_a_routed_request_is_answered_as_by_one_server_and_its_prompt_is_loaded(
    pair: Pair, request_: tuple[str, dict[str, Any]], blocks: int
) -> None:
    routed, alone, loaded = pair.both(*request_)
    assert routed == alone
    assert len(routed.split()) == 24
    assert loaded == blocks * BLOCK, "the decode server computed at most a block"
    assert pair.proxy.handed_over[-1]["do_remote_prefill"]


def test_a_conversation_that_grows_loads_what_is_new(pair: Pair) -> None:
    first, _, loaded = pair.both(*completion(520, 8))
    assert loaded == 4 * BLOCK
    path, body = completion(520, 8)
    body["prompt"] += f" {first} {words(400, 9)}"
    routed, alone, loaded = pair.both(path, body)
    assert routed == alone
    assert loaded == 3 * BLOCK, "four blocks of the earlier turn are in the engine itself"


def test_a_request_that_comes_past_the_router_is_answered_too(pair: Pair) -> None:
    path, body = completion(650, 10)
    assert text(pair.decode.port, path, body) == text(pair.plain.port, path, body)


def test_without_the_node_routed_requests_are_computed(pair: Pair, node: Node) -> None:
    node.kill()
    try:
        routed, alone, loaded = pair.both(*completion(700, 11))
    finally:
        node.start()
    assert routed == alone
    assert loaded == 0
