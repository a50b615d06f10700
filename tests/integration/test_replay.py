"""`kvstore bench replay` on a real node finds what a simulation of its rules finds, written apart from the store."""

from __future__ import annotations

import json
from collections import OrderedDict
from itertools import islice
from pathlib import Path

import pytest

from kvstore.cli.bench.replay_node import Case, Size, run

TRACE = Path(__file__).parents[2] / "bench" / "trace" / "conversation.jsonl"
REQUESTS = 250
SIZE = Size(dram=600, nvme=2000)  # no chain is longer than DRAM


class TwoTiers:
    """Two tiers of block ids in order of last use, deepest blocks of a chain used first; nothing but the rules."""

    def __init__(self, dram: int, nvme: int, through: bool) -> None:
        self.dram, self.nvme = OrderedDict[int, None](), OrderedDict[int, None]()
        self.sizes, self.through = (dram, nvme), through
        self.hits = self.nvme_hits = self.written = 0

    def ask(self, chain: list[int]) -> None:
        found = next((at for at, block in enumerate(chain) if block not in self.dram and block not in self.nvme), None)
        prefix = chain[:found]
        self.hits += len(prefix)
        self.nvme_hits += sum(block not in self.dram for block in prefix)
        for tier in (self.dram, self.nvme):
            for block in reversed(prefix):
                if block in tier:
                    tier.move_to_end(block)
        for block in reversed(chain):
            new = block not in self.dram and block not in self.nvme
            self._enter(self.dram, block)
            if new and self.through:
                self._write(block)
        while len(self.dram) > self.sizes[0]:
            victim, _ = self.dram.popitem(last=False)
            if victim not in self.nvme and not self.through:
                self._write(victim)

    def _write(self, block: int) -> None:
        self.written += 1
        self._enter(self.nvme, block)
        while len(self.nvme) > self.sizes[1]:
            self.nvme.popitem(last=False)

    @staticmethod
    def _enter(tier: OrderedDict[int, None], block: int) -> None:
        tier[block] = None
        tier.move_to_end(block)


def simulated(trace: Path, size: Size, through: bool) -> TwoTiers:
    tiers = TwoTiers(size.dram, size.nvme, through)
    for line in trace.read_text().splitlines():
        entry = json.loads(line)
        tiers.ask(entry["hash_ids"][: entry["input_length"] // 512])
    return tiers


@pytest.mark.timeout(300)
def test_a_real_node_hits_and_writes_what_a_simulation_of_its_rules_does(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with TRACE.open() as lines:
        trace.write_text("".join(islice(lines, REQUESTS)))
    cases = (Case("lru.clean", "lru"), Case("lru.through", "lru", rule="through"))
    values = {row.case: row.value for row in run(trace, cases, SIZE, tmp_path).rows}
    for name in ("clean", "through"):
        want = simulated(trace, SIZE, name == "through")
        blocks = sum(len(json.loads(line)["hash_ids"]) for line in trace.read_text().splitlines())
        assert values[f"lru.{name}.hits"] == pytest.approx(want.hits / blocks, abs=0.01)
        assert values[f"lru.{name}.nvme_hits"] == pytest.approx(want.nvme_hits / blocks, abs=0.01)
        assert values[f"lru.{name}.written_blocks_per_request"] == pytest.approx(want.written / REQUESTS, rel=0.05)
