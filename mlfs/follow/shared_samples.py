"""Which job a read belongs to, where several jobs have samples in common.

Pure. In: the process that reads, and what the matchers of all jobs predict. Out: whether the read is surely another
job's. Used by `mlfs.follow.job`.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfs.follow.matching import StreamMatcher

MOST_PROCESSES = 4096
"""Processes that are remembered. Loaders start new workers each epoch; what is forgotten is found out again."""


class SharedSamples:
    """See the module."""

    def __init__(self) -> None:
        self._others_processes: set[int] = set()

    def is_read_for_another(self, process: int, own: StreamMatcher, others: Iterable[StreamMatcher]) -> bool:
        """Whether another job predicts what a process opens, and this one does not.

        When that is first found, its last opens are taken out of this job's counts.
        """
        known = self._others_processes
        if own.follows(process) or not any(other.follows(process) for other in others):
            known.discard(process)
            return False
        if process not in known:
            if len(known) >= MOST_PROCESSES:
                known.clear()
            known.add(process)
            own.disown(process)
        return True
