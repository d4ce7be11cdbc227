"""The RAM tier: copies of samples in anonymous files (memfds) in memory, bounded and exactly accounted.

In: sample bytes from the engine's worker threads. Out: the same bytes. Keeps the contract of mlfs.places.tier.Tier.

`mlfs.places.memory_file` writes and reads, `mlfs.places.ram_records` says what lies where; here is kept how much memory
all of them take. There are several files, because the kernel lets only one thread write to a file at a time. They are
memfds, because another process can be handed them: the agent, and a server that takes over, which finds all copies
again. docs/decisions/ram-class.md says why samples are not simply left in the mount's page cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from mlfs.places.memory_file import PAGE_BYTES, MemoryFile, in_pages
from mlfs.places.ram_records import DIGEST_BYTES, Extent, RamRecords
from mlfs.places.tier import KeyedCopy, Spot, Version

log = logging.getLogger("mlfs.places")

FILES = 4  # as many threads can write at once; a tier has four prefetch lanes by default
_AT_ONCE = 256  # samples in one write, which takes at most 1,024 parts: each sample has two
# A tier that comes after a killed one begins to write at the next multiple of this: a thread that was killed in the
# middle of a write may be at its last page yet.
_APART_BYTES = 1 << 40


class RamTier:
    """Copies of samples in an arena of memory.

    Args:
        capacity_bytes: most memory the samples may take; their records and index (about 250 bytes a sample) come on
            top.
        memory: what `memory` of a tier was whose process has died; the descriptors belong to this tier now.

    Invariant: `_used_bytes` = sum of the footprints of the copies in `_index`, of those being written, and of those
    that were dropped while they were lent.
    """

    def __init__(self, capacity_bytes: int, memory: Sequence[int] = ()) -> None:
        self._capacity_bytes = capacity_bytes
        self._records = RamRecords(*memory[:1])
        ends = [-(-os.fstat(fd).st_size // _APART_BYTES) * _APART_BYTES for fd in memory[1:]]
        self._files = [MemoryFile(*of) for of in zip(memory[1:], ends, strict=True)] or [
            MemoryFile() for _ in range(FILES)
        ]
        self._writers = [0] * len(self._files)  # how many threads write to each
        self._closed = False
        self._lock = threading.Lock()
        self._errors = 0
        self._lent: dict[Extent, int] = {}  # how many processes read each
        self._free_later: set[Extent] = set()  # of those, what was dropped meanwhile
        self._index: dict[bytes, int]  # digest -> number of the record
        self._free_records: list[int]
        self._used_bytes: int
        self._find_again()

    def _find_again(self) -> None:
        """Enter what a tier has left, as far as it fits, and give back all that lies between."""
        numbers, records = self._records.found()
        taken = np.cumsum(_in_pages(records["size_bytes"]))
        fit = int(np.searchsorted(taken, self._capacity_bytes, side="right"))
        for number in numbers[fit:].tolist():
            self._records.take_out(number)
        numbers, records = numbers[:fit], records[:fit]
        self._index = dict(zip(records["digest"].tolist(), numbers.tolist(), strict=True))
        self._used_bytes = int(taken[fit - 1]) if fit else 0
        is_free = np.ones(len(self._records), np.bool_)
        is_free[numbers] = False
        self._free_records = np.flatnonzero(is_free)[::-1].tolist()
        for at, file in enumerate(self._files):
            held = records[records["file"] == at]
            begins = np.append(held["offset"], file.end)
            ends = np.append(0, held["offset"] + _in_pages(held["size_bytes"]))
            for end, begin in zip(ends[ends < begins].tolist(), begins[ends < begins].tolist(), strict=True):
                file.drop(begin - end, end)

    @property
    def name(self) -> str:
        return "ram"

    @property
    def capacity_bytes(self) -> int:
        return self._capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def errors(self) -> int:
        return self._errors

    # Whole pages, and at least one, as even an empty sample takes a place in the index.
    footprint_bytes = staticmethod(in_pages)

    def put(self, key: bytes, version: Version, data: memoryview) -> bool:
        return self.put_all([KeyedCopy(key, version, data)])[0]

    def put_all(self, samples: Sequence[KeyedCopy]) -> list[bool]:
        """The copies lie side by side, so one write takes all of them."""
        if len({sample.key for sample in samples}) < len(samples):
            return [self.put(*sample) for sample in samples]
        kept = [False] * len(samples)
        for first in range(0, len(samples), _AT_ONCE):
            with self._writing() as number:
                file = self._files[number]
                places = self._reserve_all(file, samples[first : first + _AT_ONCE])
                together = [(sample.data, offset) for sample, offset in places.values()]
                at_once = len(together) > 1 and file.write_side_by_side((data for data, _ in together), together[0][1])
                for at, (sample, offset) in places.items():
                    record = Extent(_digest(sample.key), number, offset, sample.version)
                    if at_once or self._write(record, sample):
                        with self._lock:
                            kept[first + at] = self._publish(record)
        return kept

    @contextmanager
    def _writing(self) -> Iterator[int]:
        """The number of a file to write to: the one to which the fewest threads write."""
        with self._lock:
            file = self._writers.index(min(self._writers))
            self._writers[file] += 1
        try:
            yield file
        finally:
            with self._lock:
                self._writers[file] -= 1

    def _reserve_all(self, file: MemoryFile, samples: Sequence[KeyedCopy]) -> dict[int, tuple[KeyedCopy, int]]:
        """Reserve room for the samples that fit, one behind the other, and drop the copies that their keys have.

        Returns sample and offset by number.
        """
        places = {}
        with self._lock:
            for number, sample in enumerate(samples):
                if len(sample.data) == sample.version.size_bytes:
                    offset = self._reserve(file, _digest(sample.key), len(sample.data))
                    if offset >= 0:
                        places[number] = (sample, offset)
        return places

    def _reserve(self, file: MemoryFile, digest: bytes, size_bytes: int) -> int:
        """Room for a copy, in place of the one that its key has: its offset, -1 where it does not fit. The caller holds
        the lock."""
        if digest in self._index:
            self._forget(digest)
        footprint_bytes = in_pages(size_bytes)
        if self._closed or self._used_bytes + footprint_bytes > self._capacity_bytes:
            return -1
        self._used_bytes += footprint_bytes
        return file.reserve(footprint_bytes)

    def _write(self, record: Extent, sample: KeyedCopy) -> bool:
        try:
            self._files[record.file].write(sample.data, record.offset)
        except OSError as error:
            self._failed(error)
            with self._lock:
                self._free(record)
            return False
        return True

    def _publish(self, record: Extent | Spot) -> bool:
        """Enter a copy that is whole. The caller holds the lock."""
        if record.digest in self._index:
            self._forget(record.digest)  # another thread has put it meanwhile
        if self._closed:
            return False
        if not self._free_records:
            before = len(self._records)
            try:
                self._records.grow()
            except OSError as error:
                self._failed(error)
                self._free(_extent_of(record))
                return False
            self._free_records = [*reversed(range(before, len(self._records)))]
        number = self._free_records.pop()
        self._records.write(number, record)
        self._index[record.digest] = number
        return True

    # -- copies that another process writes or reads, which has the memory files as well

    @property
    def shared_fds(self) -> list[int]:
        return self.memory_fds

    @property
    def shared_secret(self) -> bytes:
        return b""

    def begin_elsewhere(self, wanted: Sequence[tuple[bytes, Version]]) -> list[Spot | None]:
        """See SharedTier. All of it lies in one file, to which others write as little as to any."""
        digests = [_digest(key) for key, _ in wanted]
        with self._lock:
            number = self._writers.index(min(self._writers))
            file, reserve = self._files[number], self._reserve
            offsets = [
                reserve(file, digest, version.size_bytes) for digest, (_, version) in zip(digests, wanted, strict=True)
            ]
            self._writers[number] += len(offsets) - offsets.count(-1)
        return [
            Spot(digest, version, number, offset) if offset >= 0 else None
            for digest, (_, version), offset in zip(digests, wanted, offsets, strict=True)
        ]

    def put_elsewhere(self, written: Sequence[tuple[Spot, bool, int]]) -> list[bool]:
        kept = []
        with self._lock:
            for spot, is_whole, failure in written:
                if failure:
                    self._failed(OSError(failure, os.strerror(failure)))
                self._writers[spot.file] -= 1
                if not is_whole:
                    self._free(_extent_of(spot))
                kept.append(is_whole and self._publish(spot))
        return kept

    def lend(self, wanted: Sequence[tuple[bytes, Version]]) -> list[Spot | None]:
        """See SharedTier. A copy that is dropped meanwhile keeps its memory: a hole would be read as zeros."""
        spots: list[Spot | None] = []
        with self._lock:
            for key, version in wanted:
                record = self._record(_digest(key))
                if record is None or record.version != version:
                    spots.append(None)
                    continue
                self._lent[record] = self._lent.get(record, 0) + 1
                spots.append(Spot(record.digest, version, record.file, record.offset))
        return spots

    def give_back(self, spots: Sequence[Spot]) -> None:
        with self._lock:
            for record in map(_extent_of, spots):
                self._lent[record] -= 1
                if not self._lent[record]:
                    del self._lent[record]
                    if record in self._free_later:
                        self._free_later.discard(record)
                        self._free(record)

    def get(self, key: bytes, version: Version) -> bytes | None:
        return self.get_range(key, version, 0, version.size_bytes)

    def get_range(self, key: bytes, version: Version, offset: int, size: int) -> bytes | None:
        """A range of a copy; see GivesRanges."""
        digest = _digest(key)
        record = self._record(digest)
        if record is None:
            return None
        if record.version != version:
            self.drop(key)
            return None
        try:
            data = self._files[record.file].read(size, record.offset + offset)
        except OSError as error:
            self._failed(error)
            return None
        # If the copy was dropped while it was read, the bytes may be those of the hole. No offset is used twice.
        return data if self._record(digest) == record else None

    def _record(self, digest: bytes) -> Extent | None:
        number = self._index.get(digest)
        if number is None:
            return None
        record = self._records.read(number)
        return record if record.digest == digest else None  # else it went just now, and another one came in its place

    def where(self, key: bytes, version: Version) -> tuple[int, int] | None:
        """The number of the memory file in which a copy of this version lies, and its offset there."""
        record = self._record(_digest(key))
        return (record.file, record.offset) if record is not None and record.version == version else None

    @property
    def memory_fds(self) -> list[int]:
        """The memory files, in the order in which `where` counts them; they belong to the tier."""
        return [file.fd for file in self._files]

    @property
    def memory(self) -> list[int]:
        """All that another tier needs to find the copies again, once this process has died; it belongs to the tier."""
        return [self._records.fd, *self.memory_fds]

    def contains(self, key: bytes) -> bool:
        return _digest(key) in self._index

    def drop(self, key: bytes) -> None:
        with self._lock:
            self._forget(_digest(key))

    def close(self) -> None:
        """Give the memory back. From then on the tier holds and takes nothing. It may be called twice."""
        with self._lock:
            self._index.clear()
            self._used_bytes = 0
            self._closed = True
            for file in self._files:
                file.close()
            self._records.close()

    def _forget(self, digest: bytes) -> None:
        number = self._index.pop(digest, None)
        if number is not None:
            record = self._records.read(number)
            self._records.take_out(number)
            self._free_records.append(number)
            self._free(record)

    def _free(self, record: Extent) -> None:
        """Free what a copy occupies. The caller holds the lock, and the index has it no more."""
        if self._closed:
            return
        if record in self._lent:
            self._free_later.add(record)
            return
        self._used_bytes -= in_pages(record.version.size_bytes)
        try:
            self._files[record.file].drop(record.version.size_bytes, record.offset)
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self._errors += 1
        if self._errors == 1:
            log.warning("RAM tier: %s (further failures are counted)", error)


def _in_pages(size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.maximum(1, -(-size_bytes // PAGE_BYTES)) * PAGE_BYTES


def _extent_of(spot: Extent | Spot) -> Extent:
    return Extent(spot.digest, spot.file, spot.offset, spot.version)


def _digest(key: bytes) -> bytes:
    """Nobody finds two keys with one digest: so the keys themselves need not be kept."""
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()
