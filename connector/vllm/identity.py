"""The scheduler half's namespace: built once all ranks have described themselves, opened, rotated, explained."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from kvstore.core.namespace import NamespaceSpec

from . import descriptor
from .descriptor import Fields, RankFacts, Refused
from .options import Options
from .planner import Geometry
from .stats import Recorder

PROBE_S = 120.0  # how long the engine may take until its hashing is set up


class Identity:
    """``spec`` and ``geometry`` are None until the namespace is known; ``refused`` says why it never will be."""

    def __init__(
        self,
        options: Options,
        hash_algorithm: str,
        probe: Callable[[], str | None],
        refusals: Sequence[str],
        stats: Recorder,
        opened: Callable[[NamespaceSpec], None],
    ) -> None:
        self._options, self._hash_algorithm, self._probe = options, hash_algorithm, probe
        self._refusals, self._stats, self._use = tuple(refusals), stats, opened
        self._log = logging.getLogger("vllm.kvstore")
        self._ranks: dict[tuple[int, int], RankFacts] = {}
        self._generation = options.weights_generation
        self.spec: NamespaceSpec | None = None
        self.geometry: Geometry | None = None
        self.needed: tuple[int, ...] = ()
        self.refused = ""
        self.known = False  # the ranks need not describe themselves any more
        self.on_device = False
        self.untold = False  # the namespace must be told to the workers

    @property
    def root(self) -> bytes:
        assert self.spec is not None
        return self.spec.root

    def add_ranks(self, ranks: Mapping[tuple[int, int], RankFacts]) -> None:
        """Descriptions of workers, by handshake or report. Builds the namespace once all are there."""
        if self.known or not ranks:
            return
        self._ranks.update(ranks)
        first = next(iter(self._ranks.values()))
        if len(self._ranks) >= first.tp_size * first.pp_size:
            self.known = True
            threading.Thread(target=self._describe, name="kvstore-describe", daemon=True).start()

    def _describe(self) -> None:
        end = time.monotonic() + PROBE_S
        try:
            while (probe := self._probe()) is None and time.monotonic() < end:
                time.sleep(0.002)
            if probe is None:
                raise Refused("the engine's block hashing was not set up")
            self._build(probe)
        except Refused as error:
            self._refuse(str(error))
        except Exception as error:
            self._log.exception("kvstore: the namespace could not be described")
            self._refuse(f"the namespace could not be described: {error}")

    def _build(self, probe: str) -> None:
        if self._refusals:
            raise Refused("; ".join(self._refusals))
        options = self._options
        fields = Fields(self._hash_algorithm, probe, options.tenant, self._generation, options.head_parts)
        spec = descriptor.build(self._ranks, fields)
        self.geometry = descriptor.geometry(next(iter(self._ranks.values())))
        self.on_device = any(rank.shared.get("device", "cpu") != "cpu" for rank in self._ranks.values())
        self.needed = descriptor.needed_groups(spec)
        self.spec, self.untold = spec, True
        self._use(spec)

    def _refuse(self, why: str) -> None:
        self._stats.gauge("namespace_open", -1, "scheduler")
        self._log.error("kvstore: caching is off for this engine: %s", why)
        self.refused = why

    def rotate(self) -> None:
        """The weights may have changed: a generation that no other engine has."""
        self._generation = f"{self._options.weights_generation}+{uuid.uuid4().hex}"
        if self.spec is not None:
            self._build(self.spec.extra["hash_probe"])
            self._log.info("kvstore: cache reset: a new weights generation, namespace %s", self.root.hex())

    def same(self, announced: str) -> bool:
        """Whether blocks that another engine announced are of this namespace; others need not be waited for."""
        if announced == self.root.hex():
            return True
        self._stats.add("lookup_misses", 1, "other_namespace")
        text = (
            "kvstore: the prefill engine stored its blocks in namespace %s, this one uses %s: prompts are computed "
            "again. Start both with the same model, dtype, parallelism and options"
        )
        self._log.warning(text, announced, self.root.hex())
        return False
