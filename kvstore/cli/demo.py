"""kvstore demo: three decoder processes and a node; what the first one computed, the others need not."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from kvstore.cli import missing
from kvstore.cli.demo_report import Answer, Outcome, Screen
from kvstore.cli.demo_run import INTERRUPTS, Decoder, Node, Stage, Workspace

app = typer.Typer(pretty_exceptions_enable=False)
_LIBRARIES = ("torch", "safetensors", "tokenizers", "prometheus_client")
BUNDLED = Path(__file__).resolve().parent.parent / "connector" / "decoder" / "bundled"
FIRST = "How does it go on: And God said to Jonah"
SECOND = "What did the LORD prepare?"


@app.command()
def demo(
    model: Annotated[
        Path, typer.Option(help="Checkpoint directory (Llama architecture).", show_default=False)
    ] = BUNDLED,
    document: Annotated[Path, typer.Option(help="Text that the questions are about.", show_default=False)] = BUNDLED
    / "jonah.txt",
    question: Annotated[str, typer.Option(help="Asked by processes A and C.")] = FIRST,
    second_question: Annotated[str, typer.Option(help="Asked by process B.")] = SECOND,
    max_new: Annotated[int, typer.Option(min=1, help="Most new tokens of an answer.")] = 96,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch in each process; equal, so that bits are.")] = 1,
    capacity: Annotated[str, typer.Option(help="DRAM of the demo's node.")] = "512MiB",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end, nothing before.")] = False,
) -> int:
    """Show a language model skip its prefill because another process had computed the prefix.

    Starts a node of its own and removes all it made. Status 1 when an output differs or nothing was found.
    """
    lacking = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if lacking:
        return missing(", ".join(lacking), "demo")
    stage = Stage(model, document, max_new, threads, capacity)
    screen = Screen(quiet=as_json)
    with _interruptible(), Workspace() as workspace:
        outcome = play(stage, workspace, screen, question, second_question)
    if as_json:
        typer.echo(json.dumps(outcome.as_dict()))
    else:
        screen.table(outcome)
    return 0 if outcome.good else 1


def play(stage: Stage, workspace: Workspace, screen: Screen, question: str, second: str) -> Outcome:
    """The whole demo. Raises Unavailable when a process does not come up or ends early."""
    answers: list[Answer] = []
    node = _start_node(stage, workspace, screen)
    first = Decoder(stage, workspace, "A", [question], node.target)
    answers += screen.follow(first, "has never been asked before")
    other = Decoder(stage, workspace, "B", [second], node.target)
    answers += screen.follow(other, "another process, the same document, another question")
    other.kill()
    first.kill()
    node.kill()
    screen.note(f"A (pid {first.pid}) and the node (pid {node.pid}) killed with SIGKILL")
    node = _start_node(stage, workspace, screen)
    third = Decoder(stage, workspace, "C", [question], node.target)
    answers += screen.follow(third, "a third process, after the restart of the node")
    third.kill()
    node.kill()
    plain = Decoder(stage, workspace, "uncached", [question, second], None)
    return Outcome(answers, screen.follow(plain, "no node: both questions computed whole, to compare"), stage)


def _start_node(stage: Stage, workspace: Workspace, screen: Screen) -> Node:
    node = Node(stage, workspace)
    screen.note(f"node started (pid {node.pid}, {node.target}, memory file {workspace.memory_file})")
    return node


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo like Ctrl-C does: with everything cleaned up."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
