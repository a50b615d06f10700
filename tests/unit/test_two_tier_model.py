"""The block store with an NVMe tier against a plain dict: moves, leases during moves, a full NVMe tier, restarts that
keep the memory file or lose it."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from kvstore.tiers.memfile import purge
from kvstore.tiers.store import BlockStore
from kvstore.tiers.values import AckLevel, ChainSlice, MissReason, PutOutcome
from tests.unit.test_store_model import SPECS, Block, Held, Path, StoreMachine, paths, picks, specs
from tests.unit.tiers.stores import MIB, audit, fill, keys_of
from tests.unit.tiers.two_tiers import audit_tiers, discard, still, two_tiers

PATIENCE = 20.0


class TwoTierMachine(StoreMachine):
    policy = "lru"
    nvme = 8 * MIB
    write_rule = "clean"

    def __init__(self) -> None:
        super().__init__()
        self.store.close()
        purge(self.config.memory_file)
        self.config = two_tiers(
            5 * MIB, self.nvme, prefault=False, policy=self.policy, nvme_write_rule=self.write_rule, room_wait=PATIENCE
        )
        self.store = self.start()

    def start(self) -> BlockStore:
        store = super().start()
        for thread in store._threads:
            if thread._thread.name == "kvstore-evict-nvme":
                thread.stop()
        return store

    def sync(self) -> None:
        if self.store._movement:
            still(self.store)
        super().sync()

    @rule(model=specs, path=paths, near=picks, request=st.integers(0, 3))
    def match(self, model: str, path: Path, near: int, request: int) -> None:
        super().match(model, path, near, request)
        spec = SPECS[model]
        found = self.store.match(self.view(spec).handle, keys_of(spec, path), (), 0)
        tiers = dict(found.tiers)
        assert max(tiers.values()) == found.blocks

    @rule(
        model=specs,
        path=paths,
        near=picks,
        first=st.integers(0, 3),
        most=st.integers(0, 3),
        pick=picks,
        keep=st.booleans(),
    )
    def acquire(self, model: str, path: Path, near: int, first: int, most: int, pick: int, keep: bool) -> None:
        """All that is here comes, from whatever tier, as far as there is room for it."""
        self.sync()
        spec = SPECS[model]
        path = self.aim(spec, path, near)
        first = max(0, first - 1)
        client, view, keys = self.client(pick), self.view(spec), keys_of(spec, path)
        every = tuple(range(len(spec.parts)))
        before, dropped = self.prefix(spec, path, every), self.evicted
        assert client.session is not None
        deadline = time.monotonic() + PATIENCE
        found = self.store.acquire(client.session, view.handle, keys, first, (), 0, most, 0, 0, deadline, whole=True)
        self.notice_damage(spec, path, first, most)
        blocks = dict(self.blocks)
        self.sync()
        now = self.prefix(spec, path, every)
        assert found.prefix_blocks <= before
        if found.miss != MissReason.LOADING and dropped == self.evicted and now == before:
            assert found.prefix_blocks == before
        places = []
        held = [(spec.root, path[: at + 1]) for at in range(first, found.blocks)]
        wanted = [blocks[block].parts[part] for block in held for part in every]
        for offset, data in zip(found.offsets.tolist(), wanted, strict=True):
            assert self.store.dram.readable(offset, len(data)) == data, f"wrong bytes in {path}"
            places.append((offset, data))
        if found.lease:
            client.leases.append(Held(client, found.lease, places, held))
        if found.lease and not keep:
            assert self.store.release(client.session, [found.lease]) == [True]
            client.leases.pop()

    @rule(model=specs, path=paths, near=picks, pick=picks)
    def prefetch(self, model: str, path: Path, near: int, pick: int) -> None:
        spec = SPECS[model]
        path = self.aim(spec, path, near)
        client = self.client(pick)
        assert client.session is not None
        found = self.store.prefetch(client.session, self.view(spec).handle, keys_of(spec, path))
        assert found.started + found.present + found.absent == len(path)
        self.sync()

    @rule(model=specs, path=paths, near=picks, pick=picks)
    def put_durably(self, model: str, path: Path, near: int, pick: int) -> None:
        """What is acknowledged as durable is on NVMe with everything above it."""
        self.sync()
        spec = SPECS[model]
        path = self.aim(spec, path, near)
        client, view, keys = self.client(pick), self.view(spec), keys_of(spec, path)
        every = tuple(range(len(spec.parts)))
        assert client.session is not None
        reserved = self.store.reserve(
            client.session, view.handle, ChainSlice(keys), (), ack=AckLevel.DURABLE, deadline=time.monotonic() + 5
        )
        self.seed += 1
        sums, written = fill(self.store, view, keys, every, reserved, self.seed)
        outcomes = list(reserved.outcomes)
        if reserved.id:
            committed = self.store.commit(
                client.session, reserved.id, sums, AckLevel.DURABLE, deadline=time.monotonic() + 5
            )
            places = [at for at, code in enumerate(outcomes) if code == PutOutcome.STORED]
            for at, code in zip(places, committed, strict=True):
                outcomes[at] = code
                if code in (PutOutcome.STORED, PutOutcome.NOT_DURABLE):
                    block = self.blocks.setdefault((spec.root, path[: at + 1]), Block())
                    for part in every:
                        block.parts.setdefault(part, written[keys[at].tobytes(), part])
        self.sync()

    def on_nvme(self) -> set[tuple[bytes, Path]]:
        """Blocks that a restart without the memory file must find: they and all above them are on NVMe whole."""
        state = self.store._state
        assert state.placement
        known = {one.root: one.id for one in state.namespaces}
        there = set()
        for root, path in sorted(self.blocks, key=lambda one: len(one[1])):
            row = state.index.find_one(known[root], keys_of(self.spec_of(root), path)[-1].tobytes())
            whole = row >= 0 and state.index.ready_at[row] == state.placement.nvme_at[row]
            if whole and (len(path) == 1 or (root, path[:-1]) in there):
                there.add((root, path))
        return there

    @rule()
    def lose_memory(self) -> None:
        """The machine restarts: what is on NVMe is found, byte for byte, and nothing else."""
        self.sync()
        if any(client.lock for client in self.clients):
            return
        there = self.on_nvme()
        self.store.close()
        purge(self.config.memory_file)
        self.store = self.start()
        self.views.clear()
        self.clients.clear()
        self.evicted = 0
        for block in list(self.blocks):
            if block in there:
                assert self.here(self.spec_of(block[0]), block[1]), f"durable block {block[1]} is lost"
                self.blocks[block].damaged = False  # the copy in memory was
            elif not self.here(self.spec_of(block[0]), block[1]):
                del self.blocks[block]
            else:  # some of its parts were on NVMe
                self.keep_parts(*block)

    def keep_parts(self, root: bytes, path: Path) -> None:
        state = self.store._state
        number = next(one.id for one in state.namespaces if one.root == root)
        row = state.index.find_one(number, keys_of(self.spec_of(root), path)[-1].tobytes())
        mask = state.index.ready_at[row]
        block = self.blocks[root, path]
        block.parts = {part: data for part, data in block.parts.items() if mask >> part & 1}

    @rule(pick=picks, damage=st.booleans())
    def restart(self, pick: int, damage: bool) -> None:
        self.sync()
        super().restart(pick, False)

    @invariant()
    def the_store_agrees_with_itself(self) -> None:
        still(self.store)
        assert self.store._movement
        failed = {key: count for key, count in self.store._movement.mover.outcomes.items() if key[1] == "failed"}
        assert not failed, failed
        audit(self.store)
        audit_tiers(self.store)

    def teardown(self) -> None:
        super().teardown()
        discard(self.config)


class ThroughMachine(TwoTierMachine):
    write_rule = "through"
    policy = "turnscore"


TwoTierMachine.TestCase.settings = ThroughMachine.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestTwoTiers = TwoTierMachine.TestCase
TestTwoTiersThrough = ThroughMachine.TestCase
