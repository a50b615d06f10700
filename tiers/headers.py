"""Slot headers and the segment table of the memory file: written and read for whole batches with numpy."""

from __future__ import annotations

import secrets
import struct
import zlib

import numpy as np
import numpy.typing as npt

from kvstore.tiers.columns import FEW
from kvstore.tiers.layout import COMMITTED, FREE, HEADER, HEADER_BYTES, LIVE, SEGMENT, SEGMENT_BYTES
from kvstore.tiers.memfile import MemoryFile
from kvstore.tiers.segments import I64Array, SegmentSpace, SlotClass
from kvstore.tiers.tier import GRANULE, Entries, SlotArray, U32Array, U64Array

_WORDS = HEADER_BYTES // 8
_BODY_STRUCT = struct.Struct("<IHBB4QQIHH64x")  # a header from its second word on, as in HEADER
_GENERATION = np.uint64(0xFFFFFFFF)
_BODY = np.arange(2, _WORDS)
_STAMP_BITS = np.uint64(32)
_PIN = _WORDS - 1  # this word of a header stands outside its CRC and has a check of its own
_PIN_VALUE = (1 << 40) - 1
_NO_PIN_WORD = bytes(8)


class SegmentTable:
    """Which slot class each segment serves, and the generation its slots start from. CRC-guarded records."""

    def __init__(self, file: MemoryFile) -> None:
        self._rows = file.array(SEGMENT, file.layout.segment_table_at, file.layout.segments)

    def read(self, segment: int) -> tuple[SlotClass, int] | None:
        """Class and first generation, or None when the segment serves none (or its record is torn)."""
        row = self._rows[segment : segment + 1]
        if int(row["state"][0]) != LIVE or int(row["crc"][0]) != _row_crc(row):
            return None
        return SlotClass(int(row["granules"][0]), int(row["stride"][0])), int(row["generation"][0])

    def write(self, segment: int, kind: SlotClass, generation: int) -> None:
        """The segment serves ``kind`` from now on; its header area must be clear already."""
        row = np.zeros(1, SEGMENT)
        row["state"], row["granules"], row["stride"], row["generation"] = LIVE, kind.granules, kind.stride, generation
        row["crc"] = _row_crc(row)
        self._rows[segment : segment + 1] = row

    def clear(self, segment: int) -> None:
        """The segment serves no class."""
        self._rows[segment : segment + 1] = np.zeros(1, SEGMENT)


