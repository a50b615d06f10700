"""A cell under load from client processes, what is done to it, and the audits in between. All of it is written down."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstore.transport.batch import GetCall
from kvstore.transport.plan import make_plan
from tests.cluster.netlab import Net, net
from tests.history.caller import Caller
from tests.history.checker import Promise, Violation, check, owed_copies, promised
from tests.history.gate import Gate
from tests.history.looking import cluster_status, generation, peer_session, runs
from tests.history.nodes import ROOT, NetEtcd, NetNode
from tests.history.record import Event, History, Holding, Reader, Writer
from tests.history.world import TENANTS, World, spec
from tests.integration.nodes import PATIENCE, wait_for

SUSPECT, GONE = 2.0, 1.0  # seconds
CAPACITY = "160MiB"  # room for all that there is, on each node
_ALIVE = ("live", "draining")


@dataclass
class Options:
    """Of a run. ``etcd``: how many members; 0: a static list."""

    seed: int = 1
    nodes: int = 3
    replicas: int = 2
    etcd: int = 0
    nvme: bool = True
    chains: int = 160
    network_clients: int = 1
    checkout: Path = ROOT  # whose code the nodes run at first
    settings: dict[str, object] = field(default_factory=dict)


class Run:
    def __init__(self, folder: Path, wires: Net, options: Options) -> None:
        self.folder, self.net, self.options = folder, wires, options
        self.world = World(options.seed, options.chains)
        self.gate, self._puts = Gate(folder), Gate(folder, "puts")
        self.dice = random.Random(f"{options.seed}/run")
        self.etcd = self._etcd()
        self.nodes: list[NetNode] = []
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self._callers: dict[int, Caller] = {}
        self._reader = Reader(folder)
        self._log = Writer(folder / "harness.jsonl")
        self._audits = self._made = self.spawned = 0
        self._cuts: set[frozenset[int]] = set()

    # --- making it -----------------------------------------------------------------------------------------

    def _etcd(self) -> NetEtcd | None:
        if not self.options.etcd:
            return None
        folder = self.folder / "etcd"
        folder.mkdir()
        made = NetEtcd(self.net, "etcd", folder, self.options.etcd)
        made.start()
        return made

    def add_node(self) -> NetNode:
        """The next one, not started."""
        number = len(self.nodes)
        hosts = [self.net.address[name] for name in self.net.names if name.startswith("node")]
        static = "static://" + ",".join(f"{address}:7001" for address in hosts[: self.options.nodes])
        discovery = f"etcd://{','.join(self.etcd.clients)}/history" if self.etcd else static
        folder = self.folder / f"node{number}"
        nvme = {"nvme_dir": str(folder / "nvme"), "nvme_capacity": CAPACITY, "nvme_segment_bytes": "8MiB"}
        made = NetNode(
            self.net, f"node{number}", number, folder,
            capacity=CAPACITY, discovery=discovery, suspect_after=SUSPECT, gone_after=GONE,
            replicas=self.options.replicas, **(nvme if self.options.nvme else {}), **self.options.settings,
        )  # fmt: skip
        made.checkout = self.options.checkout
        self.nodes.append(made)
        return made

    def start(self) -> None:
        for _ in range(self.options.nodes):
            self.add_node().begin()
        for one in self.nodes:
            one.await_start()
        self.settle()

    def load(self) -> None:
        """A client beside each node, and those of the network that know them all. Of the nodes' code."""
        for one in self.nodes[: self.options.nodes]:
            self.client(f"beside{one.number}", one, self.options.checkout)
        for number in range(self.options.network_clients):
            self.client(f"network{number}", None, self.options.checkout)

    def client(self, name: str, beside: NetNode | None, checkout: Path = ROOT) -> None:
        where = {"target": beside.target if beside else "kv://" + ",".join(one.address for one in self.nodes)}
        acks = ["visible", *(["replicated"] * 2 if self.options.replicas > 1 else []), *self._durable()]
        flags = {
            "name": name, "seed": self.options.seed, "folder": self.folder, "acks": ",".join(acks),
            "chains": self.options.chains, "node": beside.number if beside else -1, **where,
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.history.client", *(f"--{key}={value}" for key, value in flags.items())]
        with open(self.folder / f"{name}.err", "ab") as err:
            host = beside.host if beside else "clients"
            self.clients[name] = self.net.popen(host, command, stderr=err, cwd=checkout)

    def _durable(self) -> list[str]:
        return ["durable"] if self.options.nvme else []

    # --- doing things to it --------------------------------------------------------------------------------

    def event(self, what: str, node: int = -1, **more: Any) -> None:
        self._log.add(Event(what, time.monotonic(), node, **more))

    def kill(self, one: NetNode, loses: str = "") -> None:
        """SIGKILL right after an acknowledgement; ``loses`` "memory": its machine crashes, "disk": it is replaced."""
        self._put_there(one)
        self.event({"": "kill", "memory": "reboot", "disk": "wipe"}[loses], one.number)
        one.kill(signal.SIGKILL)
        self._forget(one)
        if loses == "memory":
            one.lose_memory()
        elif loses:
            one.lose_disk()

    def stop(self, one: NetNode) -> None:
        """SIGTERM, as whoever upgrades it does."""
        self.event("kill", one.number, detail="stopped")
        assert one.stop() == 0
        self._forget(one)

    def drain(self, one: NetNode) -> str:
        """By command; what it printed. All that the node has is on others then."""
        done = one.command("cluster", "drain")
        assert done.returncode == 0, done.stdout + done.stderr
        self.event("drained", one.number)
        return done.stdout

    def dismiss(self, name: str) -> None:
        """SIGKILL for a client, in the middle of whatever it does."""
        process = self.clients.pop(name)
        process.kill()
        process.wait()

    def replace(self, one: NetNode) -> None:
        """A node goes for good, with its disk; the clients beside it go first."""
        self.dismiss(f"beside{one.number}")
        self.kill(one, "disk")

    def _put_there(self, one: NetNode) -> None:
        """New blocks, if the dice find any, acknowledged as replicated."""
        caller, ack = self._caller(one), "replicated" if self.options.replicas > 1 else "visible"
        tenant, chain = self.dice.choice(TENANTS), self.dice.randrange(self.world.chains)
        for number in range(chain, chain + 3):
            with self._puts.inside():
                version, chain = self._puts.versions().get(tenant, 0), number % self.world.chains
                caller.put(tenant, chain, self.world.chain(chain).length, ack=ack, version=version)

    def restart(self, one: NetNode) -> None:
        one.start()
        self.event("start", one.number)

    def pause(self, one: NetNode) -> None:
        self.event("pause", one.number)
        one.signal(signal.SIGSTOP)

    def resume(self, one: NetNode) -> None:
        one.signal(signal.SIGCONT)
        self._forget(one)
        self.event("resume", one.number)

    def cut(self, a: NetNode, b: NetNode, one_way: bool = False) -> None:
        self.event("cut", a.number, other=b.number, detail="one way" if one_way else "both ways")
        self._cuts.add(frozenset((a.number, b.number)))
        self.net.cut(a.host, b.host, one_way=one_way)

    def isolate(self, one: NetNode) -> None:
        self.event("isolate", one.number)
        self._cuts |= {frozenset((one.number, other.number)) for other in self.nodes if other is not one}
        self.net.isolate(one.host)

    def spoil(self, **values: float) -> None:
        self.event("note", detail=f"wires: {values}")
        self.net.spoil(**values)

    def heal(self) -> None:
        self.net.heal()
        self._cuts.clear()
        self.event("heal")

    def rotate(self, tenant: str, by: NetNode) -> None:
        """New weights: all that the namespace holds is void, on each node in reach. Reads go on meanwhile."""
        with self._puts.emptied():
            there = [(self._caller(one), self._found_at(one, tenant)) for one in self._awake() if one is not by]
            self._caller(by).rotate(tenant)
            if not self._cuts:
                self.event("rotated", tenant=tenant, count=1)
            self._puts.turn(tenant)
            for caller, chain in there:  # at once: the next moment every node will have heard of it
                caller.get(tenant, chain, self.world.chain(chain).length)

    def _found_at(self, one: NetNode, tenant: str) -> int:
        """A chain of which something is found at a node; the last one looked for when nothing is."""
        chain = 0
        for chain in self.dice.sample(range(self.world.chains), 40):
            if self._caller(one).get(tenant, chain, self.world.chain(chain).length).found:
                break
        return chain

    def await_rotated(self, tenant: str) -> None:
        """Until nodes that were away have heard of it."""
        wait_for(lambda: len({generation(one, tenant) for one in self._awake()}) == 1, "all to have rotated")
        self.event("rotated", tenant=tenant, count=1)

    def breathe(self, seconds: float) -> None:
        """Lets the load go on. A client that ended by itself is a failure."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.1)
            for name, process in self.clients.items():
                assert process.poll() is None, f"client {name} ended: {self.complaints()}"

    def complaints(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.err"))

    # --- looking at it -------------------------------------------------------------------------------------

    def _awake(self) -> list[NetNode]:
        return [one for one in self.nodes if runs(one)]

    def _linked(self, a: NetNode, b: NetNode) -> bool:
        return frozenset((a.number, b.number)) not in self._cuts

    def settle(self) -> None:
        """Until each node knows of those that it can reach what they hold, and that the others are away."""
        troubles: list[str] = ["not looked yet"]
        end = time.monotonic() + PATIENCE
        while troubles := self._unsettled():
            assert time.monotonic() < end, f"the cell did not settle: {troubles}"
            time.sleep(0.1)

    def _unsettled(self) -> list[str]:
        awake = self._awake()
        blocks = {one.number: one.stat()["blocks"] for one in awake}
        found = []
        for asked in awake:
            peers = {peer["node_id"]: peer for peer in cluster_status(asked)["peers"]}
            for other in self.nodes:
                if other is asked:
                    continue
                known = peers.get(other.node_id) if other in awake else _at(peers.values(), other)
                state = known["state"] if known else "unknown"
                wanted = other in awake and self._linked(asked, other)
                if (state in _ALIVE) != wanted:
                    found.append(f"node {asked.number} says of {other.number}: {state}")
                elif known and wanted and known["blocks"] != blocks[other.number]:
                    text = f"node {asked.number} knows {known['blocks']} of {blocks[other.number]} blocks"
                    found.append(f"{text} of node {other.number}")
        return found

    def history(self) -> History:
        return self._reader.history()

    def audit(self, nodes: Sequence[NetNode] | None = None, agree: bool = True) -> None:
        """Without load: what was acknowledged is found, whichever node is asked, and is read from one of them."""
        asked = list(nodes or self._awake())
        with self.gate.emptied():
            self.settle()
            self._audits += 1
            for (tenant, chain), owed in sorted(_longest(promised(self.history().ops)).items()):
                for one in asked:
                    name = f"audit {self._audits}" if agree else f"audit {self._audits} of node {one.number}"
                    self._caller(one).match(tenant, chain, self.world.chain(chain).length, 10.0, audit=name)
                self._caller(self.dice.choice(asked)).get(tenant, chain, owed, 10.0, must=True)

    def _caller(self, one: NetNode) -> Caller:
        if one.number not in self._callers:
            self._made += 1
            name = f"audit{self._made}"
            log = self.folder / f"{name}.jsonl"
            self._callers[one.number] = Caller(name, self.world, one.target, one.number, log)
        return self._callers[one.number]

    def _forget(self, one: NetNode) -> None:
        """A client remembers for a while that a node did not answer; an audit is not to."""
        caller = self._callers.pop(one.number, None)
        if caller is not None:
            caller.close()

    def await_whole(self) -> None:
        """Until all copies that are owed are there again, without load; what is there is written down."""
        with self.gate.emptied():
            self.settle()
            end = time.monotonic() + PATIENCE
            owed = owed_copies(self.history(), self.world, self.options.replicas, time.monotonic())
            while True:
                holdings = self.holdings(owed)
                short = _short(owed, holdings, min(self.options.replicas, len(self._awake())))
                if not short or time.monotonic() > end:
                    break
                time.sleep(0.2)
            for holding in holdings:
                self._log.add(holding)
        if not short:
            self.event("whole")

    def holdings(self, owed: list[Promise]) -> list[Holding]:
        """Of the chains of these promises, at each node that runs."""
        found, at = [], time.monotonic()
        for one in self._awake():
            with contextlib.closing(peer_session(one)) as transport:
                until = time.monotonic() + PATIENCE
                for tenant in TENANTS:
                    described = spec(tenant)
                    handle = transport.open_namespace(described.canonical(), described.root, False, until).handle
                    plan = make_plan(described.parts, (), None)
                    for chain in sorted({promise.chain for promise in owed if promise.tenant == tenant}):
                        keys = self._caller(one).keys(tenant, chain)
                        blocks = transport.match(GetCall(handle, keys.raw, 0, plan), until).blocks
                        found.append(Holding(at, one.number, tenant, chain, blocks))
        return found

    def check(self) -> list[Violation]:
        """Of all that was written down so far."""
        for one in self._awake():
            self.event("evicted", one.number, count=one.stat()["counters"].get("dropped_blocks_evicted", 0))
        return check(self.history(), self.world, self.options.replicas)

    def close(self) -> None:
        for name in list(self.clients):
            self.dismiss(name)
        for caller in self._callers.values():
            caller.close()
        for one in self.nodes:
            one.remove()
        if self.etcd:
            self.etcd.close()
        self._log.close()
        self.gate.close()
        self._puts.close()


@contextlib.contextmanager
def running(options: Options, spare: int = 0) -> Iterator[Run]:
    """A started cell; ``spare``: hosts for further nodes. Nothing is left of it."""
    hosts = [f"node{number}" for number in range(options.nodes + spare)]
    folder = Path(tempfile.mkdtemp(prefix="kvstore-history-"))
    try:
        with net([*hosts, "clients", *(["etcd"] if options.etcd else [])]) as wires:
            run = Run(folder, wires, options)
            try:
                run.start()
                yield run
            finally:
                run.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _at(peers: Any, other: NetNode) -> Any:
    """What is said of a node that is away, which may have no id any more."""
    return next((one for one in peers if one["data_address"] == other.address and one["state"] in _ALIVE), None)


def _longest(promises: dict[tuple[str, int], list[Promise]]) -> dict[tuple[str, int], int]:
    return {where: max(one.blocks for one in found) for where, found in promises.items()}


def _short(owed: list[Promise], holdings: list[Holding], copies: int) -> list[Promise]:
    """Promises that fewer nodes keep than are to."""
    found: dict[tuple[str, int], list[int]] = {}
    for one in holdings:
        found.setdefault((one.tenant, one.chain), []).append(one.blocks)
    return [
        promise
        for promise in owed
        if sum(blocks >= promise.blocks for blocks in found.get((promise.tenant, promise.chain), [])) < copies
    ]
