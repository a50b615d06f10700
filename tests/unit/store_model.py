"""What the model of the block store keeps: a plain dict's worth of facts, and the values its rules draw."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.sessions import Session
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import NamespaceView
from tests.unit.tiers.stores import MIB, ONE, TWO, ProcessLock, keys_of, small

Path = tuple[int, ...]
paths = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)
SPECS = {spec.model: spec for spec in (ONE, TWO)}
specs = st.sampled_from(sorted(SPECS))
picks = st.integers(0, 999)


@dataclass
class Block:
    """What the model knows of one block: bytes by part, and who holds it."""

    parts: dict[int, bytes] = field(default_factory=dict)
    damaged: bool = False


@dataclass
class Held:
    """A lease: where its bytes lie and what they must be for as long as it lives."""

    session: Client
    number: int
    places: list[tuple[int, bytes]]
    blocks: list[tuple[bytes, Path]]


@dataclass
class Writing:
    """A reservation that is filled and not committed yet."""

    session: Client
    number: int
    view: NamespaceView
    blocks: list[Path]
    parts: tuple[int, ...]
    sums: np.ndarray
    written: dict[tuple[bytes, int], bytes]
    places: list[tuple[int, int]]
    boot: bytes
    rows: list[int]


@dataclass(eq=False)
class Client:
    session: Session | None
    lock: ProcessLock | None  # None: a network session
    leases: list[Held] = field(default_factory=list)
    writes: list[Writing] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.session is None


class StoreModel(RuleBasedStateMachine):
    """A store, the model beside it, and what its rules need to look up."""

    def __init__(self) -> None:
        super().__init__()
        self.config = small(5 * MIB, prefault=False, policy=self.policy)
        self.store = self.start()
        self.blocks: dict[tuple[bytes, Path], Block] = {}  # committed and not known to be gone
        self.clients: list[Client] = []
        self.views: dict[bytes, NamespaceView] = {}
        self.seed = 0
        self.evicted = 0

    policy = "lru"

    def start(self) -> BlockStore:
        store = BlockStore(self.config)
        store._pressure.stop()  # it works when a rule says so, that the model may know what to expect
        return store

    # --- helpers -------------------------------------------------------------------------------------------

    def view(self, spec: NamespaceSpec) -> NamespaceView:
        if spec.root not in self.views:
            self.views[spec.root] = self.store.open_namespace(spec.canonical())
        return self.views[spec.root]

    def client(self, pick: int) -> Client:
        alive = [client for client in self.clients if not client.ended]
        if not alive:
            if len(self.clients) == self.config.max_sessions:
                self.die(pick)
            return self.connect(bool(pick % 2))
        return alive[pick % len(alive)]

    def connect(self, shared_memory: bool) -> Client:
        session = self.store.open_session(shared_memory, "model")
        client = Client(session, ProcessLock(self.store, session) if shared_memory else None)
        self.clients.append(client)
        return client

    def spec_of(self, root: bytes) -> NamespaceSpec:
        return ONE if root == ONE.root else TWO

    def aim(self, spec: NamespaceSpec, path: Path, near: int) -> Path:
        """Mostly a chain that is here (and one block more, sometimes); else ``path``."""
        there = sorted(known for root, known in self.blocks if root == spec.root)
        if not there or near % 5 == 0:
            return path
        found = there[near % len(there)]
        return found if near % 2 else found + path[:1]

    def here(self, spec: NamespaceSpec, path: Path) -> bool:
        """The store has a row for this block (looked up behind its back, touching nothing)."""
        state = self.store._state
        number = next((one.id for one in state.namespaces if one.root == spec.root), None)
        if number is None:
            return False
        with state.lock:
            return state.index.find_one(number, keys_of(spec, path)[-1].tobytes()) >= 0

    def writing(self, spec: NamespaceSpec, path: Path, part: int) -> bool:
        return any(
            one.view.root == spec.root and path in one.blocks and part in one.parts and self.here_still(one, path)
            for client in self.clients
            for one in client.writes
        )

    def sync(self) -> None:
        """Takes note of what was evicted for room: only what no lease held, and never a block before those after it."""
        evicted = self.store.stat().counters.get("dropped_blocks_evicted", 0)
        if evicted == self.evicted:
            return
        self.evicted = evicted
        leased = {block for client in self.clients for lease in client.leases for block in lease.blocks}
        for root, path in list(self.blocks):
            if not self.here(self.spec_of(root), path):
                assert (root, path) not in leased, f"block {path} was evicted under a lease"
                del self.blocks[root, path]
        for root, path in self.blocks:
            spec = self.spec_of(root)
            assert len(path) == 1 or self.here(spec, path[:-1]), f"block {path} outlived the one before it"

    def forget_branch(self, root: bytes, path: Path) -> None:
        for other in [one for one in self.blocks if one[0] == root and one[1][: len(path)] == path]:
            del self.blocks[other]

    def prefix(self, spec: NamespaceSpec, path: Path, parts: tuple[int, ...]) -> int:
        for length in range(len(path)):
            block = self.blocks.get((spec.root, path[: length + 1]))
            if block is None or any(part not in block.parts for part in parts):
                return length
        return len(path)
