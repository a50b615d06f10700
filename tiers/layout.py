"""Format of the memory file, version 1: where each region starts and what its records look like.

superblock | namespace table | session table | lease table | segment table | slot headers | segments

All numbers are little-endian. Regions start on pages of the file system (4 KiB, or a huge page). A header area
belongs to each segment; only the part of it that the segment's slot class needs is ever backed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvstore.core.errors import ConfigError
from kvstore.tiers.tier import GRANULE

MAGIC = b"KVSTMEM1"
FORMAT = 1
NAMESPACE_BYTES = 16 << 10
SESSION_BYTES = 64
SEGMENT_BYTES = 64
HEADER_BYTES = 128
HEADER_SHARE = 16  # headers take at most 1/16 of a segment's bytes
MIN_NAMESPACES, MAX_NAMESPACES = 128, 1024
MIN_SEGMENT = 1 << 20
MAX_SEGMENT = 64 << 20
MIN_SEGMENTS = 16

_UNITS = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))

FREE, LIVE, DROPPING = 0, 1, 2  # states of table records
COMMITTED = 1  # state of a slot header

SUPERBLOCK = np.dtype(
    [
        ("magic", "S8"), ("format", "<u4"), ("crc", "<u4"), ("node_id", "V16"), ("capacity", "<u8"),
        ("page", "<u8"), ("segment_bytes", "<u8"), ("segments", "<u4"), ("max_namespaces", "<u4"),
        ("max_sessions", "<u4"), ("max_leased_slots", "<u4"), ("product", "S32"),
    ]
)  # fmt: skip
NAMESPACE = np.dtype(
    [("state", "<u4"), ("crc", "<u4"), ("length", "<u4"), ("generation", "<u4"), ("root", "V16"), ("used", "<u8"),
     ("rotation", "<u8")]
)  # fmt: skip
SESSION = np.dtype([("state", "<u4"), ("pad", "<u4"), ("opened", "<u8"), ("boot_id", "V16"), ("name", "S32")])
SEGMENT = np.dtype(
    [
        ("crc", "<u4"), ("state", "<u4"), ("granules", "<u4"), ("stride", "<u4"), ("generation", "<u4"),
        ("pad", "V44"),
    ]
)  # fmt: skip
# `crc` covers all from `generation` to the last checksum, and the slot's address. `stamp` changes at each touch
# and only orders eviction after a restart, so it stands outside.
HEADER = np.dtype(
    [
        ("crc", "<u4"), ("stamp", "<u4"), ("generation", "<u4"), ("namespace", "<u2"), ("part", "u1"), ("state", "u1"),
        ("key", "<u8", (2,)), ("parent", "<u8", (2,)), ("length", "<u8"), ("block", "<u4"), ("importance", "<u2"),
        ("chunks", "<u2"), ("pad", "V64"),
    ]
)  # fmt: skip
assert (SUPERBLOCK.itemsize <= 4096, SESSION.itemsize, SEGMENT.itemsize, HEADER.itemsize) == (True, 64, 64, 128)


def shown(size: int) -> str:
    """Bytes for people: whole units when they divide it, else one digit."""
    unit, name = next(((1 << shift, name) for shift, name in _UNITS if size >= 1 << shift), (1, " bytes"))
    return f"{size // unit}{name}" if size % unit == 0 else f"{size / unit:.1f} {name}"


def default_segment_bytes(capacity: int) -> int:
    """64 MiB, less when that would give fewer than 16 segments; a power of two from 1 MiB up."""
    wanted = max(MIN_SEGMENT, min(MAX_SEGMENT, capacity // MIN_SEGMENTS))
    return 1 << (wanted.bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes and offsets (bytes) of the regions. ``page``: allocation unit of the file system."""

    capacity: int
    page: int
    segment_bytes: int
    segments: int
    max_namespaces: int
    max_sessions: int
    max_leased_slots: int

    @classmethod
    def plan(
        cls, capacity: int, page: int, max_sessions: int, segment_bytes: int = 0, max_leased_slots: int = 0
    ) -> Layout:
        """A layout whose backed bytes can stay within ``capacity``. 0: choose. Raises ConfigError."""
        segment_bytes = max(segment_bytes or default_segment_bytes(capacity), page)
        if segment_bytes < MIN_SEGMENT or segment_bytes & (segment_bytes - 1):
            raise ConfigError(
                f"segment_bytes must be a power of two from {MIN_SEGMENT >> 20}MiB up, not {shown(segment_bytes)}"
            )
        leased = max_leased_slots or max(64, min(65_536, capacity // 256 // max(1, max_sessions)))
        namespaces = max(MIN_NAMESPACES, min(MAX_NAMESPACES, capacity // 128 // 4096))
        plan = cls(capacity, page, segment_bytes, 0, namespaces, max_sessions, leased)
        for _ in range(2):  # the size of the segment table depends on the number of segments
            room = capacity - plan.tables_bytes
            plan = cls(capacity, page, segment_bytes, max(1, room // segment_bytes), namespaces, max_sessions, leased)
        if plan.tables_bytes + segment_bytes + plan.header_area > capacity:
            raise ConfigError(
                f"a capacity of {shown(capacity)} is too small: the tables for {max_sessions} sessions take "
                f"{shown(plan.tables_bytes)}, one segment with headers {shown(segment_bytes + plan.header_area)}; "
                "raise the capacity, or lower max_sessions or segment_bytes"
            )
        if plan.file_bytes > GRANULE << 32:
            raise ConfigError(
                f"a memory file of {shown(plan.file_bytes)} is over the limit of 16 TiB; lower the capacity"
            )
        return plan

    def up(self, size: int) -> int:
        """Rounded up to whole pages."""
        return -(-size // self.page) * self.page

    @property
    def namespaces_at(self) -> int:
        return self.up(SUPERBLOCK.itemsize)

    @property
    def sessions_at(self) -> int:
        return self.namespaces_at + self.up(self.max_namespaces * NAMESPACE_BYTES)

    @property
    def leases_at(self) -> int:
        return self.sessions_at + self.up(self.max_sessions * SESSION_BYTES)

    @property
    def segment_table_at(self) -> int:
        return self.leases_at + self.up(self.max_sessions * self.max_leased_slots * 4)

    @property
    def headers_at(self) -> int:
        return self.segment_table_at + self.up(self.segments * SEGMENT_BYTES)

    @property
    def tables_bytes(self) -> int:
        """The most that the tables take (headers are counted as they come)."""
        return self.headers_at - (self.sessions_at - self.namespaces_at) + self.namespaces_backed

    @property
    def sparse(self) -> bool:
        """Records of namespaces are backed one by one; huge pages are too large for that."""
        return self.page <= NAMESPACE_BYTES

    @property
    def namespaces_backed(self) -> int:
        """The most memory that the namespace table takes: a page a record, longer records at the cost of others."""
        return self.max_namespaces * self.page if self.sparse else self.sessions_at - self.namespaces_at

    @property
    def header_area(self) -> int:
        """Address space (not memory) for the headers of one segment."""
        return self.up(self.segment_bytes // HEADER_SHARE)

    @property
    def data_at(self) -> int:
        start = self.headers_at + self.segments * self.header_area
        return -(-start // self.segment_bytes) * self.segment_bytes

    @property
    def file_bytes(self) -> int:
        return self.data_at + self.segments * self.segment_bytes

    def header_area_at(self, segment: int) -> int:
        return self.headers_at + segment * self.header_area

    def segment_at(self, segment: int) -> int:
        return self.data_at + segment * self.segment_bytes

    def headers_backed(self, granules: int, stride: int) -> int:
        """Bytes of pages that the headers of a segment of this slot class take."""
        return self.up(self.segment_bytes // (granules * GRANULE) * stride)
