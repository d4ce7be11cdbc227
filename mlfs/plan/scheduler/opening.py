"""What jobs made of reads whose readers still wait for the sample.

Pure. In: reads as they were matched when readers asked, then the readers who go on or are refused. Out: what is counted
only then. Used by `mlfs.plan.scheduler.following`: a read is matched when the reader asks, because a process with
several threads asks in the order of its stream, and gets what it asks for in any order. How long he waited, and what
the source gave for it, is known when he goes on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from mlfs.plan.scheduler.rank_loads import Reader

# Samples that processes wait for: far more than a node has threads that read. The oldest are forgotten.
MOST_WAITING = 4096


class Matched(NamedTuple):
    """A read, as it was matched.

    Attributes:
        reader: who reads for a job, None for nobody. position: linear. base: where its epoch begins, -1 where the
            epoch is not at hand.
        counted: each job that the read is counted for, by name, and the epoch.
    """

    reader: Reader | None = None
    position: int = -1
    base: int = -1
    counted: tuple[tuple[str, int], ...] = ()


class Opening:
    """See the module."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[int, int], deque[Matched]] = OrderedDict()  # by sample and process

    def waits(self, sample: int, process: int, matched: Matched) -> None:
        """A process waits for a sample."""
        self._waiting.setdefault((sample, process), deque(maxlen=MOST_WAITING)).append(matched)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)

    def over(self, sample: int, process: int) -> Matched:
        """The process waits no more: what its read was matched to."""
        waiting = self._waiting.get((sample, process))
        if waiting is None:
            return Matched()
        matched = waiting.popleft()
        if not waiting:
            del self._waiting[sample, process]
        return matched

    def forget(self, name: str) -> None:
        """The job of that name has ended: nothing is counted for it any more."""
        for waiting in self._waiting.values():
            for at, matched in enumerate(waiting):
                reader = matched.reader if matched.reader is not None and matched.reader.job != name else None
                counted = tuple(one for one in matched.counted if one[0] != name)
                waiting[at] = matched._replace(reader=reader, counted=counted)

    def is_awaited(self, name: str, epoch: int) -> bool:
        """Whether somebody waits for a sample of that epoch of the job."""
        return any((name, epoch) in matched.counted for waiting in self._waiting.values() for matched in waiting)
