"""The command `kvstore`. Its libraries (typer, rich) are extras: without them it says which one to install."""

from __future__ import annotations

import sys
from collections.abc import Sequence

NAMES = (
    "node", "demo", "stat", "match", "evict", "prefetch", "pin", "unpin", "namespace", "size", "purge", "fsck",
    "cluster", "dev-cluster", "doctor", "bench",
)  # fmt: skip
# extras by command; others: cli
_NEEDS = {
    "node": ("node",),
    "dev-cluster": ("node",),
    "demo": ("decoder", "node"),
    "bench": ("node",),
    "fsck": ("node",),
    "doctor": ("node",),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status. 2: it was called or configured wrongly, 1: it could not do its work."""
    try:
        return _main(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # while libraries were imported
        return 130


def _main(given: list[str]) -> int:
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        if given and not given[0].startswith("-") and given[0] not in NAMES:
            print(f"error: No such command {given[0]!r}.\nhint: there are {', '.join(NAMES)}", file=sys.stderr)
            return 2
        return missing(error.name or "a library", given[0] if given else "")
    from kvstore.cli.app import run

    return run(given)


def missing(library: str, command: str) -> int:
    """Says which extras bring a library that is not installed."""
    wanted = " ".join(f"'kvstore-llm[{extra}]'" for extra in _NEEDS.get(command, ("cli",)))
    name = f"kvstore {command}".strip()
    print(f"error: {name} needs {library}, which is not installed\nhint: pip install {wanted}", file=sys.stderr)
    return 2
