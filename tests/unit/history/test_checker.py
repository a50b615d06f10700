"""The history checker finds each violation that is planted, and none in a history without."""

from __future__ import annotations

import pytest

from tests.history.checker import ALLOWANCE, check, owed_copies
from tests.history.record import Event, History, Holding, Op
from tests.history.world import TENANTS, World

WORLD = World(seed=7, chains=40)
TENANT = TENANTS[0]
ROOT = next(number for number in range(40) if WORLD.chain(number).parent < 0 and WORLD.chain(number).length >= 4)
FORK = next(number for number in range(40) if WORLD.chain(number).parent == ROOT)


class Story:
    """A history that is written a line at a time; each call takes a tenth of a second."""

    def __init__(self) -> None:
        self.history = History()
        self._now = 0.0

    def op(self, kind: str, chain: int = ROOT, blocks: int = 3, **values: object) -> Op:
        self._now += 1.0
        number = len(self.history.ops)
        found = {"end": self._now + 0.1, "timeout": 1.0, "node": 0, **values}
        op = Op("c", number, kind, TENANT, chain, blocks, self._now, **found)  # type: ignore[arg-type]
        self.history.ops.append(op)
        return op

    def put(self, ack: str = "visible", **values: object) -> Op:
        return self.op("put", **{"ack": ack, "complete": True, **values})  # type: ignore[arg-type]

    def get(self, found: int = 3, version: int = 0, **values: object) -> Op:
        op = self.op("get", found=found, must=True, **values)
        blocks = WORLD.blocks(op.chain)[:found]
        op.seen = [(index, WORLD.digest(TENANT, block, version)) for index, block in enumerate(blocks)]
        return op

    def event(self, what: str, node: int = 0, **values: object) -> None:
        self._now += 1.0
        self.history.events.append(Event(what, self._now, node, **values))  # type: ignore[arg-type]

    def hold(self, *blocks: int) -> None:
        """What the nodes have."""
        self._now += 1.0
        for node, count in enumerate(blocks):
            self.history.holdings.append(Holding(self._now, node, TENANT, ROOT, count))

    def rules(self, replicas: int = 2) -> list[str]:
        return [violation.rule for violation in check(self.history, WORLD, replicas)]


@pytest.fixture
def story() -> Story:
    return Story()


# --- what a call may do -----------------------------------------------------------------------------------


def test_a_history_without_violations_has_none(story: Story) -> None:
    story.put()
    story.put("replicated", node=1)
    story.get()
    story.op("match", found=3, must=True, ack="audit 1", node=0)
    story.op("match", found=3, must=True, ack="audit 1", node=1)
    story.event("kill", 1)
    story.get()
    story.event("start", 1)
    story.event("whole")
    story.hold(3, 3, 0)
    story.event("evicted", 1, count=0)
    assert story.rules() == []


def test_an_exception_is_found(story: Story) -> None:
    story.op("match", error="InternalError: index out of range")
    assert story.rules() == ["raised"]


def test_a_late_call_is_found_unless_its_caller_could_not_run(story: Story) -> None:
    over = 1.0 + ALLOWANCE + 0.5
    late = story.op("match")
    late.end = late.start + over
    assert story.rules() == ["late"]
    late.late = 0.6
    assert story.rules() == []


def test_a_call_that_never_ended_is_not_late(story: Story) -> None:
    story.op("match", end=None)
    assert story.rules() == []


def test_a_run_with_too_little_room_is_found(story: Story) -> None:
    story.event("evicted", 2, count=5)
    assert story.rules() == ["evicted"]


# --- bytes --------------------------------------------------------------------------------------------------


def test_wrong_bytes_are_found(story: Story) -> None:
    story.put()
    story.get().seen[1] = (1, "0123456789abcdef")
    assert story.rules() == ["bytes"]


def test_bytes_of_another_block_are_found(story: Story) -> None:
    story.put()
    seen = story.get().seen
    seen[0], seen[1] = (0, seen[1][1]), (1, seen[0][1])
    assert story.rules() == ["bytes", "bytes"]


def test_bytes_of_another_tenant_are_found(story: Story) -> None:
    story.put()
    story.get().seen[2] = (2, WORLD.digest(TENANTS[1], WORLD.blocks(ROOT)[2], 0))
    assert story.rules() == ["bytes"]


