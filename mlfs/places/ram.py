"""The RAM tier: copies of samples in anonymous files (memfds) in memory, bounded and exactly accounted.

In: sample bytes from the engine's worker threads. Out: the same bytes. Keeps the contract of mlfs.places.tier.Tier.

Samples lie in whole pages, one behind the other. The offset of the next one only grows, and what is dropped is punched
out of the file as a hole. So there is no fragmentation to manage: a file's offsets reach to 2^63, and only what lies
between the holes takes memory. There are several files (arenas), because the kernel lets only one thread write to a
file at a time. They are memfds, because another process can be handed one, for instance a server that takes over.
docs/decisions/ram-class.md says why samples are not simply left in the mount's page cache.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from mlfs.places.tier import KeyedCopy, Version

log = logging.getLogger("mlfs.places")

PAGE_BYTES = 4096
ARENAS = 4  # as many threads can write at once; a tier has four prefetch lanes by default
_AT_ONCE = 256  # samples in one write, which takes at most 1,024 parts: each sample has two
_PADDING = memoryview(bytes(PAGE_BYTES))
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class _Arena:
    """A memfd (-1 when it is closed), the offset behind its last sample, and how many threads write to it."""

    __slots__ = ("end", "fd", "writers")

    def __init__(self) -> None:
        self.fd = os.memfd_create("mlfs-ram", os.MFD_CLOEXEC)
        self.end = self.writers = 0


class _Extent(NamedTuple):
    """Where a copy lies, and of which version it is."""

    arena: _Arena
    offset: int
    version: Version


class RamTier:
    """See the module.

    Args:
        capacity_bytes: most memory the samples may take; the index of keys (about 250 bytes a sample) comes on top.

    Invariant: `_used_bytes` = sum of the footprints of the extents in `_index` and of those being written.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._arenas = [_Arena() for _ in range(ARENAS)]
        self._closed = False
        self._lock = threading.Lock()
        self._index: dict[bytes, _Extent] = {}
        self._used_bytes = 0
        self._errors = 0

    @property
    def name(self) -> str:
        """See Tier."""
        return "ram"

    @property
    def capacity_bytes(self) -> int:
        """See Tier."""
        return self._capacity_bytes

    @property
    def used_bytes(self) -> int:
        """See Tier."""
        return self._used_bytes

    @property
    def errors(self) -> int:
        """See Tier."""
        return self._errors

    def footprint_bytes(self, size_bytes: int) -> int:
        """See Tier. Whole pages, and at least one, as even an empty sample takes a place in the index."""
        return max(1, -(-size_bytes // PAGE_BYTES)) * PAGE_BYTES

    def put(self, key: bytes, version: Version, data: memoryview) -> bool:
        """See Tier."""
        return self.put_all([KeyedCopy(key, version, data)])[0]

    def put_all(self, samples: Sequence[KeyedCopy]) -> list[bool]:
        """See Tier. The copies lie side by side, so one write takes all of them."""
        if len({sample.key for sample in samples}) < len(samples):
            return [self.put(*sample) for sample in samples]
        kept = [False] * len(samples)
        for first in range(0, len(samples), _AT_ONCE):
            with self._writing() as arena:
                places = self._reserve_all(arena, samples[first : first + _AT_ONCE])
                at_once = len(places) > 1 and self._write_side_by_side(arena, list(places.values()))
                for number, (sample, offset) in places.items():
                    extent = _Extent(arena, offset, sample.version)
                    kept[first + number] = (at_once or self._write(extent, sample)) and self._publish(extent, sample)
        return kept

    @contextmanager
    def _writing(self) -> Iterator[_Arena]:
        """An arena to write to: the one to which the fewest threads write."""
        with self._lock:
            arena = min(self._arenas, key=lambda arena: arena.writers)
            arena.writers += 1
        try:
            yield arena
        finally:
            with self._lock:
                arena.writers -= 1

    def _reserve_all(self, arena: _Arena, samples: Sequence[KeyedCopy]) -> dict[int, tuple[KeyedCopy, int]]:
        """Reserve room for the samples that fit, one behind the other. Returns sample and offset by number."""
        places = {}
        with self._lock:
            for number, sample in enumerate(samples):
                fits = len(sample.data) == sample.version.size_bytes
                offset = self._place(arena, sample.key, len(sample.data)) if fits else None
                if offset is not None:
                    places[number] = (sample, offset)
        return places

    def _write_side_by_side(self, arena: _Arena, places: list[tuple[KeyedCopy, int]]) -> bool:
        parts: list[memoryview] = []
        for sample, _ in places:
            parts.append(sample.data)
            parts.append(_PADDING[: self.footprint_bytes(len(sample.data)) - len(sample.data)])
        try:
            return os.pwritev(arena.fd, parts, places[0][1]) == sum(map(len, parts))
        except OSError:
            return False  # the caller writes one by one then, and so finds out which of them fails

    def _write(self, extent: _Extent, sample: KeyedCopy) -> bool:
        try:
            _write_all(extent.arena.fd, sample.data, extent.offset)
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
        """See Tier."""
        extent = self._index.get(key)
        if extent is None:
            return None
        if extent.version != version:
            self.drop(key)
            return None
        try:
            data = _read_all(extent.arena.fd, version.size_bytes, extent.offset)
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
        return self._arenas.index(extent.arena), extent.offset

    @property
    def memory_fds(self) -> list[int]:
        """The memory files, in the order in which `where` counts them; they belong to the tier."""
        return [arena.fd for arena in self._arenas]

    def contains(self, key: bytes) -> bool:
        """See Tier."""
        return key in self._index

    def drop(self, key: bytes) -> None:
        """See Tier."""
        with self._lock:
            self._forget(key)

    def keys(self) -> list[bytes]:
        """See Tier."""
        with self._lock:
            return list(self._index)

    def close(self) -> None:
        """Give the memory back. From then on the tier holds and takes nothing. It may be called twice."""
        with self._lock:
            self._index.clear()
            self._used_bytes = 0
            self._closed = True
            for arena in self._arenas:
                fd, arena.fd = arena.fd, -1
                if fd >= 0:
                    os.close(fd)

    def _place(self, arena: _Arena, key: bytes, size_bytes: int) -> int | None:
        """Reserve room for a sample and drop the copy that `key` has; None without room. The caller holds the lock."""
        footprint = self.footprint_bytes(size_bytes)
        self._forget(key)
        if self._closed or self._used_bytes + footprint > self._capacity_bytes:
            return None
        offset = arena.end
        arena.end += footprint
        self._used_bytes += footprint
        return offset

    def _forget(self, key: bytes) -> None:
        extent = self._index.pop(key, None)
        if extent is not None:
            self._free(extent)

    def _free(self, extent: _Extent) -> None:
        """Free what an extent occupies. The caller holds the lock, and the index has it no more."""
        footprint = self.footprint_bytes(extent.version.size_bytes)
        if self._closed or not footprint:
            return
        self._used_bytes -= footprint
        if _libc.fallocate(extent.arena.fd, _PUNCH_HOLE_KEEP_SIZE, extent.offset, footprint):
            self._failed(OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))

    def _failed(self, error: OSError) -> None:
        self._errors += 1
        if self._errors == 1:
            log.warning("RAM tier: %s (further failures are counted)", error)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)


def _read_all(fd: int, size_bytes: int, offset: int) -> bytes:
    data = os.pread(fd, size_bytes, offset)
    if len(data) == size_bytes:
        return data
    parts, got = [data], len(data)
    while got < size_bytes:  # one call reads at most 2 GiB
        part = os.pread(fd, size_bytes - got, offset + got)
        if not part:
            raise OSError(errno.EIO, "the RAM tier ends early")
        parts.append(part)
        got += len(part)
    return b"".join(parts)
