"""Tells which rank's readers have waited. Keeps waits whose reader is not known yet, and who has which sample open.

Pure. In: waits, each for a sample; reads, once it is known which rank reads. Out: what each read has waited; waits that
count in the records of the jobs. A wait for an open is told before it is told that its reader goes on, so it is kept
until then. A wait while the file is open counts for the rank that has opened it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mlfs.plan.scheduler.job_record import JobRecord

# Waits whose read has not come: those of readers who were refused never come, so the oldest go.
MOST_PENDING = 4096
# The same of one sample, which a script may ask for again and again: a node has fewer readers at a time.
MOST_OF_A_SAMPLE = 1024


class RankReader(NamedTuple):
    """A process that reads for a rank: the number of the job's record, the index of the rank, the process."""

    job: int
    rank: int
    process: int


class RankWaits:
    """Waits whose reader is not known yet, and the reader of each sample that is open."""

    def __init__(self, jobs: Mapping[int, JobRecord]) -> None:
        self._jobs = jobs
        self._pending: OrderedDict[int, deque[float]] = OrderedDict()  # by sample: waits of readers not known yet
        self._open: dict[int, RankReader] = {}  # by sample that is open: who has opened it last
        self._of_unknown: OrderedDict[int, float] = OrderedDict()  # by process whose rank is not known yet

    def waited(self, sample: int, seconds: float, opened: bool = False) -> None:
        """A reader of the sample has waited; with `opened` for bytes of a file that he had opened."""
        reader = self._open.get(sample) if opened else None
        if reader is None:
            self._pending.setdefault(sample, deque(maxlen=MOST_OF_A_SAMPLE)).append(seconds)
            if len(self._pending) > MOST_PENDING:
                self._pending.popitem(last=False)
        elif (job := self._jobs.get(reader.job)) is not None:
            job.waited(reader.rank, seconds)
            job.loads.waited(reader.process, seconds)

    def read(self, samples: Sequence[int], reader: RankReader | None) -> Sequence[float]:
        """Samples were read by a rank; by no rank of any job, with None. Returns how long each read has waited."""
        if reader is not None:
            self._open.update(dict.fromkeys(samples, reader))
            if reader.process in self._of_unknown and (job := self._jobs.get(reader.job)) is not None:
                job.waited(reader.rank, self._of_unknown.pop(reader.process))
        return [self._waited_by(reader, sample) for sample in samples] if self._pending else (0.0,) * len(samples)

    def read_by_unknown(self, sample: int, process: int) -> None:
        """A process has read a sample of a job, and it is not known yet for which rank: its first reads show that."""
        seconds = self._waited_by(None, sample) if self._pending else 0.0
        if seconds:
            self._of_unknown[process] = self._of_unknown.get(process, 0.0) + seconds
            if len(self._of_unknown) > MOST_PENDING:
                self._of_unknown.popitem(last=False)

    def _waited_by(self, reader: RankReader | None, sample: int) -> float:
        """How long the read of the sample has waited that is pending for longest."""
        waits = self._pending.get(sample)
        if waits is None:
            return 0.0
        seconds = waits.popleft()
        if not waits:
            del self._pending[sample]
        if reader is not None and (job := self._jobs.get(reader.job)) is not None:
            job.waited(reader.rank, seconds)
        return seconds

    def closed(self, samples: Iterable[int]) -> None:
        """Forget the readers of samples that nobody has open any more."""
        for sample in samples:
            if sample in self._open:
                del self._open[sample]
