"""Prefill and decode servers behind a router, by HTTP: the answers are those of one server without connector."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


def ids(length: int, seed: int) -> list[int]:
    return [random.Random(seed * 10_000 + at).randrange(3, 1000) for at in range(length)]


GREEDY = {"model": "tiny", "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def completion(length: int, seed: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {**GREEDY, "prompt": ids(length, seed), "max_tokens": 24, **more}


def chat(words: int, seed: int) -> tuple[str, dict[str, Any]]:
    """In text; how many tokens it becomes is the tokenizer's business."""
    text = " ".join(f"w{word}" for word in ids(words, seed))
    return CHAT, {**GREEDY, "messages": [{"role": "user", "content": text}], "max_completion_tokens": 24}


@dataclass(frozen=True)
class Answer:
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str


def ask(port: int, path: str, body: dict[str, Any]) -> Answer:
    """Streamed or in one piece."""
    reply = post(port, path, body)
    content = reply.read().decode()
    assert reply.status == 200, content
    lines = content.splitlines() if body.get("stream") else [f"data: {content}"]
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    choices = [(piece, piece["choices"][0]) for piece in pieces if piece["choices"]]
    return Answer(
        tuple(next(token for one in choices for found in one if (token := found.get("prompt_token_ids")))),
        tuple(token for _, choice in choices for token in choice.get("token_ids") or ()),
        "".join(choice["text"] if "text" in choice else choice["message"]["content"] for _, choice in choices),
    )


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

    def both(self, path: str, body: dict[str, Any]) -> tuple[Answer, Answer, int]:
        """The answers by way of the router and of the server alone; prompt tokens that the decode server loaded."""
        before = self.decode.metric("kvstore_loaded_tokens")
        routed = ask(self.proxy.port, path, body)
        loaded = int(self.decode.metric("kvstore_loaded_tokens") - before)
        return routed, ask(self.plain.port, path, body), loaded

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
    "request_",
    [
        completion(700, 1),
        completion(4 * BLOCK, 2),
        completion(1300, 3, stream=True),
        completion(600, 4, stream=True, stream_options={"include_usage": True}),
        chat(700, 5),
        completion(40, 6),
        completion(700, 7, logprobs=2, min_tokens=3),
    ],
    ids=["one piece", "whole blocks", "streamed", "streamed with usage", "chat", "less than a block", "more fields"],
)
def test_a_routed_request_is_answered_as_by_one_server_and_its_prompt_is_loaded(
    pair: Pair, request_: tuple[str, dict[str, Any]]
) -> None:
    routed, alone, loaded = pair.both(*request_)
    assert routed == alone
    assert len(routed.tokens) == 24
    assert loaded == (len(routed.prompt) - 1) // BLOCK * BLOCK, "the decode server computed at most a block"
    assert pair.proxy.handed_over[-1]["do_remote_prefill"]


def test_a_conversation_that_grows_loads_what_is_new(pair: Pair) -> None:
    first, _, loaded = pair.both(*completion(520, 8))
    assert loaded == 4 * BLOCK
    path, body = completion(520, 8)
    body["prompt"] += [*first.tokens, *ids(400, 9)]
    routed, alone, loaded = pair.both(path, body)
    assert routed == alone
    assert loaded == 3 * BLOCK, "four blocks of the earlier turn are in the engine itself"


def test_a_request_that_comes_past_the_router_is_answered_too(pair: Pair) -> None:
    path, body = completion(650, 10)
    assert ask(pair.decode.port, path, body) == ask(pair.plain.port, path, body)


def test_without_the_node_routed_requests_are_computed(pair: Pair, node: Node) -> None:
    node.kill()
    try:
        routed, alone, loaded = pair.both(*completion(700, 11))
    finally:
        node.start()
    assert routed == alone
    assert loaded == 0
