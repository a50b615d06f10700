"""kvstore cluster replicate, migrate, drain, warm: blocks move between the nodes of a cell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvstore.cli.control import TARGET_HELP, TIMEOUT_HELP, control, find_namespace
from kvstore.cli.tokens import KEYS_HELP, TOKENS_HELP, chain
from kvstore.core.errors import InvalidArgument, Unavailable
from kvstore.node.units import parse_size, show_size
from kvstore.v1 import control_pb2 as pb

if TYPE_CHECKING:
    from kvstore.v1.control_pb2_grpc import ControlStub

_NODE = "The node meant: the first digits of its id, or an address, as `kvstore cluster status` shows them."
_TO = "A node to copy to, by the first digits of its id or by address; may be given several times. Without it: chosen."
_SHORT = 5.0  # seconds to ask who is in the cell
_GRACE = 10.0  # seconds for a node to say that its time is up

Target = Annotated[str, typer.Option("--target", envvar="KVSTORE_TARGET", help=TARGET_HELP)]
Keys = Annotated[str | None, typer.Option(help=KEYS_HELP)]
TokensFile = Annotated[Path | None, typer.Option(help=TOKENS_HELP)]
Namespace = Annotated[str, typer.Option(help="Root (hex, or its first digits) or model of the namespace.")]
To = Annotated[list[str] | None, typer.Option("--to", help=_TO)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def replicate(
    keys: Keys = None,
    tokens_file: TokensFile = None,
    to: To = None,
    copies: Annotated[
        int, typer.Option(help="So many other nodes are to have it; 0: one more than have it now.", min=0, max=16)
    ] = 0,
    namespace: Namespace = "",
    target: Target = "auto",
    timeout: Annotated[float, typer.Option("--timeout", help=TIMEOUT_HELP)] = 30.0,
    as_json: AsJson = False,
) -> int:
    """Copy a chain to other nodes. Exits 1 when one of them does not have all of it afterwards."""
    _check_timeout(timeout)
    with control(target, timeout + _GRACE) as stub:
        info = find_namespace(stub, namespace)
        named = chain(info, keys, tokens_file)
        reply = stub.Replicate(
            pb.ReplicateRequest(
                root=info.root, keys=named.raw, to=to or [], copies=copies, deadline_ms=int(timeout * 1000)
            )
        )
    _tell_results(reply.results, len(named), as_json, {"started": reply.started})
    return int(any(one.trouble for one in reply.results))


def migrate(
    keys: Keys = None,
    tokens_file: TokensFile = None,
    to: To = None,
    namespace: Namespace = "",
    target: Target = "auto",
    timeout: Annotated[float, typer.Option("--timeout", help=TIMEOUT_HELP)] = 30.0,
    as_json: AsJson = False,
) -> int:
    """Copy a chain from the node asked to another one, then drop it there. Blocks that other chains go on from, or that
    are leased or pinned, stay. Exits 1 when it was not copied whole."""
    _check_timeout(timeout)
    with control(target, timeout + _GRACE) as stub:
        info = find_namespace(stub, namespace)
        named = chain(info, keys, tokens_file)
        reply = stub.Migrate(
            pb.MigrateRequest(root=info.root, keys=named.raw, to=to or [], deadline_ms=int(timeout * 1000))
        )
    _tell_results(reply.results, len(named), as_json, {"moved": reply.moved, "dropped": reply.dropped})
    if not as_json:
        typer.echo(f"{reply.moved} blocks are there, {reply.dropped} of them not here any more")
    return int(not reply.results or any(one.trouble for one in reply.results))


def drain(
    node: Annotated[str | None, typer.Argument(help=f"{_NODE} Without it: the node asked.", show_default=False)] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds it may take; 0: as long as it takes.")] = 0.0,
    cancel: Annotated[bool, typer.Option("--cancel", help="Let the node take new blocks again.")] = False,
    target: Target = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> int:
    """Empty a node before it is stopped: it takes no new blocks, and what only it has is copied to others, hottest
    first. Exits 0 when nothing would be lost, 1 when some blocks are left."""
    _check_timeout(timeout)
    last = pb.DrainProgress()
    with _node(target, node, timeout) as stub:
        try:
            for last in stub.Drain(pb.DrainRequest(deadline_seconds=timeout, cancel=cancel)):
                _tell_drain(last, as_json, cancel)
        except KeyboardInterrupt:
            typer.echo("the node still takes no new blocks; `kvstore cluster drain --cancel` changes that", err=True)
            raise
    if not last.finished:
        raise Unavailable("the node ended before the drain did")
    return int(last.blocks_left > 0 or bool(last.trouble))


def warm(
    node: Annotated[str | None, typer.Argument(help=f"{_NODE} Without it: the node asked.", show_default=False)] = None,
    max_bytes: Annotated[
        str, typer.Option("--max-bytes", help="How much it fetches, as 10GiB; auto: 80 % of what is free there.")
    ] = "auto",
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds it may take; 0: as long as it takes.")] = 0.0,
    target: Target = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> int:
    """Have a new or restarted node fetch what is used most on the others. Exits 1 when nothing could be fetched, and
    something says why."""
    _check_timeout(timeout)
    request, last = pb.WarmRequest(deadline_seconds=timeout, max_bytes=_bytes(max_bytes)), pb.WarmProgress()
    with _node(target, node, timeout) as stub:
        for last in stub.Warm(request):
            _tell_warm(last, as_json)
    if not last.finished:
        raise Unavailable("the node ended before the warm-up did")
    return int(bool(last.trouble) and not last.blocks_done)


# --- asking -------------------------------------------------------------------------------------------------


@contextmanager
def _node(target: str, node: str | None, seconds: float) -> Iterator[ControlStub]:
    """The control plane of the node meant, for a call of so many seconds."""
    if node is not None:
        target = f"grpc://{_address(target, node)}"
    with control(target, seconds + _GRACE if seconds else 86_400) as stub:
        yield stub


def _address(target: str, node: str) -> str:
    """Control address of a node, from what the node at ``target`` knows of its cell. Raises InvalidArgument."""
    with control(target, _SHORT) as stub:
        status = stub.ClusterStatus(pb.ClusterStatusRequest())
    known = [status.node, *(peer.member for peer in status.peers if peer.state != "gone")]
    found = [
        one for one in known
        if one.node_id.hex().startswith(node.lower()) or node in (one.control_address, one.data_address)
    ]  # fmt: skip
    if len(found) == 1 and node:
        return str(found[0].control_address)
    listed = ", ".join(f"{one.node_id.hex()[:8]} ({one.control_address})" for one in known)
    raise InvalidArgument(f"{len(found)} nodes of the cell match {node!r}; there are: {listed}", field="node")


def _check_timeout(seconds: float) -> None:
    if not 0 <= seconds <= 86_000:
        raise InvalidArgument(f"--timeout must be 0 to 86000 seconds, not {seconds}", field="timeout")


def _bytes(text: str) -> int:
    if text == "auto":
        return 0
    try:
        return parse_size(text)
    except ValueError as error:
        raise InvalidArgument(f"--max-bytes: {error}", field="max_bytes") from None


# --- telling ------------------------------------------------------------------------------------------------


def _tell_results(results: Any, asked: int, as_json: bool, more: dict[str, int]) -> None:
    if as_json:
        listed = [{"node": one.node, "blocks": one.blocks, "trouble": one.trouble} for one in results]
        typer.echo(json.dumps({**more, "asked": asked, "results": listed}))
        return
    if not results:
        typer.echo("nothing to do: enough nodes have it, or there is no other that takes blocks")
    for one in results:
        typer.echo(f"node {one.node[:8]}: {one.blocks} of {asked} blocks{f': {one.trouble}' if one.trouble else ''}")


def _tell_drain(step: pb.DrainProgress, as_json: bool, cancel: bool) -> None:
    if as_json:
        names = ("blocks_done", "blocks_total", "bytes_done", "blocks_left", "finished", "trouble")
        typer.echo(json.dumps({name: getattr(step, name) for name in names}))
        return
    if cancel:
        typer.echo("the node takes new blocks again")
        return
    done = f"{step.blocks_done} of {step.blocks_total} blocks that no node that stays had are there now"
    typer.echo(f"{done} ({show_size(step.bytes_done)} copied)")
    if step.finished and step.blocks_left:
        typer.echo(f"{step.blocks_left} blocks have no copy on a node that stays: {step.trouble}")
    elif step.finished and step.trouble:
        typer.echo(step.trouble)
    elif step.finished:
        typer.echo("nothing is lost when this node stops now")


def _tell_warm(step: pb.WarmProgress, as_json: bool) -> None:
    if as_json:
        names = ("blocks_done", "bytes_done", "finished", "trouble")
        typer.echo(json.dumps({name: getattr(step, name) for name in names}))
        return
    typer.echo(f"{step.blocks_done} blocks fetched ({show_size(step.bytes_done)})")
    if step.finished and step.trouble:
        typer.echo(step.trouble)
