"""How long each job has been reading, and how long readers waited in that time.

Pure; times are passed in. In: how many samples each job has read by now, and how long readers have waited in all. Out:
the time between a job's first read and its last one, and the waiting in it. Used by `mlfs.plan.scheduler.scheduler`;
`mlfs advise` and `status` read the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class ReadingTime:
    """A job's time.

    Attributes:
        reading_s: from its first read to its last one.
        stalled_s: how long the node's readers, all together, waited in that time.
    """

    reading_s: float = 0.0
    stalled_s: float = 0.0


class _Reading(NamedTuple):
    """A job's first and last read, how long readers had waited by then, and how many samples the job has read."""

    observed: int
    first_s: float
    last_s: float
    first_stall_s: float
    last_stall_s: float


class ReadingTimes:
    """See the module."""

    def __init__(self) -> None:
        self._reading: dict[str, _Reading] = {}

    def job_read(self, name: str, observed: int, now_s: float, stall_s: float) -> None:
        """Note how far a job is.

        Args:
            observed: how many samples it has read. Fewer than before: it was registered again, and begins anew.
            now_s: the time now.
            stall_s: how long all readers have waited since the mount.
        """
        before = self._reading.get(name)
        if before is None or observed < before.observed or not before.observed:
            before = _Reading(0, now_s, now_s, stall_s, stall_s)
        if observed != before.observed:
            before = before._replace(observed=observed, last_s=now_s, last_stall_s=stall_s)
        self._reading[name] = before

    def forget(self, name: str) -> None:
        """The job has ended."""
        self._reading.pop(name, None)

    def statistics(self) -> dict[str, ReadingTime]:
        """Frozen figures by the job's name."""
        return {
            name: ReadingTime(reading.last_s - reading.first_s, reading.last_stall_s - reading.first_stall_s)
            for name, reading in self._reading.items()
        }
