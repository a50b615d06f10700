"""The commands of `kvstore`, each loaded when it is called: a node must not wait for the demo's imports.

A command's module has ``app``, a :class:`typer.Typer` with one command, or with several below a callback.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from kvstore.cli import missing
from kvstore.core.errors import ConfigError, InvalidArgument, KVStoreError, Unavailable

_COMMANDS = {
    "node": "kvstore.cli.node",
    "demo": "kvstore.cli.demo",
    "stat": "kvstore.cli.stat",
    "match": "kvstore.cli.match",
    "evict": "kvstore.cli.evict",
    "prefetch": "kvstore.cli.prefetch",
    "pin": "kvstore.cli.pin",
    "unpin": "kvstore.cli.unpin",
    "namespace": "kvstore.cli.namespace",
    "size": "kvstore.cli.size",
    "purge": "kvstore.cli.purge",
    "fsck": "kvstore.cli.fsck",
    "bench": "kvstore.cli.bench",
}
_OURS = ("kvstore",)


class LazyGroup(TyperGroup):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(_COMMANDS[cmd_name]).app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=LazyGroup,
    name="kvstore",
    help="A distributed KV-cache service for LLM inference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Show the version and exit.", is_eager=True),
) -> None:
    if version:
        from kvstore import __version__

        typer.echo(f"kvstore {__version__}")
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Runs a command line. Errors are one line and, where there is something to do, a hint; no traceback."""
    command = typer.main.get_command(app)
    try:
        status = command.main(list(arguments), prog_name="kvstore", standalone_mode=False)
    except KVStoreError as error:
        return _failed(error)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in _OURS:
            raise
        return missing(error.name or "a library", arguments[0] if arguments else "")
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return _usage(error)
    return status if isinstance(status, int) else 0


def _failed(error: KVStoreError) -> int:
    print(f"error: {error}", file=sys.stderr)
    if isinstance(error, Unavailable) and "key" not in error.details:
        print("hint: is a node running? `kvstore node` starts one; --target says where it is", file=sys.stderr)
    return 2 if isinstance(error, (ConfigError, InvalidArgument)) else 1


def _usage(error: Exception) -> int:
    """Errors of the command line carry their own text and status (click's convention); others are bugs."""
    show = getattr(error, "format_message", None)
    if show is None:
        if type(error).__name__ == "Abort":
            return 130
        raise error
    print(f"error: {show()}", file=sys.stderr)
    context = getattr(error, "ctx", None)
    if context is not None:
        print(f"hint: {context.command_path} --help", file=sys.stderr)
    return int(getattr(error, "exit_code", 2))
