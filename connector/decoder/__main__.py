"""Answers questions about a document: ``python -m kvstore.connector.decoder --document FILE --question TEXT``.

With ``--node`` the KV blocks of the prompt are looked for in, and stored in, a kvstore node. ``--json`` prints one
event a line: ``ready``, then for each question ``prompt``, ``first`` (token), ``text`` as it comes, and ``answer``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kvstore.connector.decoder import Engine, Llama, Request, Result, Sampling, Tokenizer, bundled_model
from kvstore.core.errors import KVStoreError

Emit = Callable[..., None]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m kvstore.connector.decoder", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument("--model", type=Path, default=bundled_model(), help="Hugging Face checkpoint directory (Llama)")
    parser.add_argument("--document", type=Path, required=True, help="text file that each question is about")
    parser.add_argument("--question", action="append", required=True, help="may be given several times")
    parser.add_argument("--node", help="where the kvstore node is, as for kvstore.Client; without it all is computed")
    parser.add_argument("--max-new", type=int, default=64, help="most new tokens an answer has")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; results are equal for equal numbers")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--importance", action="store_true", help="send attention mass with the blocks")
    parser.add_argument("--json", action="store_true", help="print events, one JSON object a line")
    parser.add_argument("--linger", action="store_true", help="stay until standard input is closed")
    return parser.parse_args()


def print_event(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def print_text(event: str, **values: Any) -> None:
    """For people: the text as it comes, then one line of figures."""
    if event == "text":
        print(values["text"], end="", flush=True)
    elif event == "answer":
        print(
            f"\n[{values['tokens']} tokens, {values['found']} found, {values['computed']} computed, "
            f"first token after {values['first_token_seconds']:.3f} s]",
            flush=True,
        )


def prompt(document: str, question: str) -> str:
    """The form in which the bundled model learned to be asked."""
    return f"{document.rstrip()}\n\nQuestion: {question}\nAnswer:"


def answer(engine: Engine, tokenizer: Tokenizer, request: Request, emit: Emit) -> Result:
    """Runs one request, emitting its text as it comes. Its blocks are stored when this returns."""
    ids: list[int] = []
    shown = 0
    result = Result(len(request.tokens))
    emit("prompt", tokens=result.tokens)
    for token in engine.stream(request):
        result = token.result
        if not ids:
            emit("first", found=result.found, computed=result.computed, seconds=result.first_token_seconds)
        ids.append(token.id)
        text = tokenizer.decode(ids)
        if not text.endswith("�"):  # within a character of several bytes
            emit("text", text=text[shown:])
            shown = len(text)
    if engine.cache is not None:
        engine.cache.flush()
    return result


def main() -> int:
    given = options()
    emit: Emit = print_event if given.json else print_text
    torch.set_num_threads(given.threads)
    model, tokenizer = Llama.load(given.model), Tokenizer(given.model)
    engine = Engine(model, _client(given.node), importance=given.importance)
    engine.warm_up()
    emit("ready", pid=os.getpid(), model=model.identity)
    document = given.document.read_text()
    for question in given.question:
        sampling = Sampling(given.temperature, seed=given.seed)
        tokens = tuple(tokenizer.encode(prompt(document, question)))
        result = answer(engine, tokenizer, Request(tokens, given.max_new, sampling, model.config.eos), emit)
        emit("answer", **_figures(result), text=tokenizer.decode(result.ids[0]), stored=_stored(engine))
    if given.linger:
        sys.stdin.read()
    engine.close()
    return 0


def _client(target: str | None) -> Any:
    if target is None:
        return None
    from kvstore import Client

    return Client(target)


def _figures(result: Result) -> dict[str, Any]:
    names = ("tokens", "found", "computed", "first_token_seconds", "seconds")
    return {name: getattr(result, name) for name in names} | {"ids": result.ids[0]}


def _stored(engine: Engine) -> int:
    return engine.cache.outcome.stored if engine.cache is not None else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KVStoreError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
