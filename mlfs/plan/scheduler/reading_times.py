"""How long each job has been reading, and how long its readers waited in that time: in all, and in its last epochs.

Pure; times are passed in. In: who reads, how many samples each job has read by now, how long readers have waited in
all. Out: the time between a job's first read and its last one, and the waiting in it. Used by
`mlfs.plan.scheduler.scheduler`; `mlfs advise` and `status` read the results.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Epochs that are told of, the last ones: the one that is read, and those before it, which are whole.
KEPT_EPOCHS = 100


@dataclass(frozen=True, slots=True)
class EpochTime:
    """A job's time in one epoch.

    Attributes:
        reading_s: from its first read in the epoch to its last one.
        stalled_s: how long the node's readers, all together, waited in that time.
        readers: how many read at once: processes of the job, or readers who waited at the same time if those are more,
            as threads of one process are.
        samples: how many it has read.
    """

    epoch: int
    reading_s: float
    stalled_s: float
    readers: int
    samples: int

    @property
    def waited_share(self) -> float:
        """The share of its time that a reader waited, on average over the readers.

        Training can have lost no more than that: it computes on while readers wait for what it does not need yet.
        """
        return min(1.0, self.stalled_s / (self.reading_s * self.readers)) if self.reading_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ReadingTime:
    """A job's time.

    Attributes:
        reading_s: from its first read to its last one.
        stalled_s: how long the node's readers, all together, waited in that time.
        epochs: the last ones, ascending.
    """

    reading_s: float = 0.0
    stalled_s: float = 0.0
    epochs: tuple[EpochTime, ...] = ()


@dataclass(slots=True)
class _Span:
    """From a first read to the last one: when, how long readers had waited by then, how many samples were read."""

    first_s: float
    first_stall_s: float
    first_observed: int
    last_s: float
    last_stall_s: float
    observed: int
    processes: set[int] = field(default_factory=set)
    most_waiting: int = 1

    def goes_on(self, now_s: float, stall_s: float, observed: int) -> None:
        self.last_s, self.last_stall_s, self.observed = now_s, stall_s, observed

    @property
    def reading_s(self) -> float:
        return self.last_s - self.first_s

    @property
    def stalled_s(self) -> float:
        return self.last_stall_s - self.first_stall_s


class _Job:
    """What is noted of one job."""

    def __init__(self) -> None:
        self.whole: _Span | None = None
        self.epochs: dict[int, _Span] = {}  # ascending, the last one is the one that is read
        self.processes: set[int] = set()  # those that have read since the job was last noted


class ReadingTimes:
    """See the module."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def read(self, name: str, process: int) -> None:
        """A process has read as the job does."""
        job = self._jobs.get(name)
        if job is not None:
            job.processes.add(process)

    def waiting(self, readers: int) -> None:
        """So many readers wait at this moment."""
        for job in self._jobs.values():
            if job.epochs:
                span = job.epochs[next(reversed(job.epochs))]
                span.most_waiting = max(span.most_waiting, readers)

    def job_read(self, name: str, epoch: int, observed: int, now_s: float, stall_s: float) -> None:
        """Note how far a job is.

        Args:
            epoch: the one that its fastest rank reads.
            observed: how many samples it has read. Fewer than before: it was registered again, and begins anew.
            now_s: the time now.
            stall_s: how long all readers have waited since the mount.
        """
        job = self._jobs.get(name)
        if job is None or (job.whole is not None and observed < job.whole.observed):
            job = self._jobs[name] = _Job()
        if not observed or (job.whole is not None and observed == job.whole.observed):
            return
        if job.whole is None:
            job.whole = _Span(now_s, stall_s, 0, now_s, stall_s, observed)
        if epoch not in job.epochs:
            job.epochs[epoch] = _Span(now_s, stall_s, job.whole.observed if job.epochs else 0, now_s, stall_s, observed)
            if len(job.epochs) > KEPT_EPOCHS:
                del job.epochs[next(iter(job.epochs))]
        for span in (job.whole, job.epochs[epoch]):
            span.goes_on(now_s, stall_s, observed)
        job.epochs[epoch].processes |= job.processes
        job.processes.clear()

    def forget(self, name: str) -> None:
        """The job has ended."""
        self._jobs.pop(name, None)

    def statistics(self) -> dict[str, ReadingTime]:
        """Frozen figures by the job's name."""
        return {name: _time_of(job) for name, job in self._jobs.items()}


def _time_of(job: _Job) -> ReadingTime:
    if job.whole is None:
        return ReadingTime()
    epochs = tuple(
        EpochTime(
            epoch, span.reading_s, span.stalled_s, max(1, len(span.processes), span.most_waiting),
            span.observed - span.first_observed,
        )
        for epoch, span in job.epochs.items()
    )  # fmt: skip
    return ReadingTime(job.whole.reading_s, job.whole.stalled_s, epochs)
