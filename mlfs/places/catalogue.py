"""The catalogue of a node: where each sample lies that the node can give to others, in memory shared with its agent.

In: what the server's places keep and lose. Out: for the agent, a sample's kind of place, where it lies there, which
version it is, and for copies in memory the checksum. The server alone writes, and the agent looks: no lock is shared
with a process that may be killed. So a look may be torn, or past. A torn record does no harm: the checksum is over the
bytes, the sample and its version, and made by the server of bytes that it knows to be right, and whoever gets the bytes
checks it (mlfs.places.checksum). Copies on disk bring checksums of their own (mlfs.places.record).
"""

from __future__ import annotations

import mmap
import os
import struct
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.tree.samples import Version

RECORD = np.dtype(
    [("kind", "u8"), ("where", "u8", (2,)), ("size_bytes", "i8"), ("mtime_ns", "i8"), ("ctime_ns", "i8"), ("sum", "u8")]
)

_LAYOUT = struct.Struct("@QQQqqqQ")  # the same


class CopyKind(IntEnum):
    """In what the bytes lie."""

    NOWHERE = 0
    RAM = 1
    """`where`: the number of the memory file, the offset there."""
    SSD = 2
    """`where`: the two halves of the digest that names the copy's file."""
    LMDB = 3
    """`where`: the two halves of the digest that is the copy's key."""


_KINDS = tuple(CopyKind)


class Found(NamedTuple):
    """The content of a record."""

    kind: CopyKind
    where: tuple[int, int]
    version: Version
    sum: int = 0


class Catalogue:
    """The records of all samples in shared memory: the server writes them, the agent reads them.

    Args:
        fd: the memory, `size_bytes(samples)` long; it stays the caller's.
    """

    def __init__(self, fd: int, samples: int) -> None:
        self._map = mmap.mmap(fd, size_bytes(samples))
        records: npt.NDArray[Any] = np.frombuffer(self._map, RECORD)
        self._kind, self._where = records["kind"], records["where"]
        self._size_bytes, self._mtime_ns = records["size_bytes"], records["mtime_ns"]
        self._ctime_ns, self._sum = records["ctime_ns"], records["sum"]

    def put(self, sample: int, found: Found) -> None:
        """A copy can be got there now."""
        self._kind[sample] = CopyKind.NOWHERE
        self._where[sample] = found.where
        self._size_bytes[sample], self._mtime_ns[sample], self._ctime_ns[sample] = found.version
        self._sum[sample] = found.sum
        self._kind[sample] = found.kind

    def drop(self, sample: int) -> None:
        """No copy is to be had."""
        self._kind[sample] = CopyKind.NOWHERE

    def find(self, sample: int) -> Found | None:
        """The place at which the sample seems to lie."""
        if not 0 <= sample < len(self._kind):
            return None
        # Not by the arrays: scalars of numpy take three times as long, and an agent looks for each sample it gives.
        at = sample * _LAYOUT.size
        kind, first, second, size_bytes, mtime_ns, ctime_ns, sum_ = _LAYOUT.unpack_from(self._map, at)
        if not kind:
            return None
        return Found(_KINDS[kind], (first, second), Version(size_bytes, mtime_ns, ctime_ns), sum_)


def size_bytes(samples: int) -> int:
    """How much memory a catalogue takes: no pages for samples that were never kept."""
    return max(1, samples) * RECORD.itemsize


def create(samples: int) -> int:
    """Memory for a catalogue, all NOWHERE; its descriptor belongs to the caller."""
    fd = os.memfd_create("mlfs-catalogue", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size_bytes(samples))
    except BaseException:
        os.close(fd)
        raise
    return fd
