"""The simplest hypothesis of all: what was read before is read again, in the same order.

In: opens that no job explains. Out: the job that reads as processes did before, once one of them, or another one, has
begun again so. Used by `mlfs.explain.inference`. No seed has to be known for it: a list may be shuffled once, by
whatever, and read so in each epoch. The reads of a process are remembered from its first one on, four bytes for each.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from operator import ne
from typing import Final

import numpy as np
import numpy.typing as npt

from mlfs.explain.chance import NEXT_EPOCH_BITS, bits_of_distinct
from mlfs.explain.fields import EPOCHS, JOB_NAME, Fields
from mlfs.explain.first_reads import MOST_PROCESSES, FirstReads
from mlfs.explain.question import FEWEST_SAMPLES, MOST_SKIPPED
from mlfs.follow.by_sample import NO_PID
from mlfs.follow.evidence import Read
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.job import parse_job
from mlfs.orders.layouts.layout import NOTHING
from mlfs.orders.order_file import IN_MEMORY, KnownOrder
from mlfs.orders.streams import JobStreams

# A process comes back to its first file when it has read all: so a few epochs of a data set are enough to remember.
_MOST_REMEMBERED: Final = 1 << 24
_PASSES_REMEMBERED: Final = 2


class _Reader:
    """A process: what it reads, and where in what was read before it seems to be.

    Attributes:
        stream: its reads that are none of what was read before. as_before: whose stream it reads again, if anybody's.
        begun, at, long: where in that stream it began, what comes next, and how long the stream was then: a process
            that reads the same beside this one makes it longer.
    """

    __slots__ = ("as_before", "at", "begun", "long", "parent", "stream")

    def __init__(self, parent: int) -> None:
        self.parent = parent
        self.stream = array("i")
        self.as_before: _Reader | None = None
        self.begun = self.at = self.long = 0


class ReadBefore:
    """All that was read of a mount, by process, while no job explained it.

    Args:
        n: files of the mount.

    Attributes:
        again: the reads of those processes that seem to read again what was read before.
    """

    def __init__(self, n: int) -> None:
        self._most = min(_PASSES_REMEMBERED * n, _MOST_REMEMBERED)
        self._needed = next((reads for reads in range(4, n) if bits_of_distinct(n, reads) >= NEXT_EPOCH_BITS), n)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Remember nothing."""
        self.again = FirstReads()
        self._readers: dict[int, _Reader] = {}
        self._starts: dict[int, tuple[_Reader, int]] = {}  # by the first entries of streams
        self._room = self._most

    def add(self, reads: Sequence[Read]) -> bool:
        """Take note of opens. Returns whether one of them shows that an epoch is read again. It is done for each."""
        self._room -= len(reads)
        if self._room < 0 or len(self._readers) > MOST_PROCESSES:
            self.begin_anew()
        readers, starts, shown = self._readers, self._starts, False
        for entry, process, parent, _ in reads:
            if process == NO_PID:
                continue  # what nobody can tell apart shows no order
            if process not in readers:
                readers[process] = _Reader(parent)
            reader = readers[process]
            before = reader.as_before
            if before is not None:
                if reader.at < reader.long == len(before.stream) and before.stream[reader.at] == entry:
                    reader.at += 1
                    self.again.add(entry, process, parent)
                    shown = shown or reader.at - reader.begun == self._needed
                    continue
                reader.as_before = None
                reader.stream.extend(before.stream[reader.begun : reader.at])
                self.again = self.again.of(partial(ne, process))
            if entry in starts:
                reader.as_before, reader.begun = starts[entry]
                reader.at, reader.long = reader.begun + 1, len(reader.as_before.stream)
                self.again.add(entry, process, parent)
                continue
            if len(reader.stream) <= MOST_SKIPPED:  # not before a second epoch
                starts[entry] = reader, len(reader.stream)
            reader.stream.append(entry)
        return shown

    def streams(self) -> list[npt.NDArray[np.int64]]:
        """The streams that are read again, and those of the other children of the same parents."""
        skipped = {id(one.as_before): one.begun for one in self._readers.values() if one.as_before is not None}
        parents = {one.parent for one in self._readers.values() if id(one) in skipped}
        whole = [one for one in self._readers.values() if one.parent in parents and len(one.stream) > MOST_SKIPPED]
        return [np.array(one.stream, dtype=np.int64)[skipped.get(id(one), 0) :] for one in whole]


def of_streams(streams: Sequence[npt.NDArray[np.int64]]) -> Hypothesis | None:
    """The job that reads these streams in each epoch, each by a process; None where they are too short to be one.

    They are the samples of one list, which the processes take in turn, with gaps where a shorter one has ended: nothing
    tells whether they are workers or ranks, and how long their batches are.
    """
    turns = list(zip_longest(*(stream.tolist() for stream in streams), fillvalue=NOTHING))
    entries, order = np.unique(np.array(turns, dtype=np.int64), return_inverse=True)
    if np.count_nonzero(entries >= 0) < FEWEST_SAMPLES:
        return None
    workers: Fields = {"num_workers": len(streams)} if len(streams) > 1 else {}
    explicit: Fields = {"name": JOB_NAME, "epochs": EPOCHS, "sampler": "explicit", "order_file": IN_MEMORY}
    spec = parse_job(explicit | workers)
    return Hypothesis(spec, Origin.EPOCH_BEFORE, JobStreams(spec, entries, KnownOrder(order.reshape(-1))))
