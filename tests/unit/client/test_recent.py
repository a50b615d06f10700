"""A client knows where it put a chain before its home node does."""

from __future__ import annotations

from kvstore.client.recent import KNOWN_AFTER, Recent

ROOT, OTHER = b"r" * 16, b"o" * 16
CHAIN = b"".join(bytes([block]) * 16 for block in range(10))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def key(block: int) -> bytes:
    return CHAIN[16 * block : 16 * block + 16]


def test_the_longest_beginning_of_a_chain_is_found_for_a_while() -> None:
    clock = Clock()
    recent = Recent(clock)
    assert recent.longest(ROOT, CHAIN) is None
    recent.note(ROOT, key(2), b"a", "a:1", 3)
    recent.note(ROOT, key(5), b"b", "b:1", 6)
    found = recent.longest(ROOT, CHAIN)
    assert found is not None
    assert (found.node_id, found.address, found.blocks) == (b"b", "b:1", 6)
    shorter = recent.longest(ROOT, CHAIN[: 16 * 5])
    assert shorter is not None
    assert shorter.blocks == 3
    assert recent.longest(OTHER, CHAIN) is None
    assert recent.longest(ROOT, CHAIN[16:]) is None
    clock.now += KNOWN_AFTER + 0.1
    assert recent.longest(ROOT, CHAIN) is None


def test_a_chain_goes_on_where_it_ended() -> None:
    clock = Clock()
    recent = Recent(clock)
    recent.note(ROOT, key(2), b"a", "a:1", 3)
    found = recent.ending(ROOT, key(2))
    assert found is not None
    assert found.node_id == b"a"
    assert recent.ending(ROOT, key(1)) is None
    assert recent.ending(OTHER, key(2)) is None
    clock.now += KNOWN_AFTER
    assert recent.ending(ROOT, key(2)) is None


def test_only_so_many_are_kept() -> None:
    recent = Recent(Clock())
    for nth in range(1000):
        recent.note(ROOT, nth.to_bytes(16, "big"), b"a", "a:1", 1)
    kept = [nth for nth in range(1000) if recent.ending(ROOT, nth.to_bytes(16, "big"))]
    assert kept == list(range(744, 1000))