def test_a_block_that_nobody_put_is_found(story: Story) -> None:
    story.put(blocks=2)
    story.get(found=3)
    assert story.rules() == ["phantom"]


def test_a_block_that_was_read_before_it_was_put_is_found(story: Story) -> None:
    story.get()
    story.put()
    assert story.rules() == ["phantom"] * 3


def test_a_put_without_an_answer_explains_what_is_read(story: Story) -> None:
    story.put(complete=False, end=None)
    story.get()
    assert story.rules() == []


def test_a_block_of_a_fork_is_explained_by_a_put_of_the_chain_it_forks_off(story: Story) -> None:
    shared = WORLD.chain(FORK).fork
    story.put(blocks=shared)
    story.get(chain=FORK, blocks=shared, found=shared)
    assert story.rules() == []
    story.get(chain=FORK, blocks=shared + 1, found=shared + 1)
    assert story.rules() == ["phantom"]


# --- rotations ----------------------------------------------------------------------------------------------


def test_bytes_that_a_rotation_voided_are_found(story: Story) -> None:
    story.put()
    story.event("rotated", tenant=TENANT, count=1)
    story.put(version=1)
    story.get(version=1)
    assert story.rules() == []
    story.get(version=0)
    assert story.rules() == ["stale"] * 3


def test_a_read_that_overlaps_a_rotation_may_see_what_was_before(story: Story) -> None:
    story.put()
    story.get(timeout=100.0).end = 100.0
    story.event("rotated", tenant=TENANT, count=1)
    assert story.rules() == []


def test_nothing_is_owed_of_what_a_rotation_voided(story: Story) -> None:
    story.put("replicated")
    story.event("rotated", tenant=TENANT, count=1)
    story.get(found=0)
    assert story.rules() == []


def test_the_rotation_of_another_namespace_voids_nothing(story: Story) -> None:
    story.put("replicated")
    story.event("rotated", tenant=TENANTS[1], count=1)
    story.get(found=0)
    assert story.rules() == ["lost"]


# --- what was acknowledged --------------------------------------------------------------------------------


@pytest.mark.parametrize("ack", ["visible", "replicated", "durable"])
def test_an_acknowledged_block_that_is_missed_is_found(story: Story, ack: str) -> None:
    story.put(ack)
    story.get(found=2)
    assert story.rules() == ["lost"]


def test_a_put_that_was_not_acknowledged_owes_nothing(story: Story) -> None:
    story.put("replicated", complete=False)
    story.get(found=0)
    assert story.rules() == []


def test_a_look_up_that_need_not_find_may_miss(story: Story) -> None:
    story.put("replicated")
    story.op("get", found=0)
    assert story.rules() == []


@pytest.mark.parametrize(
    ("ack", "fault", "owed"),
    [
        ("visible", "kill", True),
        ("visible", "reboot", False),
        ("visible", "wipe", False),
        ("durable", "kill", True),
        ("durable", "reboot", True),
        ("durable", "wipe", False),
        ("replicated", "kill", True),
        ("replicated", "reboot", True),
        ("replicated", "wipe", True),
    ],
)
def test_what_a_fault_of_the_node_leaves_owed(story: Story, ack: str, fault: str, owed: bool) -> None:
    story.put(ack)
    story.event(fault)
    story.event("start")
    story.get(found=0)
    assert story.rules() == (["lost"] if owed else [])


@pytest.mark.parametrize("fault", ["kill", "reboot", "wipe"])
def test_a_copy_is_owed_while_the_other_node_is_away(story: Story, fault: str) -> None:
    story.put("replicated")
    story.event(fault, 1)
    story.get(found=2, node=2)
    assert story.rules() == ["lost"]


def test_a_node_that_loses_all_twice_has_lost_one_copy(story: Story) -> None:
    story.put("replicated")
    for _ in range(2):
        story.event("wipe", 1)
        story.event("start", 1)
    story.get(found=2)
    assert story.rules() == ["lost"]
    story.event("isolate", 2)
    story.get(found=2)
    assert story.rules() == ["lost"]