class HeaderTable:
    """Headers of slots, addressed by slot. All batches are vectorised; nothing here allocates memory in the file."""

    def __init__(self, file: MemoryFile, space: SegmentSpace) -> None:
        self._file = file
        self._space = space
        self._words = file.words
        segments = file.layout.segments
        self._area = np.array([file.layout.header_area_at(at) // 8 for at in range(segments)], np.int64)
        self._stride = np.zeros(segments, np.int64)  # words
        self._area_at, self._stride_at = memoryview(self._area), memoryview(self._stride)
        self._words_at = memoryview(self._words)
        self._bytes_at = self._words_at.cast("B")

    def serve(self, segment: int, kind: SlotClass) -> None:
        """Headers of this segment have the stride of ``kind`` from now on."""
        self._stride[segment] = kind.stride // 8

    def first_words(self, slots: SlotArray) -> I64Array:
        """Index in the file's words of each slot's header."""
        segment, index = self._space.locate(slots)
        return np.asarray(self._area[segment] + index * self._stride[segment])

    def first_word(self, slot: int) -> int:
        """As ``first_words``, of one slot."""
        segment, index = self._space.locate_one(slot)
        return self._area_at[segment] + index * self._stride_at[segment]

    def renew(self, slots: SlotArray) -> U32Array:
        """Clears the headers and raises the generations, which are returned."""
        if len(slots) < FEW:
            return np.array([self._renew(self.first_word(slot)) for slot in slots.tolist()], np.uint32)
        at, words = self.first_words(slots), self._words
        words[at] = 0
        generations = (words[at + 1] + np.uint64(1)) & _GENERATION
        words[at + 1] = generations
        return generations.astype(np.uint32)

    def _renew(self, at: int) -> int:
        words = self._words_at
        words[at] = 0
        words[at + 1] = generation = (words[at + 1] + 1) & 0xFFFFFFFF
        return generation

    def clear(self, slots: SlotArray) -> None:
        """The slots hold nothing; generations stay."""
        at, words = self.first_words(slots), self._words
        words[at] = 0
        words[at + 1] &= _GENERATION

    def start(self, segment: int, slots: int, generation: int) -> None:
        """Gives all headers of a segment (clear, just dedicated) their first generation."""
        at = int(self._area[segment]) + np.arange(slots) * int(self._stride[segment])
        self._words[at + 1] = generation

    def newest_generation(self, segment: int, slots: int) -> int:
        """Highest generation among the headers of a segment."""
        at = int(self._area[segment]) + np.arange(slots) * int(self._stride[segment])
        return int((self._words[at + 1] & _GENERATION).max())

    def write(self, entries: Entries) -> None:
        """Commits headers. All entries must have the same number of chunks. The CRC goes last."""
        if len(entries) < FEW:
            self._write_few(entries)
        else:
            self._write_many(entries)

    def _write_few(self, entries: Entries) -> None:
        words, raw, chunks, crc32 = self._words_at, self._bytes_at, int(entries.chunks[0]), zlib.crc32
        every, width = memoryview(np.ascontiguousarray(entries.checksums, "<u8").reshape(-1)).cast("B"), 8 * chunks
        for nth, (slot, stamp, generation, space, part, key, parent, length, block, importance) in enumerate(
            zip(
                entries.slots.tolist(), entries.stamps.tolist(), entries.generations.tolist(),
                entries.namespaces.tolist(), entries.parts.tolist(), entries.keys.tolist(), entries.parents.tolist(),
                entries.lengths.tolist(), entries.blocks.tolist(), entries.importance.tolist(), strict=True,
            )
        ):  # fmt: skip
            sums, at = every[nth * width : (nth + 1) * width], self.first_word(slot)
            body = _BODY_STRUCT.pack(
                generation, space, part, COMMITTED, *key, *parent, length, block, importance, chunks
            )
            raw[8 * at + 16 : 8 * at + HEADER_BYTES] = body[8:]
            raw[8 * at + HEADER_BYTES : 8 * at + HEADER_BYTES + width] = sums
            words[at + 1] = int.from_bytes(body[:8], "little")
            words[at] = crc32(sums, crc32(body, slot)) | stamp << 32

    def _write_many(self, entries: Entries) -> None:
        words, chunks, records = self._words, int(entries.chunks[0]), _records(entries)
        body = records.view("<u8").reshape(len(entries), _WORDS)
        sums = np.ascontiguousarray(entries.checksums, "<u8").reshape(len(entries), chunks)
        records["crc"] = _crcs(body, sums, entries.slots)
        at = self.first_words(entries.slots)
        words[at[:, None] + _BODY] = body[:, 2:]
        words[at[:, None] + np.arange(_WORDS, _WORDS + chunks)] = sums
        words[at + 1] = body[:, 1]
        words[at] = body[:, 0]

    def stamp(self, slots: SlotArray, stamp: int) -> None:
        """Notes when the slots were last used. Slots freed meanwhile do no harm."""
        at = self.first_words(slots) * 2 + 1
        self._file.half_words[at] = stamp

    def copy(self, old: int, new: int, generation: int) -> None:
        """The header of one slot becomes that of another (just given out) as well, pin and last use included."""
        source, target = self.first_words(np.array([old, new], np.uint32)).tolist()
        count = int(self._words[source + 7]) >> 48  # the field `chunks`
        record = self._words[source : source + _WORDS + count].copy()
        record[1] = (record[1] & ~_GENERATION) | np.uint64(generation)
        body, pin = record[1:].copy(), record[_PIN]
        body[_PIN - 1] = 0
        record[0] = (record[0] & ~_GENERATION) | np.uint64(zlib.crc32(body.tobytes(), new))
        record[_PIN] = _pin_word(int(pin) & _PIN_VALUE, generation) if pin else 0
        self._words[target + 1 : target + len(record)] = record[1:]
        self._words[target] = record[0]

    def pin(self, slots: SlotArray, value: int) -> None:
        """Notes a value below 2^40 beside committed slots, 0 to forget it; it is gone with what the slots hold."""
        at = self.first_words(slots)
        generations = (self._words[at + 1] & _GENERATION).tolist()
        self._words[at + _PIN] = [_pin_word(value, one) if value else 0 for one in generations]

    def pins(self, slots: SlotArray) -> list[tuple[int, int]]:
        """Those values that stand beside slots, undamaged, as (position, value)."""
        at = self.first_words(slots)
        noted = np.flatnonzero(self._words[at + _PIN])
        generations = (self._words[at[noted] + 1] & _GENERATION).tolist()
        found = zip(noted.tolist(), self._words[at[noted] + _PIN].tolist(), generations, strict=True)
        return [(n, word & _PIN_VALUE) for n, word, one in found if word == _pin_word(word & _PIN_VALUE, one)]

    def checksums(self, slots: SlotArray, chunks: range) -> U64Array:
        """Shape (len(slots), len(chunks))."""
        if len(slots) < FEW:
            words, first, end = self._words_at, _WORDS + chunks.start, _WORDS + chunks.stop
            found = b"".join([words[at + first : at + end] for at in map(self.first_word, slots.tolist())])
            return np.frombuffer(found, np.uint64).reshape(len(slots), len(chunks))
        at = self.first_words(slots) + (_WORDS + chunks.start)
        return np.asarray(self._words[at[:, None] + np.arange(len(chunks))])

    def recorded(self, segment: int, kind: SlotClass) -> Entries:
        """Committed slots of a segment whose CRC holds; the headers of all others are cleared."""
        slots = self._file.layout.segment_bytes // (kind.granules * GRANULE)
        start = self._file.layout.header_area_at(segment)
        headers = self._file.array(HEADER, start, slots, kind.stride)
        room = (kind.stride - HEADER_BYTES) // 8
        fits = (headers["state"] == COMMITTED) & (headers["chunks"] <= room)
        fits &= headers["length"] <= kind.granules * GRANULE
        indexes = np.flatnonzero(fits)
        addresses = self._space.addresses(segment, indexes)
        sound = self._sound(start, kind.stride, indexes, headers["chunks"][indexes], addresses)
        used = headers["state"] != FREE
        used[indexes[sound]] = False
        self.clear(self._space.addresses(segment, np.flatnonzero(used)))
        return self._entries(headers[indexes[sound]], addresses[sound])

    def _sound(
        self, start: int, stride: int, indexes: I64Array, chunks: npt.NDArray[np.uint16], addresses: SlotArray
    ) -> npt.NDArray[np.bool_]:
        crc32, raw = zlib.crc32, memoryview(self._file.map)
        stored = self._file.half_words[(start + indexes * stride) // 4].tolist()
        pinned = (self._words[(start + indexes * stride) // 8 + _PIN] != 0).tolist()
        found = []
        for index, count, slot, crc, pin in zip(
            indexes.tolist(), chunks.tolist(), addresses.tolist(), stored, pinned, strict=True
        ):
            at = start + index * stride
            body = raw[at + 8 : at + HEADER_BYTES + 8 * count]
            if pin:
                body = memoryview(b"".join((body[: 8 * (_PIN - 1)], _NO_PIN_WORD, body[8 * _PIN :])))
            found.append(crc32(body, slot) == crc)
        raw.release()
        return np.array(found, np.bool_)

    def _entries(self, headers: npt.NDArray[np.void], slots: SlotArray) -> Entries:
        chunks = headers["chunks"].astype(np.uint32)
        return Entries(
            slots=slots, generations=headers["generation"], namespaces=headers["namespace"], parts=headers["part"],
            keys=headers["key"], parents=headers["parent"], blocks=headers["block"], lengths=headers["length"],
            importance=headers["importance"], stamps=headers["stamp"], chunks=chunks,
            checksums=np.empty(0, np.uint64),
        )  # fmt: skip


def fresh_generation() -> int:
    """A first generation where the last one is not known: far from any in use, with high probability."""
    return secrets.randbits(31) + 1


def _pin_word(value: int, generation: int) -> int:
    """``value`` with a check over it and the slot's generation."""
    return value | zlib.crc32(value.to_bytes(5, "little"), generation) >> 8 << 40


def _records(entries: Entries) -> npt.NDArray[np.void]:
    records = np.zeros(len(entries), HEADER)
    for field, column in (
        ("stamp", entries.stamps), ("generation", entries.generations), ("namespace", entries.namespaces),
        ("part", entries.parts), ("key", entries.keys), ("parent", entries.parents), ("length", entries.lengths),
        ("block", entries.blocks), ("importance", entries.importance), ("chunks", entries.chunks),
    ):  # fmt: skip
        records[field] = column
    records["state"] = COMMITTED
    return records


def _crcs(body: U64Array, sums: U64Array, slots: SlotArray) -> list[int]:
    """CRC of each header as the bytes after stamp and CRC, then the checksums; started from the slot's address."""
    whole = memoryview(np.concatenate((body[:, 1:], sums), axis=1)).cast("B")
    size, crc32 = len(whole) // max(1, len(slots)), zlib.crc32
    return [crc32(whole[at * size : (at + 1) * size], slot) for at, slot in enumerate(slots.tolist())]


def _row_crc(row: npt.NDArray[np.void]) -> int:
    assert len(row.tobytes()) == SEGMENT_BYTES
    return zlib.crc32(row.tobytes()[4:])
