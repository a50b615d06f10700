"""What the demo shows: each request as it runs, then a table; or all of it as one object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from kvstore.cli.demo_run import Decoder, Stage


@dataclass(frozen=True, slots=True)
class Answer:
    """One request of one decoder process. Seconds are the time to its first token."""

    process: str
    question: str
    tokens: int
    found: int
    computed: int
    seconds: float
    ids: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answers with the node, and those of an uncached process to compare with."""

    answers: list[Answer]
    uncached: list[Answer]
    stage: Stage
    _by_question: dict[str, Answer] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_question.update({answer.question: answer for answer in self.uncached})

    def cold(self, answer: Answer) -> Answer:
        """The same request computed whole, without a node."""
        return self._by_question[answer.question]

    def ratio(self, answer: Answer) -> float:
        """How many times sooner the first token came than in the uncached run."""
        return self.cold(answer).seconds / answer.seconds

    def equal(self, answer: Answer) -> bool:
        return answer.ids == self.cold(answer).ids

    @property
    def good(self) -> bool:
        """All outputs equal the uncached ones; the first request found nothing, each later one did."""
        warm = self.answers[1:]
        return bool(warm) and all(self.equal(a) for a in self.answers) and all(a.found > 0 for a in warm)

    def as_dict(self) -> dict[str, Any]:
        return {
            "demo": "kvstore",
            "model": str(self.stage.model),
            "document": str(self.stage.document),
            "threads": self.stage.threads,
            "requests": [self._row(answer) for answer in self.answers],
            "ok": self.good,
        }

    def _row(self, answer: Answer) -> dict[str, Any]:
        names = ("process", "question", "tokens", "found", "computed", "text", "ids")
        seconds = {"first_token_seconds": answer.seconds, "uncached_first_token_seconds": self.cold(answer).seconds}
        return (
            {n: getattr(answer, n) for n in names}
            | seconds
            | {"ratio": self.ratio(answer), "equal": self.equal(answer)}
        )


class Screen:
    """Prints as things happen; ``quiet`` prints nothing."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(quiet=quiet, highlight=False)

    def note(self, text: str) -> None:
        self._console.print(f"\n[dim]{text}[/dim]", soft_wrap=True)

    def follow(self, decoder: Decoder, about: str) -> list[Answer]:
        """Shows a decoder's answers while they are written."""
        self._console.print(f"\n[bold]{decoder.name}[/bold] (pid {decoder.pid}): {about}")
        answers: list[Answer] = []
        for event in decoder.events():
            question = decoder.questions[min(len(answers), len(decoder.questions) - 1)]
            self._show(event, question)
            if event["event"] == "answer":
                answers.append(_answer(decoder.name, question, event))
        return answers

    def _show(self, event: dict[str, Any], question: str) -> None:
        write = self._console.print
        kind = event["event"]
        if kind == "prompt":
            write(f"  {event['tokens']:,} tokens: the document and", end=" ")
            write(question, style="italic", markup=False, soft_wrap=True)
        elif kind == "first":
            seconds = f"first token after {event['seconds']:.3f} s"
            write(f"  {event['found']:,} tokens found, {event['computed']:,} computed, {seconds}")
            write("  [green]>[/green]", end="")
        elif kind == "text":
            write(event["text"], end="", markup=False, soft_wrap=True, style="green")
        elif kind == "answer":
            write("" if event["text"].endswith("\n") else "\n", end="")

    def table(self, outcome: Outcome) -> None:
        """The figures side by side, and the verdict."""
        table = Table()
        for name in ("process", "tokens", "found", "computed", "TTFT", "cold TTFT", "ratio", "equal"):
            table.add_column(name, justify="left" if name == "process" else "right", no_wrap=True)
        for answer in outcome.answers:
            table.add_row(
                answer.process, f"{answer.tokens:,}", f"{answer.found:,}", f"{answer.computed:,}",
                f"{answer.seconds:.3f} s", f"{outcome.cold(answer).seconds:.3f} s", f"{outcome.ratio(answer):.1f} x",
                "[green]yes[/green]" if outcome.equal(answer) else "[red]NO[/red]",
            )  # fmt: skip
        self._console.print()
        self._console.print(table)
        self._console.print(_verdict(outcome))


def _answer(process: str, question: str, event: dict[str, Any]) -> Answer:
    return Answer(
        process, question, event["tokens"], event["found"], event["computed"], event["first_token_seconds"],
        event["ids"], event["text"],
    )  # fmt: skip


def _verdict(outcome: Outcome) -> str:
    if outcome.good:
        return "[green]Every output is the same, to the token, as that of an uncached run.[/green]"
    differing = [answer.process for answer in outcome.answers if not outcome.equal(answer)]
    if differing:
        return f"[red]The output of {', '.join(differing)} differs from the uncached run: this must not happen.[/red]"
    return "[red]A request that should have found the prefix found nothing.[/red]"
