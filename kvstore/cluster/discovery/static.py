"""A fixed list of addresses."""

from __future__ import annotations

from collections.abc import Iterable

from kvstore.cluster.discovery.base import Discovery, OnChange, Report, Seed
from kvstore.cluster.member import Member, split_address


class StaticDiscovery(Discovery):
    """Every node of the cell may be given the same list: its own address among them does no harm."""

    def __init__(self, addresses: Iterable[str]) -> None:
        """Raises InvalidArgument for an address that is not "host:port"."""
        self._seeds = frozenset(map(Seed, addresses))
        for seed in self._seeds:
            split_address(seed.address)

    def start(self, announce: Member, on_change: OnChange) -> None:
        Report(on_change, announce.control_address).tell(self._seeds)

    def update(self, announce: Member) -> None:
        """The list knows addresses alone."""

    def stop(self) -> None:
        """Nothing runs."""
