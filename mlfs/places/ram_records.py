"""Records of what lies in the RAM tier, in memory that outlives this process: a later tier finds the copies by them.

In: a copy's digest, place and version. Out: the same, or nothing where a record is torn. Used by `mlfs.places.ram`.

A record is written once its copy is whole, and taken out before its copy goes: so a process may be killed at any
moment. It has a checksum, so one that was being written is seen as none.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from mlfs.places.tier import Spot, Version

# The checksum is of the rest. The mtime is split, as 64 bits of nanoseconds end in the year 2262: file systems do not.
_RECORD = struct.Struct("<Q16sIIqqqq")
_ABOUT = struct.Struct("<16sIIqqqq")
_SUM = struct.Struct("<Q")
_SIZE = _RECORD.size
_LAYOUT = np.dtype(
    [("sum", "<u8"), ("digest", "V16"), ("file", "<u4"), ("ns", "<u4"), ("seconds", "<i8"), ("offset", "<i8"),
     ("size_bytes", "<i8"), ("ctime_ns", "<i8")]
)  # fmt: skip
DIGEST_BYTES = 16
_FIRST = 4096  # records for which there is room at first
_NS = 10**9


class Extent(NamedTuple):
    """The place of a copy: the number of its memory file, the offset there; and which version it is."""

    digest: bytes
    file: int
    offset: int
    version: Version


class RamRecords:
    """Records by number, in a memfd that grows. Each call is atomic among the threads of a process, by its interpreter.

    Args:
        fd: of the records that another process has left; it belongs to this object. -1: none are there.
    """

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd if fd >= 0 else os.memfd_create("mlfs-records", os.MFD_CLOEXEC)
        size_bytes = os.fstat(self.fd).st_size
        if not size_bytes:
            size_bytes = _FIRST * _RECORD.size
            os.ftruncate(self.fd, size_bytes)
        self._map = mmap.mmap(self.fd, size_bytes)

    def __len__(self) -> int:
        """The number of records for which there is room."""
        return len(self._map) // _RECORD.size

    def grow(self) -> None:
        """Make room for twice as many. Raises: OSError."""
        self._map.resize(2 * len(self._map))

    def write(self, number: int, record: Extent | Spot) -> None:
        size_bytes, mtime_ns, ctime_ns = record.version
        seconds, ns = divmod(mtime_ns, _NS)
        packed = _ABOUT.pack(record.digest, record.file, ns, seconds, record.offset, size_bytes, ctime_ns)
        at = number * _SIZE
        self._map[at : at + _SIZE] = _SUM.pack(_sum(packed)) + packed

    def take_out(self, number: int) -> None:
        """There is no such record any more."""
        self._map[number * _RECORD.size : number * _RECORD.size + 8] = bytes(8)

    def read(self, number: int) -> Extent:
        """A record that this process has written or found."""
        _, digest, file, ns, seconds, offset, size_bytes, ctime_ns = _RECORD.unpack_from(
            self._map, number * _RECORD.size
        )
        return Extent(digest, file, offset, Version(size_bytes, seconds * _NS + ns, ctime_ns))

    def found(self) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """The whole records, sorted by file and offset: their numbers; digest, file, offset and size_bytes."""
        packed, size = self._map[:], _RECORD.size
        records: NDArray[Any] = np.frombuffer(packed, _LAYOUT)
        numbers = np.flatnonzero(records["sum"])
        whole = [_sum(packed[at + 8 : at + size]) for at in (numbers * size).tolist()]
        numbers = numbers[np.array(whole, np.uint64) == records["sum"][numbers]]
        numbers = numbers[np.lexsort((records["offset"][numbers], records["file"][numbers]))]
        return numbers, records[numbers]

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with this object, as a thread may be reading. It may be called
        twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _sum(about: bytes) -> int:
    return xxhash.xxh3_64_intdigest(about) or 1
