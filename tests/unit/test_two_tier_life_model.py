"""The two-tier store against a plain dict through all that happens in its life: pins, namespaces that are rotated,
segments that change their slot size, and crashes while blocks move between the tiers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from kvstore.core.errors import NoSpace
from kvstore.core.namespace import NamespaceSpec, PartSpec
from kvstore.tiers.index import HARD_PIN, NO_PIN, SOFT_PIN
from kvstore.tiers.values import PutOutcome
from tests.unit.store_model import SPECS, Block, Path, paths, picks, specs
from tests.unit.test_two_tier_model import PATIENCE, TwoTierMachine
from tests.unit.tiers.stores import STORED, keys_of, put, read
from tests.unit.tiers.two_tiers import Crash, put_durably

LITTLE = NamespaceSpec("little", 4, parts=(PartSpec("0", 20_000),))
SIZES = {spec.root: sum(part.bytes for part in spec.parts) for spec in (*SPECS.values(), LITTLE)}


class LifeMachine(TwoTierMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pins: dict[tuple[bytes, Path], int] = {}

    def spec_of(self, root: bytes) -> NamespaceSpec:
        return LITTLE if root == LITTLE.root else super().spec_of(root)

    # --- what others do to pins ----------------------------------------------------------------------------

    def sync(self) -> None:
        super().sync()
        for block in [block for block in self.pins if block not in self.blocks]:
            assert self.pins[block] != HARD_PIN, f"block {block[1]} was evicted under a hard pin"
            del self.pins[block]

    def forget_branch(self, root: bytes, path: Path) -> None:
        super().forget_branch(root, path)
        self.pins = {block: level for block, level in self.pins.items() if block in self.blocks}

    # --- pins ----------------------------------------------------------------------------------------------

    @rule(model=specs, path=paths, near=picks, hard=st.booleans())
    def pin(self, model: str, path: Path, near: int, hard: bool) -> None:
        self.sync()
        spec = SPECS[model]
        path = self.aim(spec, path, near)
        chain = [(spec.root, path[: at + 1]) for at in range(len(path))]
        here = [block for block in chain if block in self.blocks]
        keys, handle = keys_of(spec, path), self.view(spec).handle
        if not hard:
            wanted = [block for block in here if not self.holds_others(block)]
            assert self.store.pin(handle, keys, False, ttl=float(near % 2 * 1000)) == len(wanted)
            self.pins.update(dict.fromkeys(wanted, SOFT_PIN))
            return
        fresh = sum(SIZES[spec.root] for block in here if self.pins.get(block) != HARD_PIN)
        if fresh and self.hard_bytes() + fresh > self.store.stat().pins.max_bytes:
            with pytest.raises(NoSpace):
                self.store.pin(handle, keys, True)
            return
        first = next((at for at, block in enumerate(chain) if block not in self.blocks), len(chain))
        assert self.store.pin(handle, keys, True) == first
        self.pins.update(dict.fromkeys(chain[:first], HARD_PIN))

    @rule(model=specs, path=paths, near=picks)
    def unpin(self, model: str, path: Path, near: int) -> None:
        self.sync()
        spec = SPECS[model]
        path = self.aim(spec, path, near)
        lifted = 0
        for end in range(len(path), 0, -1):
            block = (spec.root, path[:end])
            if block in self.pins and not self.holds_others(block):
                del self.pins[block]
                lifted += 1
        assert self.store.unpin(self.view(spec).handle, keys_of(spec, path)) == lifted

    def holds_others(self, block: tuple[bytes, Path]) -> bool:
        """It is hard-pinned, and so are blocks that hang on it."""
        root, path = block
        below = (one for one, level in self.pins.items() if level == HARD_PIN and one[0] == root)
        return self.pins.get(block) == HARD_PIN and any(one[1][:-1] == path for one in below)

    def hard_bytes(self) -> int:
        return sum(SIZES[root] for (root, _), level in self.pins.items() if level == HARD_PIN)

    # --- namespaces and sizes --------------------------------------------------------------------------------

    @rule(model=specs, really=st.integers(0, 3))
    def rotate(self, model: str, really: int) -> None:
        spec = SPECS[model]
        if really != 3:
            return
        self.sync()
        view = self.view(spec)
        known = sum(root == spec.root for root, _ in self.blocks)
        rotated = self.store.rotate_namespace(spec.root)
        assert rotated.blocks >= known
        self.forget_branch(spec.root, ())
        assert self.store.namespace_at(spec.root).handle == view.handle

    @rule(first=st.integers(0, 200), count=st.integers(1, 60))
    def put_little(self, first: int, count: int) -> None:
        """Blocks of another size, that need segments of their own; what finds no room is not stored."""
        self.sync()
        view, session = self.view(LITTLE), self.store.open_session(False)
        for number in range(first, first + count):
            path = (number,)
            self.seed += 1
            keys = keys_of(LITTLE, path)
            outcomes, written = put(self.store, session, view, keys, seed=self.seed)
            if outcomes[0] == STORED:
                self.blocks[LITTLE.root, path] = Block({0: written[keys[0].tobytes(), 0]})
        self.store.close_session(session)
        self.sync()

    @rule(first=st.integers(0, 260))
    def get_little(self, first: int) -> None:
        self.sync()
        session, view = self.store.open_session(False), self.view(LITTLE)
        for number in range(first, first + 20):
            known = self.blocks.get((LITTLE.root, (number,)))
            keys, deadline = keys_of(LITTLE, (number,)), time.monotonic() + PATIENCE
            found = self.store.acquire(session, view.handle, keys, deadline=deadline, whole=True)
            if found.blocks:
                assert known
                assert read(self.store, view, found.offsets) == [known.parts[0]]
                self.store.release(session, [found.lease])
            self.sync()
        self.store.close_session(session)

    @rule(size=st.sampled_from([100_000, 70_000, 9_000, 20_000, 3_000]), on_nvme=st.booleans())
    def reclaim(self, size: int, on_nvme: bool) -> None:
        """A segment is emptied for blocks of a size, if that is the lesser loss."""
        self.sync()
        movement, nvme = self.store._movement, self.store._state.tiers[1]
        assert movement
        if on_nvme:
            movement.reclaimer._not_before.clear()
            movement.reclaimer.reclaim(nvme.slots.kind(size, 1))  # type: ignore[attr-defined]
        else:
            reclaimer = self.store._evictor.reclaimer
            reclaimer._not_before.clear()
            reclaimer.reclaim(self.store.dram.slot_class(size, 1))
        self.sync()

    # --- the end of a node -----------------------------------------------------------------------------------

    @rule(victims=st.integers(0, 40), pause=st.sampled_from([0.0, 0.005, 0.03, 0.15]))
    def crash(self, victims: int, pause: float) -> None:
        """The node is killed while blocks leave DRAM: whatever is committed is there, in one tier or the other."""
        self.sync()
        self.settle_disk()
        self.send_off(victims)
        time.sleep(pause)
        crash = Crash(self.store, note := Noted(self.ready))
        self.stop_and_start(crash.happen)
        for (root, path), mask in note.found.items():
            assert self.ready_mask(root, path) & mask == mask, f"block {path} is lost in a crash"
        self.reconcile()

    @rule(model=specs, path=paths, near=picks, victims=st.integers(0, 20))
    def lose_memory_after_a_durable_put(self, model: str, path: Path, near: int, victims: int) -> None:
        """The machine goes down right after a put was acknowledged as durable: it is there, with all it hangs on."""
        self.sync()
        if any(client.lock for client in self.clients):
            return
        spec = SPECS[model]
        path = self.aim(spec, path, near)
        self.settle_disk()
        self.send_off(victims)
        view, session = self.view(spec), self.store.open_session(False)
        self.seed += 1
        outcomes, written = put_durably(self.store, session, view, keys_of(spec, path), self.seed)
        crash = Crash(self.store)
        durable = [
            path[: at + 1] for at, code in enumerate(outcomes) if code in (PutOutcome.STORED, PutOutcome.PRESENT)
        ]
        for at, key in enumerate(keys_of(spec, path)):
            block = self.blocks.get((spec.root, path[: at + 1]), Block())
            for part in range(len(spec.parts)):
                if (key.tobytes(), part) in written and outcomes[at] in (PutOutcome.STORED, PutOutcome.NOT_DURABLE):
                    block.parts.setdefault(part, written[key.tobytes(), part])
            if block.parts:
                self.blocks[spec.root, path[: at + 1]] = block
        self.stop_and_start(lambda: crash.happen(memory=False))
        for one in durable:
            assert self.ready_mask(spec.root, one) == (1 << len(spec.parts)) - 1, f"durable block {one} is lost"
        self.reconcile()

    @rule()
    def lose_memory(self) -> None:
        super().lose_memory()
        self.pins = {block: level for block, level in self.pins.items() if block in self.blocks}

    @rule(pick=picks, damage=st.booleans())
    def restart(self, pick: int, damage: bool) -> None:
        super().restart(pick, False)
        self.pins = {block: level for block, level in self.pins.items() if block in self.blocks}

    def settle_disk(self) -> None:
        """All that is asked for so far is durable: removals, pins."""
        assert self.store._state.placement
        assert self.store._state.placement.nvme.barrier().done.wait(PATIENCE)

    def send_off(self, most: int) -> None:
        """Victims begin to leave DRAM; nobody waits for them."""
        state, movement = self.store._state, self.store._movement
        assert movement
        with state.lock:
            for _ in range(most):
                row = state.policy.victim(movement.demoter.evictable)
                if row is not None:
                    movement.demoter.send_off(row)

    def stop_and_start(self, between: Callable[[], None]) -> None:
        self.store.close()
        between()
        self.store = self.start()
        self.views.clear()
        self.evicted = 0
        for client in list(self.clients):
            client.session = None
            if client.lock is None:
                self.clients.remove(client)

    def ready(self) -> dict[tuple[bytes, Path], int]:
        """Parts of each known block that can be read now, its chain to block 0 as well; called under the lock."""
        found: dict[tuple[bytes, Path], int] = {}
        for root, path in sorted(self.blocks, key=lambda one: len(one[1])):
            mask = self.ready_mask(root, path)
            if mask and (len(path) == 1 or (root, path[:-1]) in found):
                found[root, path] = mask
        return found

    def ready_mask(self, root: bytes, path: Path) -> int:
        state = self.store._state
        number = next((one.id for one in state.namespaces if one.root == root), None)
        row = -1 if number is None else state.index.find_one(number, keys_of(self.spec_of(root), path)[-1].tobytes())
        return state.index.ready_at[row] if row >= 0 else 0

    def reconcile(self) -> None:
        """What the moves of the last moments evicted may be there or not."""
        for root, path in list(self.blocks):
            if not self.ready_mask(root, path):
                del self.blocks[root, path]
            else:
                self.keep_parts(root, path)
        self.pins = {block: level for block, level in self.pins.items() if block in self.blocks}
        assert self.store.stat().blocks == len(self.blocks)

    # --- always ----------------------------------------------------------------------------------------------

    @invariant()
    def pins_are_what_was_asked_for(self) -> None:
        self.sync()
        state = self.store._state
        with state.lock:
            for root, path in self.blocks:
                number = state.namespaces.by_root(root).id
                row = state.index.find_one(number, keys_of(self.spec_of(root), path)[-1].tobytes())
                assert state.index.pins_at[row] == self.pins.get((root, path), NO_PIN), path
        stat = self.store.stat().pins
        assert stat.hard_bytes == self.hard_bytes() <= stat.max_bytes
        assert (stat.soft_blocks, stat.hard_blocks) == tuple(
            sum(level == kind for level in self.pins.values()) for kind in (SOFT_PIN, HARD_PIN)
        )

    @invariant()
    def no_tier_passes_its_capacity(self) -> None:
        most = (self.config.capacity_bytes, self.config.nvme_capacity_bytes)
        for tier, capacity in zip(self.store.stat().tiers, most, strict=True):
            assert tier.used_bytes <= tier.backed_bytes <= capacity, tier


class Noted:
    """What is there at the moment of a crash."""

    def __init__(self, look: Callable[[], dict[tuple[bytes, Path], int]]) -> None:
        self._look = look
        self.found: dict[tuple[bytes, Path], int] = {}

    def __call__(self) -> None:
        self.found = self._look()


class LifeThroughMachine(LifeMachine):
    write_rule = "through"
    policy = "turnscore"


LifeMachine.TestCase.settings = LifeThroughMachine.TestCase.settings = settings(
    max_examples=8,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestLife = LifeMachine.TestCase
TestLifeThrough = LifeThroughMachine.TestCase
