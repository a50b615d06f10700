"""What placement knows of a node."""

from __future__ import annotations

from dataclasses import dataclass, field

import xxhash


@dataclass(frozen=True, slots=True)
class Room:
    """``node``: its number in the PrefixIndex. ``taken_bytes``: of new blocks that it took lately, over a time that is
    the same for all nodes; together with ``free_bytes`` it says who is to take the next ones."""

    node: int
    node_id: bytes
    capacity_bytes: int
    free_bytes: int = 0
    taken_bytes: int = 0
    host: str = ""
    zone: str = ""
    takes: bool = True  # False: it is draining, or suspect
    seed: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", xxhash.xxh3_64_intdigest(self.node_id))

    @property
    def load(self) -> float:
        """Share of its capacity that it took lately, less what is free."""
        return (self.taken_bytes - self.free_bytes) / max(self.capacity_bytes, 1)

    @property
    def machine(self) -> str:
        """Nodes that fail together: one that names no host stands alone."""
        return self.host or self.node_id.hex()
