"""What jobs made of reads whose readers still wait for the sample.

Pure. In: reads as they were matched when readers asked, then the readers who go on. Out: what is counted only then.
Used by `mlfs.plan.scheduler.following`: a read is matched when the reader asks, because a process with several threads
asks in the order of its stream, and gets what it asks for in any order. How long he waited, and what the source gave
for it, is known when he goes on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from mlfs.plan.scheduler.followed import FollowedJob
from mlfs.plan.scheduler.rank_loads import Reader

# Samples that processes wait for: far more than a node has threads that read. Who was refused never goes on, so the
# oldest are forgotten.
MOST_WAITING = 4096


class Matched(NamedTuple):
    """A read, as it was matched.

    Attributes:
        reader: who reads for a job, None for nobody. position: linear. base: where its epoch begins, -1 where the
            epoch is not at hand.
        counted: each job that the read is counted for, and the epoch.
    """

    reader: Reader | None = None
    position: int = -1
    base: int = -1
    counted: tuple[tuple[FollowedJob, int], ...] = ()


class Opening:
    """See the module."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[int, int], deque[Matched]] = OrderedDict()  # by sample and process

    def waits(self, sample: int, process: int, matched: Matched) -> None:
        """A process waits for a sample."""
        self._waiting.setdefault((sample, process), deque(maxlen=MOST_WAITING)).append(matched)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)

    def goes_on(self, sample: int, process: int) -> Matched:
        """The process waits no more: what its read was matched to."""
        waiting = self._waiting.get((sample, process))
        if waiting is None:
            return Matched()
        matched = waiting.popleft()
        if not waiting:
            del self._waiting[sample, process]
        return matched
