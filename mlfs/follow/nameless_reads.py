"""Whether a read of somebody who cannot be told from other readers is a job's.

Pure. In: such a read, what the job's matcher and those of other jobs predict. Out: whether it counts for the job. Used
by `mlfs.follow.job`. Nothing here says who reads: a stranger shows by what he reads alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfs.follow.matching import StreamMatcher
from mlfs.follow.nameless import NAMELESS
from mlfs.follow.plain_order import PlainOrder
from mlfs.follow.strangers import Readers

BESIDE_OPENS, BESIDE_SHARE = 64, 0.5
"""The last opens of a job, and the share of them that must be predicted, for who walks the directories to be a stranger
beside it, and not a script that does not shuffle."""


class NamelessReads:
    """See the module."""

    def __init__(self) -> None:
        self._unfit = PlainOrder()

    def are_the_jobs(self, sample: int, own: StreamMatcher, readers: Readers, others: Iterable[StreamMatcher]) -> bool:
        """Whether a read counts for the job.

        Args:
            readers: those of the job that have names. others: of jobs that have the sample too.
        """
        if readers.own and not any(readers.is_vacant(rank_index, own) for rank_index in range(len(own.ranks))):
            return False  # each rank has its own reader
        if own.fits(sample, NAMELESS):
            return True
        if any(other.fits(sample, NAMELESS) for other in others):
            return False
        self._unfit.read(sample, NAMELESS)
        return not (self._unfit.is_plain and own.score.agreement_of_last(BESIDE_OPENS) >= BESIDE_SHARE)
