"""kvstore node: runs a node until SIGTERM or SIGINT. Its flags come from the table of settings."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from kvstore.cli import missing
from kvstore.node.config import FLAG, NodeConfig, Setting, load, settings

app = typer.Typer(pretty_exceptions_enable=False)
_LIBRARIES = ("prometheus_client", "grpc_health", "grpc_reflection")


def _annotation(setting: Setting) -> Any:
    kind: Any = bool if setting.kind is FLAG else str
    text = f"{setting.help} [{setting.env}; default: {setting.default}]"
    return Annotated[kind | None, typer.Option(setting.flag, help=text, metavar=setting.kind.name, show_default=False)]


def with_settings(run: Any) -> Any:
    """Gives a command one flag for each setting; it gets them as keywords, None when not given."""
    own = [p for p in inspect.signature(run).parameters.values() if p.kind is not p.VAR_KEYWORD]
    flags = [
        inspect.Parameter(s.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(s))
        for s in settings()
    ]
    own = [p.replace(annotation=_hints(run)[p.name]) for p in own]

    def command(**values: Any) -> Any:
        return run(**values)

    command.__doc__ = run.__doc__
    command.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*own, *flags)}
    return command


def _hints(run: Any) -> dict[str, Any]:
    from typing import get_type_hints

    return get_type_hints(run, include_extras=True)


@app.command()
@with_settings
def node(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file of settings [KVSTORE_CONFIG].", show_default=False)
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the configuration, print it, and exit.")] = False,
    **flags: Any,
) -> int:
    """Run a node. Stop it with SIGTERM or Ctrl-C; its blocks stay for the next start."""
    loaded = load(config, flags=flags)
    if check:
        return _show(loaded)
    lacking = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if lacking:
        return missing(", ".join(lacking), "node")
    from kvstore.server.run import run

    return run(loaded)


def _show(config: NodeConfig) -> int:
    from kvstore.server.node import check

    check(config)
    for setting in settings():
        typer.echo(f"{setting.key} = {setting.kind.show(getattr(config, setting.key))}")
    return 0
