"""The RAM tier: copies of samples in anonymous files (memfds) in memory, bounded and exactly accounted.

In: sample bytes from the engine's worker threads. Out: the same bytes. Keeps the contract of mlfs.places.tier.Tier.

`mlfs.places.memory_file` writes and reads; here is kept which sample lies where, and how much memory all of them take.
There are several files, because the kernel lets only one thread write to a file at a time. They are memfds, because
another process can be handed one, for instance a server that takes over. docs/decisions/ram-class.md says why samples
are not simply left in the mount's page cache.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from mlfs.places.memory_file import MemoryFile, in_pages
from mlfs.places.tier import KeyedCopy, Version

log = logging.getLogger("mlfs.places")

FILES = 4  # as many threads can write at once; a tier has four prefetch lanes by default
_AT_ONCE = 256  # samples in one write, which takes at most 1,024 parts: each sample has two


class _Extent(NamedTuple):
    """The place of a copy in the arena, and its version."""

    file: MemoryFile
    offset: int
    version: Version


class RamTier:
    """Copies of samples in an arena of memory.

    Args:
        capacity_bytes: most memory the samples may take; the index of keys (about 250 bytes a sample) comes on top.

    Invariant: `_used_bytes` = sum of the footprints of the extents in `_index` and of those being written.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._writers = {MemoryFile(): 0 for _ in range(FILES)}  # how many threads write to each file
        self._closed = False
        self._lock = threading.Lock()
        self._index: dict[bytes, _Extent] = {}
        self._used_bytes = 0
        self._errors = 0

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

    def footprint_bytes(self, size_bytes: int) -> int:
        """Whole pages, and at least one, as even an empty sample takes a place in the index."""
        return in_pages(size_bytes)

    def put(self, key: bytes, version: Version, data: memoryview) -> bool:
        return self.put_all([KeyedCopy(key, version, data)])[0]

    def put_all(self, samples: Sequence[KeyedCopy]) -> list[bool]:
        """The copies lie side by side, so one write takes all of them."""
        if len({sample.key for sample in samples}) < len(samples):
            return [self.put(*sample) for sample in samples]
        kept = [False] * len(samples)
        for first in range(0, len(samples), _AT_ONCE):
            with self._writing() as file:
                places = self._reserve_all(file, samples[first : first + _AT_ONCE])
                together = [(sample.data, offset) for sample, offset in places.values()]
                at_once = len(together) > 1 and file.write_side_by_side((data for data, _ in together), together[0][1])
                for number, (sample, offset) in places.items():
                    extent = _Extent(file, offset, sample.version)
                    kept[first + number] = (at_once or self._write(extent, sample)) and self._publish(extent, sample)
        return kept

    @contextmanager
    def _writing(self) -> Iterator[MemoryFile]:
        """A file to write to: the one to which the fewest threads write."""
        with self._lock:
            file = min(self._writers, key=self._writers.__getitem__)
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
                size_bytes = len(sample.data)
                if size_bytes != sample.version.size_bytes:
                    continue
                self._forget(sample.key)
                if self._closed or self._used_bytes + in_pages(size_bytes) > self._capacity_bytes:
                    continue
                self._used_bytes += in_pages(size_bytes)
                places[number] = (sample, file.reserve(size_bytes))
        return places

    def _write(self, extent: _Extent, sample: KeyedCopy) -> bool:
        try:
            extent.file.write(sample.data, extent.offset)
        except OSError as error:
            self._failed(error)
            with self._lock:
                self._free(extent)
            return False
        return True

    def _publish(self, extent: _Extent, sample: KeyedCopy) -> bool:
        with self._lock:
            self._forget(sample.key)  # another thread may have put it meanwhile
            if self._closed:
                return False
            self._index[sample.key] = extent
        return True

    def get(self, key: bytes, version: Version) -> bytes | None:
        return self.get_range(key, version, 0, version.size_bytes)

    def get_range(self, key: bytes, version: Version, offset: int, size: int) -> bytes | None:
        """A range of a copy; see GivesRanges."""
        extent = self._index.get(key)
        if extent is None:
            return None
        if extent.version != version:
            self.drop(key)
            return None
        try:
            data = extent.file.read(size, extent.offset + offset)
        except OSError as error:
            self._failed(error)
            return None
        # If the copy was dropped while it was read, the bytes may be those of the hole.
        return data if self._index.get(key) is extent else None

    def where(self, key: bytes, version: Version) -> tuple[int, int] | None:
        """The number of the memory file in which a copy of this version lies, and its offset there."""
        extent = self._index.get(key)
        if extent is None or extent.version != version:
            return None
        return list(self._writers).index(extent.file), extent.offset

    @property
    def memory_fds(self) -> list[int]:
        """The memory files, in the order in which `where` counts them; they belong to the tier."""
        return [file.fd for file in self._writers]

    def contains(self, key: bytes) -> bool:
        return key in self._index

    def drop(self, key: bytes) -> None:
        with self._lock:
            self._forget(key)

    def keys(self) -> list[bytes]:
        with self._lock:
            return list(self._index)

    def close(self) -> None:
        """Give the memory back. From then on the tier holds and takes nothing. It may be called twice."""
        with self._lock:
            self._index.clear()
            self._used_bytes = 0
            self._closed = True
            for file in self._writers:
                file.close()

    def _forget(self, key: bytes) -> None:
        extent = self._index.pop(key, None)
        if extent is not None:
            self._free(extent)

    def _free(self, extent: _Extent) -> None:
        """Free what an extent occupies. The caller holds the lock, and the index has it no more."""
        if self._closed:
            return
        self._used_bytes -= in_pages(extent.version.size_bytes)
        try:
            extent.file.drop(extent.version.size_bytes, extent.offset)
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self._errors += 1
        if self._errors == 1:
            log.warning("RAM tier: %s (further failures are counted)", error)
