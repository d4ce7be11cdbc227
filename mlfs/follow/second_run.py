"""Notices that a job's script was started again: reads that don't fit where the job is fit its first epoch.

Pure. In: reads that the job's own matcher has seen. Out: whether they are those of a second run, and the matcher that
has followed it. Used by `mlfs.follow.job`.

When reads are lost, a second matcher begins to watch them from the job's start. If it predicts its first reads, and
more of them than the job's own matcher does, and if they are of samples that were read before, the script was started
again. If not, it is forgotten, and the next lost read begins another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlfs.follow.epoch_index import EpochIndex, Match
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.shape import LearnedLoader

LOST_OPENS = 8
"""Opens none of which was predicted, before a second run is looked for though reads are matched: one worker's or two
batches' worth. A single one that was predicted says that the run under way still reads."""
FIRST_OPENS = 32
"""Opens by which a second run is judged: several batches, in which chance agrees now and then, and not in most."""
FEWEST_READ_BEFORE = 8
"""How many of them must be of samples that were read before: by chance one or two are, in an order that repeats its
samples; where fewer are, the first run had hardly begun, and the reads are still its own."""
AGREEMENT = 0.8
"""Share of them that must be predicted. The first opens of each worker may be in doubt, so it is less than all."""


class SecondRun:
    """See the module.

    Args:
        expect: makes a matcher that expects the job's reads from its start. It is given the epochs that the reads may
            belong to, and what was learned of the loader.

    Attributes:
        matcher: what has followed the reads that may be a second run's, None while none is suspected.
        is_kin: whether the process that began it, or a process of the same parent, had read as predicted before.
    """

    def __init__(self, expect: Callable[[Mapping[int, EpochIndex], LearnedLoader], StreamMatcher]) -> None:
        self.matcher: StreamMatcher | None = None
        self.is_kin = False
        self._expect = expect
        self._read_before = 0  # reads that `matcher` takes for samples that the run under way had read

    def leads(
        self,
        entry: int,
        process: int,
        parent: int,
        match: Match | None,
        own: StreamMatcher,
        first: EpochIndex | None,
        fewest_read_before: int = FEWEST_READ_BEFORE,
    ) -> bool:
        """Whether reads fit a second run better than the one under way.

        Args:
            match: what the read was matched to by `own`, the matcher of the run under way.
            first: the job's first epoch. A second run is matched to no other one: it must not learn to follow the run
                that is under way.
            fewest_read_before: 0 where the run under way reads another order: that cannot be taken for the beginning of
                this one.
        """
        if self.matcher is None:
            lost = match is None or own.score.agreement_of_last(LOST_OPENS) == 0.0
            if first is None or not (lost and own.score.observed):
                return False
            self.is_kin = any(
                seen.agrees and (seen.process == process or (parent and seen.parent == parent))
                for seen in own.score.history
            )
            self.matcher, self._read_before = self.expected(own, first), 0
        at, _ = self.matcher.observe(entry, process, parent)
        if fewest_read_before and at is not None and at != match:
            self._read_before += own.ranks[at.rank_index].is_done(at.position)
        if self.matcher.score.observed < FIRST_OPENS:
            return False
        agreement = self.matcher.score.agreement or 0.0
        again = agreement >= AGREEMENT and self._read_before >= fewest_read_before
        if again and agreement > own.score.agreement_of_last(FIRST_OPENS):
            return True
        self.matcher = None
        return False

    def expected(self, own: StreamMatcher, first: EpochIndex) -> StreamMatcher:
        """A matcher that expects a run from the start, with the loader of the one under way."""
        return self._expect({first.epoch: first}, LearnedLoader(own.shape, own.lag))

    def take(self, matcher: StreamMatcher) -> None:
        """A matcher made by `expected` has followed a second run, by processes that are no kin of those before."""
        self.matcher, self.is_kin = matcher, False

    def forget(self) -> None:
        """What seemed to be a second run is something else, or has become the run that is followed."""
        self.matcher = None
