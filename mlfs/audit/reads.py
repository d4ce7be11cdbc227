"""Keeps the last reads of a mount, in the order in which they came: who read what.

In: batches of reads; who a process belongs to, asked once a process. Out: arrays for `mlfs.audit.epochs`. A read costs
eight bytes of a file, which is one in memory that outlives the process in a mount, and a share of a few calls a batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from io import SEEK_END, BytesIO, FileIO
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfs.follow.evidence import Read

MOST_READS = 1 << 23
"""Reads that are kept: six epochs of ImageNet. When there are more, the older half of them goes."""

READ_BYTES = 8
_SAMPLE, _PROCESS = itemgetter(0), itemgetter(1)  # of a read; asked of each
UNKNOWN = -1
"""Stands for a reader that nothing is known of."""
BELIEVED_S = 60.0
"""So long a number of a process is taken to be the same process's: numbers do not come again sooner."""


class Kin(NamedTuple):
    """The place of a reader in its run.

    Attributes:
        run: the process that all ranks of the run come from; that of the rank, where it was started by itself.
        rank: the number that a launcher gave it, or the rank's process with a minus; workers have that of the process
            that they work for.
        began: when the reader began, in ticks since the machine did; 0 where it has ended. Another process gets its
            number once there were some ten thousand others.
    """

    run: int
    rank: int
    began: int = 0


class SeenReads(NamedTuple):
    """Reads in the order in which they came.

    Attributes:
        samples: shape (n,). readers: shape (n,), indices into `kin`. forgotten: reads before these that are not kept.
        unknown: reads by processes that the kernel did not name, which are not among these.
    """

    samples: NDArray[np.int32]
    readers: NDArray[np.int32]
    kin: tuple[Kin, ...]
    forgotten: int = 0
    unknown: int = 0


class KeptReads(NamedTuple):
    """The reads that a log keeps: samples and readers, each four bytes, one after the other.

    Attributes:
        file: at its end; it has no buffer of its own where another process is to read it. came, forgotten: reads that
            came, and those of them that are not in the file. readers: processes, in the order of their indices. comes:
            hears of each further one.
    """

    file: FileIO | BytesIO
    came: int = 0
    forgotten: int = 0
    readers: Sequence[tuple[int, Kin]] = ()
    comes: Callable[[int, Kin], None] = lambda _, __: None


class ReadLog:
    """The last reads of a mount.

    Args:
        place_of: the run and the rank of a process, by the process and its parent; None: its reads cannot be judged.
        most_reads: that are kept. kept: those to go on with, and where; None: a file of its own.

    Attributes:
        forgotten: reads that came before those that are kept.
    """

    def __init__(
        self,
        place_of: Callable[[int, int], Kin | None],
        most_reads: int = MOST_READS,
        kept: KeptReads | None = None,
    ) -> None:
        kept = KeptReads(BytesIO()) if kept is None else kept
        self._believed: set[int] = set()  # processes whose places are known, and not from long ago
        self._believed_until_s = 0.0
        self._place_of = place_of
        self._most_reads = most_reads
        self._file, self._reader_comes = kept.file, kept.comes
        self._indices: dict[int, int] = {}  # by process
        self._kin: list[Kin] = []
        for process, place in kept.readers:
            self._indices[process] = len(self._kin)
            self._kin.append(place)
        self._kept, self.forgotten = kept.came - kept.forgotten, kept.forgotten
        if self._file.seek(0, SEEK_END) < self._kept * READ_BYTES:  # its writer was killed while it forgot some
            self._forget_all()
        self._file.truncate(self._kept * READ_BYTES)
        self._file.seek(0, SEEK_END)

    def add(self, reads: Sequence[Read]) -> None:
        """Reads came, in this order."""
        processes = list(map(_PROCESS, reads))
        if reads and reads[-1].at_s > self._believed_until_s:
            self._believed.clear()
            self._believed_until_s = reads[-1].at_s + BELIEVED_S
        if not self._believed.issuperset(processes):
            for read in reads:
                if read.process not in self._believed:
                    self._comes(read.process, read.parent)
        readers = map(self._indices.__getitem__, processes)
        self._kept += len(reads)
        self._write(array("i", chain.from_iterable(zip(map(_SAMPLE, reads), readers, strict=True))).tobytes())
        if self._kept > self._most_reads:
            half = self._kept // 2
            content = self._content()[half * READ_BYTES :]
            self._file.truncate(0)
            self._file.seek(0)
            self._kept -= half
            self.forgotten += half
            self._write(content)

    def _write(self, content: bytes) -> None:
        """Add it to the file. All is forgotten if the machine has no memory for it."""
        try:
            whole = self._file.write(content) == len(content)
        except OSError:
            whole = False
        if not whole:
            self._forget_all()

    def _forget_all(self) -> None:
        self.forgotten, self._kept = self.count, 0
        self._file.truncate(0)
        self._file.seek(0)

    def _content(self) -> bytes:
        self._file.seek(0)
        return self._file.read()

    @property
    def count(self) -> int:
        """How many reads came so far."""
        return self.forgotten + self._kept

    def _comes(self, process: int, parent: int) -> None:
        """A process reads that has not done so lately. It may be another one than had its number before."""
        self._believed.add(process)
        place, known = self._place_of(process, parent), self._indices.get(process, UNKNOWN)
        if place is None:
            self._indices[process] = UNKNOWN
        elif known == UNKNOWN or place.began not in (0, self._kin[known].began):
            self._indices[process] = len(self._kin)
            self._kin.append(place)
            self._reader_comes(process, place)

    def copy(self) -> ReadLog:
        """A log of the same reads. No more come to it, so another thread may ask it."""
        copied = ReadLog(
            self._place_of, self._most_reads, KeptReads(BytesIO(self._content()), self.count, self.forgotten)
        )
        copied._kin, copied._indices = self._kin[:], self._indices.copy()
        return copied

    def reads(self) -> SeenReads:
        samples, readers = np.frombuffer(self._content(), np.int32).reshape(-1, 2).T
        known = readers != UNKNOWN
        return SeenReads(samples[known], readers[known], tuple(self._kin), self.forgotten, int((~known).sum()))
