"""The commands of `kvstore`, each loaded when it is called: a node must not wait for the demo's imports.

A command's module has ``app``, a :class:`typer.Typer` with one command, or with several below a callback.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from kvstore.cli import NAMES, missing
from kvstore.core.errors import ConfigError, InvalidArgument, KVStoreError, Unavailable

_COMMANDS = {name: f"kvstore.cli.{name.replace('-', '_')}" for name in NAMES}
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


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Show the version and exit.", is_eager=True),
) -> None:
    if version:
        from kvstore import __version__

        typer.echo(f"kvstore {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def run(arguments: Sequence[str]) -> int:
    """Runs a command line. Errors are one line (with --json one JSON object on stdout) and, where there is something
    to do, a hint. A traceback only with KVSTORE_DEBUG or --log-level debug."""
    command = typer.main.get_command(app)
    as_json = "--json" in arguments
    try:
        status = command.main(list(arguments), prog_name="kvstore", standalone_mode=False)
        sys.stdout.flush()
    except KVStoreError as error:
        return _failed(error, as_json)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in _OURS:
            return _bug(error, arguments, as_json)
        return missing(error.name or "a library", arguments[0] if arguments else "")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _reader_left()
    except Exception as error:
        return _usage(error, arguments, as_json)
    return status if isinstance(status, int) else 0


def _reader_left() -> int:
    """Whoever read our output has enough (``kvstore stat | head -1``); what is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def _say(error: str, code: str, hint: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": {"code": code, "message": error, **({"hint": hint} if hint else {})}}))
    print(f"error: {error}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def _failed(error: KVStoreError, as_json: bool) -> int:
    asked = isinstance(error, Unavailable) and "key" not in error.details
    hint = "is a node running? `kvstore node` starts one; --target says where it is" if asked else ""
    _say(str(error), type(error).__name__, hint, as_json)
    return 2 if isinstance(error, (ConfigError, InvalidArgument)) else 1


def _usage(error: Exception, arguments: Sequence[str], as_json: bool) -> int:
    """Errors of the command line carry their own text and status (click's convention); others are bugs."""
    show = getattr(error, "format_message", None)
    if show is None:
        return 130 if type(error).__name__ == "Abort" else _bug(error, arguments, as_json)
    context = getattr(error, "ctx", None)
    _say(show(), "Usage", f"{context.command_path} --help" if context is not None else "", as_json)
    return int(getattr(error, "exit_code", 2))


def _bug(error: Exception, arguments: Sequence[str], as_json: bool) -> int:
    """The last resort: one line, also for what nobody foresaw."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if os.environ.get("KVSTORE_DEBUG") or "debug" in arguments or "--log-level=debug" in arguments:
        traceback.print_exception(error)
    _say(f"unexpected {text}", "Unexpected", "KVSTORE_DEBUG=1 shows where it happened; please report it", as_json)
    return 1
