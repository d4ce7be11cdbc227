"""Notices that a job's script was started again: reads that don't fit where the job is fit its first epoch.

Pure. In: reads that the job's own matcher has seen. Out: whether they are those of a second run, and the matcher that
has followed it. Used by `mlfs.follow.job`.

When reads are lost, a second matcher begins to watch them from the job's start. If it predicts its first reads, and
more of them than the job's own matcher does, the script was started again. If not, it is forgotten, and the next lost
read begins another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlfs.follow.epoch_index import EpochIndex, Match
from mlfs.follow.matching import StreamMatcher

LOST_OPENS = 8
"""Opens none of which was predicted, before a second run is looked for though reads are matched: one worker's or two
batches' worth. A single one that was predicted says that the run under way still reads."""
FIRST_OPENS = 32
"""Opens by which a second run is judged: several batches, in which chance agrees now and then, and not in most."""
AGREEMENT = 0.8
"""Share of them that must be predicted. The first opens of each worker may be in doubt, so it is less than all."""


class SecondRun:
    """See the module.

    Args:
        expect: makes a matcher that expects the job's reads from its start. It is given the epochs that the reads may
            belong to, and a matcher of reads by the same loader.

    Attributes:
        matcher: what has followed the reads that may be a second run's, None while none is suspected.
        is_kin: whether the process that began it, or a process of the same parent, had read as predicted before.
    """

    def __init__(self, expect: Callable[[Mapping[int, EpochIndex], StreamMatcher], StreamMatcher]) -> None:
        self.matcher: StreamMatcher | None = None
        self.is_kin = False
        self._expect = expect

    def leads(
        self, entry: int, process: int, parent: int, match: Match | None, own: StreamMatcher, first: EpochIndex | None
    ) -> bool:
        """Whether reads fit a second run better than the one under way.

        Args:
            match: what the read was matched to by `own`, the matcher of the run under way.
            first: the job's first epoch. A second run is matched to no other one: it must not learn to follow the run
                that is under way.
        """
        if self.matcher is None:
            lost = match is None or own.score.agreement_of_last(LOST_OPENS) == 0.0
            if first is None or not (lost and own.score.observed):
                return False
            self.is_kin = any(
                seen.agrees and (seen.process == process or (parent and seen.parent == parent))
                for seen in own.score.history
            )
            self.matcher = self._expect({first.epoch: first}, own)
        self.matcher.observe(entry, process, parent)
        if self.matcher.score.observed < FIRST_OPENS:
            return False
        agreement = self.matcher.score.agreement or 0.0
        if agreement >= AGREEMENT and agreement > own.score.agreement_of_last(FIRST_OPENS):
            return True
        self.matcher = None
        return False

    def forget(self) -> None:
        """What seemed to be a second run is something else, or has become the run that is followed."""
        self.matcher = None
