"""One client process of a run: seeded calls, each written down, until it is killed.

python -m tests.history.client --name N --seed S --target T --node I --folder F --acks visible,replicated
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from tests.history.caller import Caller
from tests.history.gate import Gate
from tests.history.world import TENANTS, World

_WEIGHTS = {"put": 9, "get": 6, "match": 2, "borrow": 2, "prefetch": 1, "evict": 0.3}
_BREATH = 0.03  # seconds between calls at most: the load is to be steady, not all that the machine can bear


class Load:
    """``gate``: for all calls; ``puts``: for those that write a version of the weights."""

    def __init__(self, caller: Caller, gate: Gate, puts: Gate, dice: random.Random, acks: list[str]) -> None:
        self._caller, self._gate, self._puts, self._dice, self._acks = caller, gate, puts, dice, acks
        self._world = caller.world

    def step(self) -> None:
        kind = self._dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        with self._gate.inside():
            getattr(self, f"_{kind}")(self._dice.choice(TENANTS))
        time.sleep(self._dice.uniform(0.0, _BREATH))

    def _put(self, tenant: str) -> None:
        chain = self._dice.randrange(self._world.chains)
        blocks = self._dice.randint(1, self._world.chain(chain).length)
        first = self._caller.match(tenant, chain, blocks).found if self._dice.random() < 0.6 else 0
        if first < blocks:
            with self._puts.inside():
                version = self._puts.versions().get(tenant, 0)
                self._caller.put(tenant, chain, blocks, first, self._dice.choice(self._acks), version=version)

    def _get(self, tenant: str) -> None:
        chain = self._warm()
        self._caller.get(tenant, chain, self._world.chain(chain).length)

    def _match(self, tenant: str) -> None:
        chain = self._dice.randrange(self._world.chains)
        self._caller.match(tenant, chain, self._world.chain(chain).length)

    def _borrow(self, tenant: str) -> None:
        chain = self._warm()
        self._caller.borrow(tenant, chain, self._world.chain(chain).length, self._dice.uniform(0.0, 0.1))

    def _prefetch(self, tenant: str) -> None:
        chain = self._warm()
        self._caller.prefetch(tenant, chain, self._world.chain(chain).length)

    def _evict(self, tenant: str) -> None:
        dropped = [number for number in range(self._world.chains) if self._world.dropped(number)]
        chain = self._dice.choice(dropped)
        found = self._world.chain(chain)
        self._caller.evict(tenant, chain, self._dice.randrange(found.fork, found.length))

    def _warm(self) -> int:
        while self._world.cold(chain := self._dice.randrange(self._world.chains)):
            pass
        return chain


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("name", "target", "folder", "acks"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--chains", type=int, required=True)
    parser.add_argument("--node", type=int, default=-1)
    options = parser.parse_args()
    folder = Path(options.folder)
    world = World(options.seed, options.chains)
    log = folder / f"{options.name}.jsonl"
    caller = Caller(options.name, world, options.target, options.node, log, options.transport)
    dice = random.Random(f"{options.seed}/{options.name}")
    load = Load(caller, Gate(folder), Gate(folder, "puts"), dice, options.acks.split(","))
    while True:
        load.step()


if __name__ == "__main__":
    main()
