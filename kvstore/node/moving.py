"""Moving blocks between the nodes of a cell, as the control plane sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from kvstore.v1 import control_pb2 as pb

Alive = Callable[[], bool]  # whether the caller still waits


class Moving(Protocol):
    """Safe to use from several threads. Methods raise KVStoreError."""

    def replicate(self, request: pb.ReplicateRequest) -> pb.ReplicateReply:
        """Copies a chain to other nodes."""

    def migrate(self, request: pb.MigrateRequest) -> pb.MigrateReply:
        """Copies a chain to other nodes, and drops here what they have then."""

    def drain(self, request: pb.DrainRequest, alive: Alive) -> Iterator[pb.DrainProgress]:
        """Takes no new blocks any more, and copies to other nodes what only this one has."""

    def warm(self, request: pb.WarmRequest, alive: Alive) -> Iterator[pb.WarmProgress]:
        """Fetches what is used most on other nodes."""

    def hottest(self, request: pb.HottestRequest) -> Iterator[pb.HotChain]:
        """The chains used last here."""

    def copy(self, request: pb.CopyRequest, alive: Alive) -> pb.CopyReply:
        """Fetches a chain from the node that asks for it, or from the one it names."""
