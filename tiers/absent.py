"""An NVMe tier that could not be opened when the node started: the node serves from DRAM, and says what is wrong.

The directory is tried again from time to time, wholly, as a start would. Taking it up needs a restart, which loses
nothing: what is in DRAM is re-adopted.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import deque

from kvstore.core.errors import ConfigError
from kvstore.tiers.nvme.directory import NvmeConfig
from kvstore.tiers.nvme.tier import NvmeTier
from kvstore.tiers.tier import TierStat
from kvstore.tiers.values import NvmeReport

log = logging.getLogger(__name__)
_FIRST, _MOST = 0.5, 60.0  # seconds between attempts
_MISTAKES = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


def is_mistake(error: OSError) -> bool:
    """The directory was named wrongly, or is not ours to write: nothing that a repaired disk would change."""
    return error.errno in _MISTAKES


class AbsentNvme:
    """``step`` is called by one thread; the rest may be asked by any."""

    def __init__(self, config: NvmeConfig, error: OSError) -> None:
        self._config = config
        self._since = time.time()
        self._delay = _FIRST
        self._tried = False
        self.state, self.reason = "failed", f"could not be opened at the start: {error}"
        self.advice = (
            f"repair the disk (see the kernel log), or run 'kvstore fsck {config.directory}' when only the index is "
            "damaged; the directory is tried again until it can be opened"
        )
        log.error("NVMe tier in %s %s; serving from DRAM only", config.directory, self.reason)

    def step(self) -> float | None:
        """Tries to open the directory; seconds until the next attempt, None: no further one is needed."""
        if not self._tried:  # the start has just failed
            self._tried = True
            return self._delay
        try:
            self._open()
        except (OSError, ConfigError) as error:
            self.reason = f"cannot be opened: {error}"
            self._delay = min(2 * self._delay, _MOST)
            return self._delay
        self.state, self._since = "degraded", time.time()
        self.reason = "could not be opened when the node started; it can be now"
        self.advice = "restart the node to take the NVMe tier up again; blocks in DRAM are kept"
        log.warning("NVMe tier in %s can be opened again: %s", self._config.directory, self.advice)
        return None

    def _open(self) -> None:
        tier = NvmeTier(self._config)
        try:
            deque(tier.recover(), maxlen=0)
        finally:
            tier.close()

    def report(self) -> NvmeReport:
        """State, reason and advice."""
        return NvmeReport(self.state, self.reason, self._since, self.advice, 0, 0.0, {}, {})

    def stat(self) -> TierStat:
        """The figures of a tier that has nothing."""
        return TierStat(
            name="nvme", capacity_bytes=self._config.capacity_bytes, used_bytes=0, backed_bytes=0, segments=0,
            segments_ready=0, slots=0, slots_used=0, trouble=self.reason,
        )  # fmt: skip
