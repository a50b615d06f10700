"""kvstore stat: what a node holds and does."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from kvstore.cli.control import TARGET_HELP, TIMEOUT_HELP, control
from kvstore.node.units import show_size
from kvstore.v1 import control_pb2 as pb
from kvstore.v1 import types_pb2 as types

app = typer.Typer(pretty_exceptions_enable=False)
_PINS = ("soft_blocks", "hard_blocks", "hard_bytes", "max_bytes", "max_tenant_bytes")


@app.command()
def stat(
    target: Annotated[str, typer.Option(envvar="KVSTORE_TARGET", help=TARGET_HELP)] = "auto",
    timeout: Annotated[float, typer.Option(help=TIMEOUT_HELP)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a node's tiers, hits and misses, and namespaces."""
    with control(target, timeout) as stub:
        reply = stub.Stat(pb.StatRequest())
    value = as_dict(reply)
    if as_json:
        typer.echo(json.dumps(value))
        return
    _print(value)


def as_dict(reply: pb.StatReply) -> dict[str, Any]:
    """A StatReply with ids in hex and names for numbers."""
    plain = ("version", "uptime_seconds", "blocks", "writing", "leased_blocks", "leases", "sessions")
    more = ("orphan_sessions", "index_bytes", "data_address", "socket")
    return {
        "node_id": reply.node_id.hex(),
        "boot_id": reply.boot_id.hex(),
        **{name: getattr(reply, name) for name in plain + more},
        "transports": dict(sorted(reply.transports.items())),
        "tiers": [_tier(tier) for tier in reply.tiers],
        "counters": dict(sorted(reply.counters.items())),
        "namespaces": [namespace_dict(one) for one in reply.namespaces],
        "pins": {name: getattr(reply.pins, name) for name in _PINS},
    }


def _tier(tier: pb.TierStat) -> dict[str, Any]:
    names = ("capacity_bytes", "used_bytes", "ready_bytes", "segments", "segments_ready")
    name = types.TierKind.Name(tier.tier).removeprefix("TIER_KIND_").lower()
    health = {field: getattr(tier, field) for field in ("state", "reason", "advice", "since")}
    return {"tier": name, **{field: getattr(tier, field) for field in names}, **health, "counters": dict(tier.counters)}


def namespace_dict(info: pb.NamespaceInfo) -> dict[str, Any]:
    """A namespace with its ids in hex and its sizes by name of the tier."""
    spec = json.loads(info.canonical)
    return {
        "root": info.root.hex(),
        "model": spec["model"],
        "tenant": spec["tenant"],
        "block_tokens": spec["block_tokens"],
        "parts": info.parts,
        "blocks": info.blocks,
        "bytes": info.bytes,
        "tiers": {_tier_name(one.tier): one.bytes for one in info.tiers},
        "pinned_bytes": info.pinned_bytes,
        "generation": info.generation,
        "idle_seconds": info.idle_seconds,
    }


def _tier_name(tier: int) -> str:
    return types.TierKind.Name(tier).removeprefix("TIER_KIND_").lower()


# --- for people ---------------------------------------------------------------------------------------------


def _print(value: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()
    console.print(
        f"node {value['node_id']}  version {value['version']}  up {_ago(value['uptime_seconds'])}\n"
        f"data path {value['data_address'] or 'off'}, {value['socket'] or 'no unix socket'}"
        f"{_moved_by(value['transports'])}",
        highlight=False,
    )
    console.print(
        f"{value['blocks']} blocks, {value['leased_blocks']} of them leased ({value['leases']} leases), "
        f"{value['writing']} being written; {value['sessions']} sessions, {value['orphan_sessions']} orphans; "
        f"index {show_size(value['index_bytes'])}",
        highlight=False,
    )
    pins = value["pins"]
    if pins["soft_blocks"] or pins["hard_blocks"]:
        console.print(
            f"pinned: {pins['hard_blocks']} blocks hard ({show_size(pins['hard_bytes'])} of at most "
            f"{show_size(pins['max_bytes'])}), {pins['soft_blocks']} soft",
            highlight=False,
        )
    for table in (_tiers(value["tiers"]), _traffic(value["counters"]), namespace_table(value["namespaces"])):
        if table.row_count:
            console.print(table)


def _moved_by(transports: dict[str, int]) -> str:
    """How sessions have their bytes moved, of all that the node offers."""
    listed = ", ".join(f"{name} {count}" for name, count in transports.items())
    return f"\nsessions by transport: {listed}" if transports else ""


def _table(title: str, *columns: str) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for nth, column in enumerate(columns):
        table.add_column(column, justify="right" if nth else "left")
    return table


def _tiers(tiers: list[dict[str, Any]]) -> Any:
    table = _table("tiers", "tier", "capacity", "used", "ready", "full", "segments ready", "state")
    for tier in tiers:
        share = tier["used_bytes"] / max(1, tier["capacity_bytes"])
        sizes = [show_size(tier[name]) for name in ("capacity_bytes", "used_bytes", "ready_bytes")]
        table.add_row(
            tier["tier"], *sizes, f"{share:.0%}", f"{tier['segments_ready']} of {tier['segments']}", _state(tier)
        )
    return table


def _state(tier: dict[str, Any]) -> str:
    if tier["state"] in ("", "ok"):
        return "ok"
    told = [tier["state"], tier["reason"], tier["advice"]]
    return ": ".join(part for part in told if part)


def _traffic(counters: dict[str, int]) -> Any:
    """Hits and misses by reason first: they are what a cache is for; then the rest."""
    table = _table("since the start", "counter", "count", "share")
    lookups = sorted(name for name in counters if name == "hit_blocks" or name.startswith("miss_blocks_"))
    asked = sum(counters[name] for name in lookups)
    for name in lookups:
        table.add_row(name.replace("_", " "), str(counters[name]), f"{counters[name] / max(1, asked):.1%}")
    for name in sorted(set(counters) - set(lookups)):
        table.add_row(name.replace("_", " "), str(counters[name]), "")
    return table


def namespace_table(known: list[dict[str, Any]]) -> Any:
    """Namespaces for people, the largest first."""
    tiers = sorted({name for one in known for name in one["tiers"]})
    table = _table(
        "namespaces", "root", "model", "tenant", "parts", "blocks", *tiers, "pinned", "generation", "last used"
    )
    for one in sorted(known, key=lambda one: -one["bytes"]):
        table.add_row(
            one["root"][:8],
            one["model"],
            one["tenant"],
            str(one["parts"]),
            str(one["blocks"]),
            *(show_size(one["tiers"].get(name, 0)) for name in tiers),
            show_size(one["pinned_bytes"]),
            str(one["generation"]),
            f"{_ago(one['idle_seconds'])} ago",
        )
    return table


def _ago(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
