"""How long each rank's readers have waited.

Pure. In: waits, each for a sample; reads, once it is known which rank reads. Out: seconds by job and rank. A reader who
waits for an open is told of as a read only when the open is over, so a wait is kept until its read comes. A wait while
the file is open counts for the rank that has opened it.
"""

from __future__ import annotations

from collections import OrderedDict

# Waits whose read has not come: those of readers who were refused never come, so the oldest go.
MOST_PENDING = 4096


class RankWaits:
    """See the module."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, float]] = {}  # by job and index of the rank
        self._pending: OrderedDict[int, list[float]] = OrderedDict()  # by sample: waits of readers not known yet
        self._open: dict[int, tuple[str, int]] = {}  # by sample that is open: who has opened it last

    def waited(self, sample: int, seconds: float, opened: bool = False) -> None:
        """A reader of the sample has waited; with `opened` for bytes of a file that he had opened."""
        reader = self._open.get(sample) if opened else None
        if reader is not None:
            self._count(*reader, seconds)
            return
        self._pending.setdefault(sample, []).append(seconds)
        if len(self._pending) > MOST_PENDING:
            self._pending.popitem(last=False)

    def read(self, sample: int, reader: tuple[str, int] | None) -> None:
        """The sample was read by a rank: the job's name, and the rank's index; by no rank of any job, with None."""
        waits = self._pending.get(sample)
        if reader is not None:
            self._open[sample] = reader
        if waits is None:
            return
        seconds = waits.pop(0)
        if not waits:
            del self._pending[sample]
        if reader is not None:
            self._count(*reader, seconds)

    def closed(self, sample: int) -> None:
        """Nobody has the sample open any more."""
        self._open.pop(sample, None)

    def forget(self, name: str) -> None:
        """The job has ended, or begins anew."""
        self._seconds.pop(name, None)

    def statistics(self) -> dict[str, dict[int, float]]:
        """Seconds by the job's name and the index of the rank; ranks that never waited are missing."""
        return {name: dict(seconds) for name, seconds in self._seconds.items()}

    def _count(self, name: str, rank_index: int, seconds: float) -> None:
        of_job = self._seconds.setdefault(name, {})
        of_job[rank_index] = of_job.get(rank_index, 0.0) + seconds