def test_while_its_node_is_away_only_a_copy_is_owed(story: Story) -> None:
    story.put("visible")
    story.put("replicated", blocks=2)
    story.event("kill")
    story.get(found=2)
    assert story.rules() == []
    story.event("start")
    story.get(found=2)
    assert story.rules() == ["lost"]


def test_a_fault_of_another_node_does_not_excuse(story: Story) -> None:
    story.put("visible", node=0)
    story.event("wipe", 1)
    story.get(found=0)
    assert story.rules() == ["lost"]


def test_a_fault_of_any_node_excuses_a_put_of_which_it_is_not_known_where(story: Story) -> None:
    story.put("visible", node=-1)
    story.event("wipe", 1)
    story.event("start", 1)
    story.get(found=0)
    assert story.rules() == []


def test_a_cut_excuses_those_it_parts_from_the_only_holder(story: Story) -> None:
    story.put("visible", node=0)
    story.put("replicated", blocks=2, node=0)
    story.event("cut", 1, other=0)
    story.get(found=2, node=1)
    assert story.rules() == []
    story.get(found=2, node=2)
    assert story.rules() == ["lost"]
    story.get(found=1, node=1)
    assert story.rules() == ["lost"] * 2
    story.event("heal", -1)
    story.get(found=2, node=1)
    assert story.rules() == ["lost"] * 3


@pytest.mark.parametrize("repaired", [True, False])
def test_two_losses_excuse_unless_it_was_repaired_in_between(story: Story, repaired: bool) -> None:
    story.put("replicated")
    story.event("wipe", 1)
    story.event("start", 1)
    if repaired:
        story.event("whole")
    story.event("wipe", 2)
    story.event("start", 2)
    story.get(found=0)
    assert story.rules() == (["lost"] if repaired else [])


@pytest.mark.parametrize("ack", ["visible", "durable"])
def test_what_was_on_a_drained_node_is_owed_by_the_others(story: Story, ack: str) -> None:
    story.put(ack)
    story.event("drained")
    story.event("wipe")
    story.get(found=0)
    assert story.rules() == ["lost"]
    story.event("wipe", 1)
    story.get(found=0)
    assert story.rules() == ["lost"]


def test_what_was_put_after_a_drain_goes_with_its_node(story: Story) -> None:
    story.event("drained")
    story.put("visible")
    story.event("wipe")
    story.get(found=0)
    assert story.rules() == []


def test_a_loss_while_the_put_was_under_way_counts(story: Story) -> None:
    story.event("note")
    put = story.put("visible", timeout=100.0)
    story.event("wipe")
    put.end = 100.0
    story.event("start")
    story.history.ops.append(Op("c", 99, "get", TENANT, ROOT, 3, 101.0, 1.0, end=101.1, must=True))
    assert story.rules() == []


def test_an_eviction_excuses_the_block_and_what_hangs_on_it(story: Story) -> None:
    story.put("replicated")
    story.put("replicated", chain=FORK, blocks=WORLD.chain(FORK).length)
    story.op("evict", first=0, blocks=1)
    story.get(found=0)
    story.get(chain=FORK, found=0)
    assert story.rules() == []
    story.put("replicated")
    story.get(found=0)
    assert story.rules() == ["lost"]


def test_an_eviction_further_down_does_not_excuse(story: Story) -> None:
    story.put("replicated")
    story.op("evict", first=3, blocks=4)
    story.get(found=2)
    assert story.rules() == ["lost"]


# --- when all is quiet ---------------------------------------------------------------------------------------


def test_nodes_that_do_not_agree_are_found(story: Story) -> None:
    story.op("match", found=3, must=True, ack="audit 1", node=0)
    story.op("match", found=2, must=True, ack="audit 1", node=1)
    story.op("match", found=1, must=True, ack="audit 2", node=0)
    assert story.rules() == ["disagreement"]


def test_a_copy_that_is_not_back_is_found(story: Story) -> None:
    story.put("replicated")
    story.hold(3, 2, 0)
    assert story.rules() == ["copies"]
    assert len(owed_copies(story.history, WORLD, 2, 100.0)) == 1


def test_copies_are_not_owed_of_what_was_evicted(story: Story) -> None:
    story.put("replicated")
    story.op("evict", first=2, blocks=3)
    story.hold(2, 2, 0)
    assert story.rules() == []
    assert owed_copies(story.history, WORLD, 2, 100.0) == []
