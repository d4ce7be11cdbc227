"""Notes each read as it comes, before it is answered: what a server that is killed has not counted, the next one does.

In: opens and reads of rows, on the loop. Out, in the process that comes after: those that were not counted yet. It is a
ring of records, in memory that outlives the process. The number of a record is written last: a torn one has that of a
record before, and is not among those that are given out.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfs.engine.pagecache import Buffer

# What comes in some tenths of a second, while one server dies and the jobs of the next one begin.
RECORDS = 1 << 14
_RECORD = struct.Struct("<qiiQ")
_FIELDS = np.dtype([("sample", "<i8"), ("thread", "<i4"), ("kind", "<i4"), ("number", "<u8")])
SIZE_BYTES = RECORDS * _RECORD.size


class Noted(NamedTuple):
    """A read that was noted. `kind`: see mlfs.engine.digest."""

    sample: int
    thread: int
    kind: int


class ReadTrail:
    """The last reads of a mount.

    Args:
        memory: of SIZE_BYTES, that another process may have written; None: new.

    Attributes:
        end: how many reads were noted so far, in all processes.
    """

    def __init__(self, memory: Buffer | None = None) -> None:
        self._memory = bytearray(SIZE_BYTES) if memory is None else memory
        self._records = np.frombuffer(self._memory, _FIELDS)
        self.end = int(self._records["number"].max())

    def note(self, sample: int, thread: int, kind: int) -> None:
        self.end = number = self.end + 1
        _RECORD.pack_into(self._memory, number % RECORDS * _RECORD.size, sample, thread, kind, number)

    def note_all(self, samples: NDArray[np.int64], threads: NDArray[np.int32], kind: int) -> None:
        """Reads come together: shape (n,) both."""
        samples, threads = samples[-RECORDS:], threads[-RECORDS:]
        self.end += len(samples)
        numbers = np.arange(self.end - len(samples) + 1, self.end + 1)
        slots, records = numbers % RECORDS, self._records
        records["number"][slots] = 0
        records["sample"][slots], records["thread"][slots], records["kind"][slots] = samples, threads, kind
        records["number"][slots] = numbers

    def since(self, number: int) -> list[Noted]:
        """The reads behind so many, in their order, as far as they are kept."""
        first = max(number, self.end - RECORDS + 1) + 1
        numbers = np.arange(first, self.end + 1)
        found = self._records[numbers % RECORDS]
        whole = found[found["number"] == numbers]
        return [Noted(*record) for record in whole[["sample", "thread", "kind"]].tolist()]
