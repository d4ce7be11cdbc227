"""Counts how long a job has been reading, and how long its readers waited in that time: in all, and by epoch.

Pure; times are passed in. In: who reads, how many samples the job has read by now, how long readers have waited in all.
Out: the time between its first read and its last one, and the waiting in it. Each job's record has its own; `mlfs
advise` and `status` read the results.
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

    epoch: int = field(metadata={"key": None})
    reading_s: float
    stalled_s: float
    readers: int = field(metadata={"key": None})
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
    epochs: tuple[EpochTime, ...] = field(default=(), metadata={"key": None})


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


class ReadingTimes:
    """One job's time, as noted so far."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._whole: _Span | None = None
        self._epochs: dict[int, _Span] = {}  # ascending, the last one is the one that is read
        self._processes: set[int] = set()  # those that have read since the job was last noted

    def read(self, process: int) -> None:
        """A process has read as the job does."""
        self._processes.add(process)

    def waiting(self, readers: int) -> None:
        """Note how many readers wait at this moment."""
        if self._epochs:
            span = self._epochs[next(reversed(self._epochs))]
            span.most_waiting = max(span.most_waiting, readers)

    def note(self, epoch: int, observed: int, now_s: float, stall_s: float) -> None:
        """Note how far the job is.

        Args:
            epoch: the one that its fastest rank reads.
            observed: how many samples it has read. Fewer than before: its script was started again.
            now_s: the time now.
            stall_s: how long all readers have waited since the mount.
        """
        if self._whole is not None and observed < self._whole.observed:
            self._begin()
        if not observed or (self._whole is not None and observed == self._whole.observed):
            return
        if self._whole is None:
            self._whole = _Span(now_s, stall_s, 0, now_s, stall_s, observed)
        if epoch not in self._epochs:
            before = self._whole.observed if self._epochs else 0
            self._epochs[epoch] = _Span(now_s, stall_s, before, now_s, stall_s, observed)
            if len(self._epochs) > KEPT_EPOCHS:
                del self._epochs[next(iter(self._epochs))]
        self._whole.goes_on(now_s, stall_s, observed)
        span = self._epochs[epoch]
        span.goes_on(now_s, stall_s, observed)
        span.processes |= self._processes
        self._processes.clear()

    def statistics(self) -> ReadingTime:
        if self._whole is None:
            return ReadingTime()
        epochs = tuple(
            EpochTime(
                epoch, span.reading_s, span.stalled_s, max(1, len(span.processes), span.most_waiting),
                span.observed - span.first_observed,
            )
            for epoch, span in self._epochs.items()
        )  # fmt: skip
        return ReadingTime(self._whole.reading_s, self._whole.stalled_s, epochs)
