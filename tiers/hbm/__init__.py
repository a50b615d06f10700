"""The HBM tier: blocks in the memory of an accelerator, reached by copies on streams only."""

from __future__ import annotations

from kvstore.tiers.hbm.device import Allocation, Device, DeviceError, Event, Stream
from kvstore.tiers.hbm.host import HostMemoryDevice
from kvstore.tiers.hbm.tier import HbmTier

__all__ = ["Allocation", "Device", "DeviceError", "Event", "HbmTier", "HostMemoryDevice", "Stream"]
