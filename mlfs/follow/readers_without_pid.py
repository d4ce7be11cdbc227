"""Decides whether a read of somebody who cannot be told from other readers is a job's.

Pure. In: such a read, what the job's matcher and those of other jobs predict. Out: whether it counts for the job. Used
by `mlfs.follow.job`. Nothing here says who reads: a stranger shows by what he reads alone.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

from mlfs.follow.by_sample import NO_PID
from mlfs.follow.families import Families
from mlfs.follow.matching import StreamMatcher

BESIDE_OPENS, BESIDE_SHARE = 64, 0.5
"""The last opens of a job, and the share of them that must be predicted, for who walks the directories to be a stranger
beside it, and not a script that does not shuffle."""
LAST_READS, LONGEST_STEP = 32, 2
"""A walk goes on from one of the last reads of all readers, to the next file or the one after it."""
CHANCE = 1e-6
"""A walk that is shorter than this is likely may be of a shuffled order."""


class _Walks:
    """Notices that somebody among many readers reads in the order of the directories.

    Args:
        samples: of the job: in a small data set chance makes more steps.
    """

    def __init__(self, samples: int) -> None:
        likely = min(0.5, LAST_READS * LONGEST_STEP / max(1, samples))
        self._needed = math.ceil(math.log(CHANCE) / math.log(likely))
        self._steps: OrderedDict[int, int] = OrderedDict()  # by sample read: how many steps had led there

    def read(self, sample: int) -> bool:
        """Whether a read is one more step of a walk."""
        steps = self._steps.pop(sample, 0)  # it may be opened twice
        for step in range(1, LONGEST_STEP + 1):
            steps = max(steps, 1 + self._steps.pop(sample - step, -1))
        self._steps[sample] = steps
        if len(self._steps) > LAST_READS:
            self._steps.popitem(last=False)
        return steps >= self._needed


class ReadersWithoutPid:
    """Decides whether a read by an unknown process is a job's.

    Args:
        samples: how many the job has. shuffles: whether its order is none of the directories'.
    """

    def __init__(self, samples: int, shuffles: bool) -> None:
        self._walks = _Walks(samples) if shuffles else None

    def read(self, sample: int, matcher: StreamMatcher, readers: Families, others: Iterable[StreamMatcher]) -> bool:
        """Somebody reads: whether it counts for the job.

        Args:
            readers: those of the job that have names. others: of jobs that have the sample too.
        """
        if readers.proved and not any(
            readers.is_vacant(rank_index, matcher) for rank_index in range(len(matcher.ranks))
        ):
            return False  # each rank has its own reader
        walks = self._walks is not None and self._walks.read(sample)
        if walks and matcher.score.agreement_of_last(BESIDE_OPENS) >= BESIDE_SHARE:
            return False
        return matcher.fits(sample, NO_PID) or not any(other.fits(sample, NO_PID) for other in others)
