"""The NVMe tier: preallocated segment files, O_DIRECT, and an LMDB index that lives in a child process.

What makes it hold: an entry is in the index only after the bytes it names were synced; a slot is given out again
only after the removal of its entry was synced; and each slot carries a trailer (address, generation, key, checksums)
that must agree with the entry and with the bytes before anybody sees them.

Start at :mod:`kvstore.tiers.nvme.tier`.
"""
