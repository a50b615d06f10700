"""Opening the NVMe tier of a store, and its part of the store's figures."""

from __future__ import annotations

import numpy as np

from kvstore.core.errors import ConfigError
from kvstore.tiers.movement import Movement
from kvstore.tiers.nvme.directory import NvmeConfig
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.placement import Placement
from kvstore.tiers.values import NvmeReport, StoreConfig

RULES = ("clean", "through", "off")


def check_nvme(config: StoreConfig) -> None:
    """Raises ConfigError."""
    if config.nvme_write_rule not in RULES:
        raise ConfigError(f"nvme_write_rule is {config.nvme_write_rule!r}, none of {', '.join(RULES)}")
    if config.nvme_movers < 2:
        raise ConfigError(f"nvme_movers is {config.nvme_movers}; at least 2 are needed: readers wait for demotions")


def open_nvme(config: StoreConfig) -> NvmeTier | None:
    """The NVMe tier, not recovered yet; None without a directory. Raises ConfigError."""
    if config.nvme_dir is None:
        return None
    check_nvme(config)
    try:
        return NvmeTier(
            NvmeConfig(
                config.nvme_dir, config.nvme_capacity_bytes, config.node_id.hex(), config.nvme_segment_bytes,
                io_threads=config.nvme_io_threads, scrub_bytes=config.nvme_scrub_bytes,
            )
        )  # fmt: skip
    except OSError as error:
        raise disk_error(config, error) from error


def disk_error(config: StoreConfig, error: OSError) -> ConfigError:
    """What to tell the person who starts a node over a disk that does not work."""
    return ConfigError(
        f"the NVMe tier in {config.nvme_dir} cannot be opened: {error}. Repair the disk, run 'kvstore fsck "
        f"{config.nvme_dir}', or start without nvme_dir"
    )


def nvme_report(placement: Placement, movement: Movement) -> NvmeReport:
    """Health and what was moved; called under the lock."""
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
        counters, mover.waiting(),
    )  # fmt: skip
