"""Checksums of the parts of copies, so that a range of a copy is verified without all of it being read.

In: copies that were verified whole, from worker threads. Out: for a later read of a range, which parts it takes, and
whether they are as they were. The checksum that lies on the disk is over all of a copy.
"""

from __future__ import annotations

import struct
import threading
from typing import Final

import xxhash

from mlfs.tree.samples import Version

# What a range costs more than it has, at most twice; and 128 bytes of sums for a copy of 1 MiB.
PART_BYTES: Final = 64 << 10
# Copies that are remembered: 64 GiB of them, in some 20 MB.
MOST_COPIES: Final = 1 << 16


class PartSums:
    """By copy, the sums of its parts; thread-safe. The copies that were learned longest ago are forgotten."""

    def __init__(self) -> None:
        self._sums: dict[bytes, tuple[Version, bytes]] = {}
        self._lock = threading.Lock()

    def of(self, copy: bytes, version: Version) -> bytes | None:
        """The sums of this version of a copy, if they are known."""
        known = self._sums.get(copy)
        return known[1] if known is not None and known[0] == version else None

    def learn(self, copy: bytes, version: Version, data: memoryview) -> None:
        """A copy was verified whole."""
        sums = b"".join(map(_sum, _parts(data)))
        with self._lock:
            self._sums[copy] = version, sums
            if len(self._sums) > MOST_COPIES:
                del self._sums[next(iter(self._sums))]

    def forget(self, copy: bytes) -> None:
        """The copy is not as it was."""
        with self._lock:
            self._sums.pop(copy, None)

    @staticmethod
    def parts(offset: int, size: int, version: Version) -> tuple[int, int]:
        """The beginning and the end of the parts that a range lies in."""
        end = -(-(offset + size) // PART_BYTES) * PART_BYTES
        return offset // PART_BYTES * PART_BYTES, min(end, version.size_bytes)

    @staticmethod
    def verify(sums: bytes, first: int, data: memoryview) -> bool:
        """Whether parts that begin at `first` are as they were."""
        begin = first // PART_BYTES * _SUM.size
        now = b"".join(map(_sum, _parts(data)))
        return sums[begin : begin + len(now)] == now


_SUM = struct.Struct("<Q")


def _parts(data: memoryview) -> list[memoryview]:
    return [data[begin : begin + PART_BYTES] for begin in range(0, len(data), PART_BYTES)]


def _sum(part: memoryview) -> bytes:
    return _SUM.pack(xxhash.xxh3_64_intdigest(part))
