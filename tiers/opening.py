"""Opening the NVMe tier of a store, and its part of the store's figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvstore.core.errors import ConfigError
from kvstore.tiers.absent import AbsentNvme, is_mistake
from kvstore.tiers.movement import Movement
from kvstore.tiers.nvme.directory import NvmeConfig
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.placement import Placement
from kvstore.tiers.tier import Entries
from kvstore.tiers.values import NvmeReport, StoreConfig

RULES = ("clean", "through", "off")


def check_config(config: StoreConfig) -> None:
    """Raises ConfigError."""
    if len(config.node_id) != 16:
        raise ConfigError(f"node_id is {len(config.node_id)} bytes, not 16")
    if not 0 < config.low_watermark <= config.high_watermark <= 1:
        raise ConfigError(
            f"low_watermark {config.low_watermark} and high_watermark {config.high_watermark} must be above 0, at most "
            "1, and in this order"
        )
    if config.max_sessions < 1:
        raise ConfigError(f"max_sessions is {config.max_sessions}, not 1 or more")


def check_nvme(config: StoreConfig) -> None:
    """Raises ConfigError."""
    if config.nvme_write_rule not in RULES:
        raise ConfigError(f"nvme_write_rule is {config.nvme_write_rule!r}, none of {', '.join(RULES)}")
    if config.nvme_movers < 2:
        raise ConfigError(f"nvme_movers is {config.nvme_movers}; at least 2 are needed: readers wait for demotions")


@dataclass(frozen=True, slots=True)
class OpenedNvme:
    """A tier and all that lies in it."""

    tier: NvmeTier
    entries: list[Entries]


def open_nvme(config: StoreConfig) -> OpenedNvme | AbsentNvme | None:
    """The NVMe tier, recovered; what stands for it when its disk or index fails; None without a directory. Raises
    ConfigError for a directory that is not for this node, or settings that make no sense."""
    if config.nvme_dir is None:
        return None
    check_nvme(config)
    found = NvmeConfig(
        config.nvme_dir, config.nvme_capacity_bytes, config.node_id.hex(), config.nvme_segment_bytes,
        io_threads=config.nvme_io_threads, scrub_bytes=config.nvme_scrub_bytes,
    )  # fmt: skip
    try:
        return _opened(found)
    except OSError as error:
        if is_mistake(error):
            raise ConfigError(
                f"the NVMe tier in {config.nvme_dir} cannot be opened: {error}. Give the node a directory that it may "
                "write to, or start without nvme_dir"
            ) from error
        return AbsentNvme(found, error)


def _opened(config: NvmeConfig) -> OpenedNvme:
    tier = NvmeTier(config)
    try:
        return OpenedNvme(tier, list(tier.recover()))
    except BaseException:
        tier.close()
        raise


def nvme_report(placement: Placement | None, movement: Movement | None) -> NvmeReport | None:
    """Health and what was moved, None without such a tier; called under the lock."""
    if placement is None or movement is None:
        return None
    health, did, mover = placement.nvme.health, placement.nvme.details(), movement.mover
    counters = {
        "reads": did.reads, "read_bytes": did.read_bytes, "writes": did.writes, "written_bytes": did.written_bytes,
        "scrubbed": did.scrubbed, "scrubbed_bytes": did.scrubbed_bytes, "commits": did.commits,
        "index_restarts": did.index_restarts,
    }  # fmt: skip
    counters.update({f"failures_{reason}": count for reason, count in did.failures.items()})
    counters.update({f"moves_{why}_{outcome}": count for (why, outcome), count in list(mover.outcomes.items())})
    counters.update({f"moved_bytes_{why}": count for why, count in list(mover.moved_bytes.items())})
    blocks = int(np.count_nonzero(placement.on_nvme[: placement.index.rows_used]))
    return NvmeReport(
        health.state, health.reason, health.since, health.advice, blocks, movement.demoter.admission.threshold,
        counters, mover.waiting(), mover.waiting_seconds(), mover.waiting_max(), did.backlog, did.bad_slots,
    )  # fmt: skip
