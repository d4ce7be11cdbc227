"""Checksums of the parts of copies, so that a range of a copy is verified without all of it being read.

In: copies that were verified whole, from worker threads. Out: for a later read of a range, which parts it takes, and
whether they are as they were. The checksum that lies on the disk is over all of a copy.

The sums depend on the user's secret, as that checksum does: nobody who can write to the disk, and does not know it, can
make a part that is believed.
"""

from __future__ import annotations

import threading
from typing import Final

from blake3 import blake3

from mlfs.places.secret import Secret
from mlfs.tree.samples import Version

# A range costs at most so much more than it has, at each end; and 256 bytes of sums for a copy of 1 MiB.
PART_BYTES: Final = 64 << 10
_SUM_BYTES: Final = 16
# Copies that are remembered: 64 GiB of them, in some 35 MB.
MOST_COPIES: Final = 1 << 16


class PartSums:
    """By copy, the sums of its parts; thread-safe. The copies that were learned longest ago are forgotten."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._sums: dict[bytes, tuple[Version, bytes]] = {}
        self._lock = threading.Lock()

    def of(self, copy: bytes, version: Version) -> bytes | None:
        """The sums of this version of a copy, if they are known."""
        known = self._sums.get(copy)
        return known[1] if known is not None and known[0] == version else None

    def learn(self, copy: bytes, version: Version, data: memoryview) -> None:
        """A copy was verified whole."""
        sums = self._sums_of(data)
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

    def verify(self, sums: bytes, first: int, data: memoryview) -> bool:
        """Whether parts that begin at `first` are as they were."""
        begin = first // PART_BYTES * _SUM_BYTES
        now = self._sums_of(data)
        return sums[begin : begin + len(now)] == now

    def _sums_of(self, data: memoryview) -> bytes:
        parts = (data[begin : begin + PART_BYTES] for begin in range(0, len(data), PART_BYTES))
        return b"".join(blake3(part, key=self._secret.value).digest(_SUM_BYTES) for part in parts)
