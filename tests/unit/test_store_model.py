"""The block store against a plain dict, with real bytes in the memory file: through evictions, leases, sessions that
die, stale writers, and restarts."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kvstore.core.keys import KeyArray
from kvstore.core.namespace import NamespaceSpec
from kvstore.tiers.memfile import purge
from kvstore.tiers.values import ChainSlice, MissReason, PutOutcome
from tests.unit.store_model import SPECS, Block, Client, Held, Path, StoreModel, Writing, paths, picks, specs
from tests.unit.tiers.stores import audit, content, fill, keys_of


class StoreMachine(StoreModel):
    # --- writing -------------------------------------------------------------------------------------------

    @rule(
        model=specs,
        path=paths,
        near=picks,
        first=st.integers(0, 4),
        part=st.sampled_from([None, 0, 1]),
        pick=picks,
        finish=picks,
    )
    def put(self, model: str, path: Path, near: int, first: int, part: int | None, pick: int, finish: int) -> None:
        spec = SPECS[model]
        path = self.aim(spec, path, near)
        first = first if first < 2 else 0
        client, view, keys = self.client(pick), self.view(spec), keys_of(spec, path)
        first = min(first, len(path) - 1)
        every = tuple(range(len(spec.parts)))
        parts = (part,) if part in every and part is not None else every
        expected = self.expected(spec, path, first, parts)
        chain = ChainSlice(keys[first:], keys[first - 1].tobytes() if first else b"", first)
        assert client.session is not None
        reserved = self.store.reserve(client.session, view.handle, chain, parts)
        outcomes = [PutOutcome(code) for code in reserved.outcomes]
        self.sync()
        self.check_outcomes(outcomes, expected)
        self.seed += 1
        sums, written = fill(self.store, view, keys[first:], parts, reserved, self.seed)
        stored = [path[: first + at + 1] for at, outcome in enumerate(outcomes) if outcome == PutOutcome.STORED]
        if not reserved.id:
            assert not stored
            return
        lengths = [spec.parts[one].bytes for one in parts] * len(stored)
        places = list(zip(reserved.offsets.tolist(), lengths, strict=True))
        rows = client.session.reservations[reserved.id].rows.tolist()
        write = Writing(
            client, reserved.id, view, stored, parts, sums, written, places, self.store.boot_id, rows
        )  # fmt: skip
        client.writes.append(write)
        if finish % 4:
            self.commit(client, write)

    def expected(self, spec: NamespaceSpec, path: Path, first: int, parts: tuple[int, ...]) -> list[PutOutcome]:
        found: list[PutOutcome] = []
        broken = first > 0 and not self.here(spec, path[:first])
        for end in range(first + 1, len(path) + 1):
            block = self.blocks.get((spec.root, path[:end]), Block())
            missing = [part for part in parts if part not in block.parts]
            if self.here(spec, path[:end]):
                broken = False
            if broken:
                found.append(PutOutcome.PARENT_MISSING)
            elif not missing:
                found.append(PutOutcome.PRESENT)
            elif any(self.writing(spec, path[:end], part) for part in missing):
                found.append(PutOutcome.PENDING)
            else:
                found.append(PutOutcome.STORED)
        return found

    def check_outcomes(self, outcomes: list[PutOutcome], expected: list[PutOutcome]) -> None:
        for outcome, wanted in zip(outcomes, expected, strict=True):
            if outcome in (PutOutcome.NO_SPACE, PutOutcome.BUSY):
                assert wanted == PutOutcome.STORED
            else:
                assert outcome == wanted, (outcomes, expected)

    def commit(self, client: Client, write: Writing) -> None:
        assert client.session is not None
        alive = [self.here_still(write, path) for path in write.blocks]
        outcomes = self.store.commit(client.session, write.number, write.sums)
        client.writes.remove(write)
        assert [code == PutOutcome.STORED for code in outcomes] == alive
        for path, stored in zip(write.blocks, alive, strict=True):
            if stored:
                block = self.blocks.setdefault((write.view.root, path), Block())
                key = keys_of(write.view.spec, path)[-1].tobytes()
                for part in write.parts:
                    block.parts.setdefault(part, write.written[key, part])

    def here_still(self, write: Writing, path: Path) -> bool:
        """The reserved block was not dropped meanwhile (with its parent or its namespace)."""
        state, root = self.store._state, write.view.root
        number = next((one.id for one in state.namespaces if one.root == root), None)
        if number is None or write.boot != self.store.boot_id:
            return False
        row = write.rows[write.blocks.index(path)]
        return state.index.find_one(number, keys_of(write.view.spec, path)[-1].tobytes()) == row

    @precondition(lambda self: any(client.writes for client in self.clients if not client.ended))
    @rule(pick=picks, give_up=st.booleans())
    def finish(self, pick: int, give_up: bool) -> None:
        writes = [write for client in self.clients if not client.ended for write in client.writes]
        write = writes[pick % len(writes)]
        if not give_up:
            self.commit(write.session, write)
            return
        assert write.session.session is not None
        self.store.abort(write.session.session, write.number)
        write.session.writes.remove(write)
        self.drop_unfounded()

    def drop_unfounded(self) -> None:
        """After a block was given up, what others had hung on it is gone too."""
        for root, path in list(self.blocks):
            spec = self.spec_of(root)
            if any(not self.here(spec, path[:end]) for end in range(1, len(path))):
                assert not self.here(spec, path)
                del self.blocks[root, path]

    # --- reading -------------------------------------------------------------------------------------------

    @rule(model=specs, path=paths, near=picks, request=st.integers(0, 3))
    def match(self, model: str, path: Path, near: int, request: int) -> None:
        spec = SPECS[model]
        path = self.aim(spec, path, near)
        found = self.store.match(self.view(spec).handle, keys_of(spec, path), (), request)
        self.sync()
        every = tuple(range(len(spec.parts)))
        assert found.blocks == self.prefix(spec, path, every)
        assert [one.blocks for one in found.parts] == [self.prefix(spec, path, (part,)) for part in every]
        assert (found.miss == MissReason.NONE) == (found.blocks == len(path))

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
        spec = SPECS[model]
        path = self.aim(spec, path, near)
        first = max(0, first - 1)
        client, view, keys = self.client(pick), self.view(spec), keys_of(spec, path)
        every = tuple(range(len(spec.parts)))
        assert client.session is not None
        found = self.store.acquire(client.session, view.handle, keys, first, (), 0, most)
        self.sync()
        self.notice_damage(spec, path, first, most)
        assert found.prefix_blocks == self.prefix(spec, path, every)
        end = min(found.prefix_blocks, first + most) if most else found.prefix_blocks
        assert found.blocks == max(end, min(first, found.prefix_blocks))
        places, blocks = self.expected_places(spec, path, first, found.blocks, found.offsets)
        for offset, data in places:
            assert self.store.dram.readable(offset, len(data)) == data, f"wrong bytes in {path}"
        if found.lease:
            client.leases.append(Held(client, found.lease, places, blocks))
        if found.lease and not keep:
            assert self.store.release(client.session, [found.lease]) == [True]
            client.leases.pop()

    def expected_places(
        self, spec: NamespaceSpec, path: Path, first: int, end: int, offsets: np.ndarray
    ) -> tuple[list[tuple[int, bytes]], list[tuple[bytes, Path]]]:
        blocks = [(spec.root, path[: at + 1]) for at in range(first, end)]
        wanted = [self.blocks[block].parts[part] for block in blocks for part in range(len(spec.parts))]
        return list(zip(offsets.tolist(), wanted, strict=True)), blocks

    def notice_damage(self, spec: NamespaceSpec, path: Path, first: int, most: int) -> None:
        """A leased block that was damaged before the restart must have been found out, and dropped with its branch."""
        end = min(len(path), first + most) if most else len(path)
        for at in range(first, end):
            block = self.blocks.get((spec.root, path[: at + 1]))
            if block is None or len(block.parts) < len(spec.parts):
                return
            if block.damaged:
                self.forget_branch(spec.root, path[: at + 1])
                return

    @precondition(lambda self: any(client.leases for client in self.clients if not client.ended))
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        leases = [lease for client in self.clients if not client.ended for lease in client.leases]
        lease = leases[pick % len(leases)]
        assert lease.session.session is not None
        assert self.store.release(lease.session.session, [lease.number, 10**9]) == [True, False]
        lease.session.leases.remove(lease)

    @rule()
    def relieve(self) -> None:
        """What the eviction thread does when the store is over its high watermark."""
        while self.store._evictor.keep_watermarks():
            pass
        self.sync()

    # --- dropping ------------------------------------------------------------------------------------------

    @rule(model=specs, path=paths, near=picks, only_last=st.booleans())
    def evict(self, model: str, path: Path, near: int, only_last: bool) -> None:
        spec = SPECS[model]
        path = self.aim(spec, path, near)
        keys: KeyArray = keys_of(spec, path)
        gone = path if only_last else path[:1]
        self.sync()
        absent = sum(not self.here(spec, path[: at + 1]) for at in range(len(path)))
        counts = self.store.evict(self.view(spec).handle, keys[-1:] if only_last else keys)
        assert counts[2] == (int(not counts[0]) if only_last else absent)
        self.forget_branch(spec.root, gone)
        assert not self.here(spec, gone)

    @rule(model=specs, really=st.integers(0, 3))
    def drop_namespace(self, model: str, really: int) -> None:
        spec = SPECS[model]
        if really != 3:
            return
        self.view(spec)
        self.store.drop_namespace(spec.root)
        del self.views[spec.root]
        self.forget_branch(spec.root, ())

    # --- sessions that end ---------------------------------------------------------------------------------

    @rule(shared_memory=st.booleans())
    def open_session(self, shared_memory: bool) -> None:
        if len(self.store._state.sessions) < 6:
            self.connect(shared_memory)

    @precondition(lambda self: any(not client.ended for client in self.clients))
    @rule(pick=picks)
    def close_session(self, pick: int) -> None:
        """Its connection ends; a shared-memory client's process lives on and still maps the memory."""
        client = self.client(pick)
        assert client.session is not None
        self.store.close_session(client.session)
        client.session = None
        if client.lock is None:
            self.bury(client)

    @precondition(lambda self: any(client.ended for client in self.clients))
    @rule(pick=picks)
    def die(self, pick: int) -> None:
        """The process of an ended session goes."""
        ended = [client for client in self.clients if client.ended]
        client = ended[pick % len(ended)]
        assert client.lock is not None
        client.lock.die()
        self.bury(client)

    def bury(self, client: Client) -> None:
        self.store._registry.reap()
        self.clients.remove(client)
        self.drop_unfounded()

    @precondition(lambda self: any(client.ended and client.writes for client in self.clients))
    @rule(pick=picks)
    def stale_write(self, pick: int) -> None:
        """A process whose session ended writes to slots that it had reserved."""
        writes = [write for client in self.clients if client.ended for write in client.writes]
        for offset, length in writes[pick % len(writes)].places:
            self.store.dram.writable(offset, length)[:] = content(pick + 10**6, length)

    # --- the node ends -------------------------------------------------------------------------------------

    @rule(pick=picks, damage=st.booleans())
    def restart(self, pick: int, damage: bool) -> None:
        """Nothing is tidied up: the next start finds what a SIGKILL would have left."""
        self.sync()
        if damage and self.blocks:
            self.damage(pick)
        self.store.close()
        self.store = self.start()
        self.views.clear()
        self.evicted = 0
        for client in list(self.clients):
            client.session = None
            if client.lock is None:
                self.clients.remove(client)
        for root, path in list(self.blocks):  # blocks that hung on one never committed are orphans
            if any((root, path[:end]) not in self.blocks for end in range(1, len(path))):
                del self.blocks[root, path]
        for root, path in self.blocks:
            assert self.here(self.spec_of(root), path), f"block {path} was not re-adopted"
        assert self.store.stat().blocks == len(self.blocks)

    def damage(self, pick: int) -> None:
        root, path = sorted(self.blocks)[pick % len(self.blocks)]
        leased = {block for client in self.clients for lease in client.leases for block in lease.blocks}
        if (root, path) in leased:
            return
        state, block = self.store._state, self.blocks[root, path]
        spec = self.spec_of(root)
        number = self.store._state.namespaces.by_root(root).id
        row = state.index.find_one(number, keys_of(spec, path)[-1].tobytes())
        part = sorted(block.parts)[pick % len(block.parts)]
        slot = state.index.parts.slot_at[0][state.index.part_row(row, part)]
        place = slot * 4096 + pick % spec.parts[part].bytes
        self.store.dram.writable(place, 1)[0] ^= 1
        block.damaged = True

    # --- always --------------------------------------------------------------------------------------------

    @invariant()
    def leased_bytes_never_change(self) -> None:
        for client in self.clients:
            for lease in client.leases:
                for offset, data in lease.places:
                    assert self.store.dram.readable(offset, len(data)) == data, "bytes changed under a lease"

    @invariant()
    def the_store_agrees_with_itself(self) -> None:
        audit(self.store)

    def teardown(self) -> None:
        for client in self.clients:
            if client.lock:
                client.lock.die()
        self.store.close()
        purge(self.config.memory_file)


class TurnScoreMachine(StoreMachine):
    policy = "turnscore"


StoreMachine.TestCase.settings = TurnScoreMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestStore = StoreMachine.TestCase
TestStoreTurnScore = TurnScoreMachine.TestCase
