"""Puts: piece by piece, at the node where the chain belongs; at the home node when that one does not take them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvstore.client.link import Link
from kvstore.client.patience import patience
from kvstore.client.placing import VISIBLE, Goal, goal
from kvstore.client.results import PutResult, failed_at, tally
from kvstore.core.keys import KEY_BYTES
from kvstore.transport.batch import PutCall, Targets
from kvstore.transport.outcome import PARENT_MISSING, PRESENT, outcome_name
from kvstore.transport.plan import Plan

if TYPE_CHECKING:
    from kvstore.client.namespace import Namespace

PIECE_BYTES = 128 << 20  # a larger put becomes visible piece by piece


def put(namespace: Namespace, call: PutCall, chain: bytes, sources: Targets, deadline: float) -> PutResult:
    """Stores the blocks of ``call``, the last ones of ``chain``."""
    chosen = goal(namespace, call, chain, deadline)
    done = bytes([PRESENT]) * chosen.present
    run = _Run(namespace, call, chain, sources, deadline)
    result, done = run.at(chosen, done)
    if not result.complete and not chosen.home and result.failed:
        result, done = run.at(replace(chosen, link=namespace.client.link, home=True, lacks=True), done)
    if len(done) > chosen.present:
        note(namespace, chain[: (call.first + len(done)) * KEY_BYTES], chosen)
    return result


def piece_blocks(link: Link, plan: Plan) -> int:
    """How many blocks one request may carry."""
    most_keys, most_bytes = link.bounds()
    return max(1, min(PIECE_BYTES // plan.block_bytes, most_keys, most_bytes // plan.sent_bytes))


def can_bring(link: Link, call: PutCall, outcomes: bytes) -> bool:
    """Whether a put found nothing to hang on that its node might get from others."""
    return bool(call.first) and outcomes[:1] == bytes([PARENT_MISSING]) and link.in_cell


def note(namespace: Namespace, chain: bytes, chosen: Goal) -> None:
    """The chain goes on there, and is read there, before the home node has heard of it."""
    if not chosen.home:
        router, blocks = namespace.client.router, len(chain) // KEY_BYTES
        router.recent.note(namespace.root, chain[-KEY_BYTES:], chosen.node_id, chosen.address, blocks)


class _Run:
    """One put. Outcomes are those of its first blocks; after a block that failed nothing could ever be matched."""

    def __init__(self, namespace: Namespace, call: PutCall, chain: bytes, sources: Targets, deadline: float) -> None:
        self._namespace = namespace
        self._call = call
        self._chain = chain
        self._sources = sources
        self._deadline = deadline
        self._total = len(call.keys) // KEY_BYTES

    def at(self, chosen: Goal, done: bytes) -> tuple[PutResult, bytes]:
        """Goes on after the blocks ``done`` at one node: what became of all, and outcomes up to one that failed."""
        bring = chosen.lacks
        while len(done) < self._total:
            at = len(done)
            piece = self._call.cut(at, at + piece_blocks(chosen.link, self._call.plan))
            outcomes = self._piece(chosen, piece, at, bring)
            if isinstance(outcomes, str):
                return tally(done, self._total - at, outcomes), done
            failed = failed_at(outcomes)
            if failed < len(outcomes):
                if outcome_name(outcomes[failed]) == "busy" and failed:
                    done += outcomes[:failed]  # the bound of one request; the next may go on
                    continue
                if not bring and can_bring(chosen.link, piece, outcomes):
                    bring = True
                    continue
                missing = self._total - at - len(outcomes)
                return tally(done + outcomes, missing, outcome_name(outcomes[failed])), done + outcomes[:failed]
            done += outcomes
            bring = False
        return tally(done), done

    def _piece(self, chosen: Goal, piece: PutCall, at: int, bring: bool) -> bytes | str:
        width, count = len(piece.plan.pieces), len(piece.keys) // KEY_BYTES
        sources = self._sources[at * width : (at + count) * width]
        before = self._chain[: piece.first * KEY_BYTES] if bring else b""
        until = self._deadline
        if not chosen.home:
            until = patience(until, count * piece.plan.sent_bytes, waits=bool(before) or piece.ack != VISIBLE)
        return self._namespace.served(
            until,
            lambda transport, handle: transport.put(replace(piece, handle=handle, before=before), sources, until),
            link=chosen.link,
        )
