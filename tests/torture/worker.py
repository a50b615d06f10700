"""One client process of a torture run. Writes a line a fact to its log; the harness reads the logs.

    python -m tests.torture.worker ROLE --target T --seed N --chains C --blocks B --block-bytes S --log FILE

Roles: ``writer`` puts chains (whole or layer by layer), ``reader`` gets and compares every byte, ``dropper`` evicts
chains, ``holder`` borrows views and compares them over and over for as long as it lives.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from typing import TextIO

import numpy as np

from kvstore import Client, Keys
from tests.torture.content import expected, spec, tokens


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.random = random.Random(f"{options.seed}/{options.role}/{options.number}")
        self.log: TextIO = open(options.log, "a", buffering=1)  # noqa: SIM115 - lives as long as the process
        self.client = Client(options.target, transport=options.transport, timeout=2.0)
        self.ns = self.client.namespace(spec(options.block_bytes))

    def say(self, *fact: object) -> None:
        self.log.write(" ".join(map(str, fact)) + "\n")

    def chain(self) -> tuple[int, Keys]:
        number = self.random.randrange(self.options.chains)
        return number, self.ns.keys(tokens(self.options.seed, number, self.options.blocks))

    def run(self) -> None:
        self.say("start", os.getpid())
        step = {"writer": self.write, "reader": self.read, "holder": self.hold, "dropper": self.drop}[self.options.role]
        end = time.monotonic() + self.options.seconds
        while time.monotonic() < end:
            step()
        self.say("end")
        self.client.close()

    def write(self) -> None:
        number, keys = self.chain()
        have = self.ns.match(keys)
        if have == len(keys):
            time.sleep(0.01)
            return
        count = min(len(keys) - have, self.random.choice((1, 2, 4, 8)))
        piece = keys[: have + count]
        ack = "durable" if self.random.random() < self.options.durable else "visible"
        if self.random.random() < 0.5:
            blocks = [expected(key, self.options.block_bytes) for key in piece[have:]]
            done = self.ns.put(piece, blocks, first=have, ack=ack)
            acknowledged = done.failed == 0 and done.pending == 0
        else:
            acknowledged = self.write_in_ranges(piece, have, ack)
        if acknowledged:
            self.say("ack", number, len(piece))
            if ack == "durable":
                self.say("durable", number, len(piece))

    def write_in_ranges(self, keys: Keys, first: int, ack: str) -> bool:
        """Layer by layer with pauses, so that a kill lands in the middle of a put."""
        blocks = [expected(key, self.options.block_bytes) for key in keys[first:]]
        pieces = max(1, min(4, self.options.block_bytes >> 16))  # ranges keep to chunks
        step = self.options.block_bytes // pieces
        with self.ns.writer(keys, first=first, ack=ack) as writer:
            for index in range(pieces):
                writer.write((index * step, step), [block[index * step : (index + 1) * step] for block in blocks])
                time.sleep(self.random.random() * 0.01)
        return writer.result.failed == 0 and writer.result.pending == 0

    def read(self) -> None:
        number, keys = self.chain()
        into = [np.empty(self.options.block_bytes, np.uint8) for _ in keys]
        got = self.ns.get(keys, into=into)
        self.compare("read", number, keys, into[:got])

    def drop(self) -> None:
        time.sleep(0.2)
        number, keys = self.chain()
        self.say("dropped", number, self.ns.evict(keys))

    def hold(self) -> None:
        number, keys = self.chain()
        with self.ns.borrow(keys) as views:
            if not len(views):
                time.sleep(0.05)
                return
            self.say("hold", number, len(views))
            until = time.monotonic() + self.options.hold
            while True:
                self.compare("held", number, keys, views)
                if time.monotonic() > until:
                    break
                time.sleep(0.01)

    def compare(self, what: str, number: int, keys: Keys, blocks: list) -> None:
        for index, block in enumerate(blocks):
            if not np.array_equal(np.frombuffer(block, np.uint8), expected(keys[index], self.options.block_bytes)):
                self.say("wrong", what, number, index)
        self.say("checked", len(blocks))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("writer", "reader", "holder", "dropper"))
    parser.add_argument("--target", required=True)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--log", required=True)
    for name, default in (("seed", 1), ("number", 0), ("chains", 16), ("blocks", 16), ("block-bytes", 262_144)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("seconds", 3600.0), ("hold", 0.2), ("durable", 0.0)):
        parser.add_argument(f"--{name}", type=float, default=default)
    Worker(parser.parse_args()).run()


if __name__ == "__main__":
    main()
