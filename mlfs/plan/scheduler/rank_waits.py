"""How long each rank's readers have waited.

Pure. In: waits, each for a sample; reads, once it is known which rank reads. Out: seconds by job and rank, and by read
for `mlfs.plan.scheduler.rank_loads`. A wait for an open is told before it is told that its reader goes on, so it is
kept until then. A wait while the file is open counts for the rank that has opened it.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from mlfs.plan.scheduler.rank_loads import RankLoads, Reader

# Waits whose read has not come: those of readers who were refused never come, so the oldest go.
MOST_PENDING = 4096
# The same of one sample, which a script may ask for again and again: a node has fewer readers at a time.
MOST_OF_A_SAMPLE = 1024


class RankWaits:
    """See the module.

    Attributes:
        loads: what each rank's loader does with its time.
    """

    def __init__(self) -> None:
        self.loads = RankLoads()
        self._seconds: dict[str, dict[int, float]] = {}  # by job and index of the rank
        self._pending: OrderedDict[int, deque[float]] = OrderedDict()  # by sample: waits of readers not known yet
        self._open: dict[int, Reader] = {}  # by sample that is open: who has opened it last

    def waited(self, sample: int, seconds: float, opened: bool = False) -> None:
        """A reader of the sample has waited; with `opened` for bytes of a file that he had opened."""
        reader = self._open.get(sample) if opened else None
        if reader is not None:
            self._count(reader, seconds)
            self.loads.waited(reader.job, reader.process, seconds)
            return
        self._pending.setdefault(sample, deque(maxlen=MOST_OF_A_SAMPLE)).append(seconds)
        if len(self._pending) > MOST_PENDING:
            self._pending.popitem(last=False)

    def read(self, sample: int, reader: Reader | None) -> float:
        """The sample was read by a rank; by no rank of any job, with None. Returns how long that read has waited."""
        waits = self._pending.get(sample)
        if reader is not None:
            self._open[sample] = reader
        if waits is None:
            return 0.0
        seconds = waits.popleft()
        if not waits:
            del self._pending[sample]
        if reader is not None:
            self._count(reader, seconds)
        return seconds

    def closed(self, sample: int) -> None:
        """Nobody has the sample open any more."""
        self._open.pop(sample, None)

    def begin_anew(self, name: str) -> None:
        """The job is read from its beginning."""
        self._seconds.pop(name, None)

    def forget(self, name: str) -> None:
        """The job has ended."""
        self._seconds.pop(name, None)
        self.loads.forget(name)

    def statistics(self) -> dict[str, dict[int, float]]:
        """Seconds by the job's name and the index of the rank; ranks that never waited are missing."""
        return {name: dict(seconds) for name, seconds in self._seconds.items()}

    def _count(self, reader: Reader, seconds: float) -> None:
        of_job = self._seconds.setdefault(reader.job, {})
        of_job[reader.rank] = of_job.get(reader.rank, 0.0) + seconds
