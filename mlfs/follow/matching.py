"""Finds the position of the predicted streams that an observed open belongs to, and so how far each rank is.

Pure: no I/O, no clock. In: the local ranks' predicted streams (sample ids by epoch), then observed opens (sample,
process, its parent). Out: matched positions, positions given up, the agreement. Called by `mlfs.follow.job`.

Linear position: an epoch's base (sum of the lengths of the epochs before) plus the index within the epoch.

`mlfs.follow.tracker` matches opens for a loader of a given shape, `mlfs.follow.score` counts them. This module learns
the shape: when opens don't fit, `mlfs.follow.learning` proposes another one; a new tracker observes the last opens
again, and takes the place of the old one if more of them are predicted.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from itertools import islice

from mlfs.follow.by_sample import NO_PID
from mlfs.follow.epoch_index import EpochIndex, Ids, Match
from mlfs.follow.evidence import SURE_STREAK, Read, bits
from mlfs.follow.learning import SURE, learn, seen_by_count, seen_where_matched, with_more_slack
from mlfs.follow.progress import Given, RankProgress
from mlfs.follow.reach import lag_of
from mlfs.follow.score import RECENT_OPENS, Open, Score
from mlfs.follow.shape import LearnedLoader, RankStream, Shape
from mlfs.follow.tracker import Followed, NotedReaders, Observed, Tracker

__all__ = ["RECENT_OPENS", "EpochIndex", "Ids", "Match", "Open", "StreamMatcher"]

LEAST_UNFIT = 2
"""Opens that fit nothing before a shape is learned: a new shape shows at once in the first opens of its workers."""
MOST_UNFIT = 512
"""The most of them: learning goes through all remembered opens, so it is tried less often while it finds nothing."""


class StreamMatcher:
    """Matches opens to positions for one job.

    Args:
        stream: of each local rank.
        starts: linear position at which each rank starts.
        epochs: the epochs that an open may belong to, by number. Their owner adds and removes; here they are only read.
        shape: what is known of the loader.
        like: what was learned of the loader from other reads. It is taken over, but not for sure.

    Attributes:
        score: how many opens were predicted; to be read. It is another object once another shape was learned.
        ranks: how far each rank is. The same holds for it.
    """

    def __init__(
        self,
        stream: RankStream,
        starts: Sequence[int],
        epochs: Mapping[int, EpochIndex],
        shape: Shape | None = None,
        like: LearnedLoader | None = None,
    ) -> None:
        self.stream = stream
        self.starts = list(starts)
        self.score = Score(len(starts))
        self._epochs = epochs
        if like is None:
            expected = shape or Shape()
            like = LearnedLoader(expected, lag_of(expected, stream.batch, stream.length))
        self._tracker = Tracker(stream, like, self.starts, epochs, self.score, trusts_shape=shape is not None)
        self.ranks: list[RankProgress] = self._tracker.ranks
        self._patience = LEAST_UNFIT
        self._learn_at = LEAST_UNFIT  # the tracker's `unfit` opens at which another shape is looked for

    def observe(self, sample: int, process: int, parent: int = 0) -> Observed:
        """Record an open. Returns the position it is matched to (None: none), and what is given up: rank, positions.

        Args:
            process: who opened; all threads of a process are one. parent: its parent process, 0 when unknown: the
                workers of a rank have one parent.

        A sample opened again by its last reader is no new evidence: (None, []) and nothing is counted.
        """
        observed = self._tracker.observe(sample, process, parent)
        if self._tracker.unfit < self._learn_at:
            return observed
        match, given = observed
        return match, [*given, *self.relearn()]

    def noted(self) -> NotedReaders:
        """See `Tracker.noted`."""
        return self._tracker.noted()

    def go_on(self, *noted: Iterable[Sequence[int]]) -> None:
        """See `Tracker.go_on`."""
        self._tracker.go_on(*noted)

    def follow(self, reads: Sequence[Read], own: Container[int]) -> Followed:
        """Record the first of these opens, as far as each is simply the next one of its process (`Tracker.follow`)."""
        return self._tracker.follow(reads, own)

    def relearn(self) -> list[tuple[int, Given]]:
        """Learn the loader's shape from the last opens, and count them anew. Returns positions that are over by that.

        Without a better shape it is tried again after twice as many opens that don't fit.
        """
        self._patience = min(MOST_UNFIT, 2 * self._patience)
        self._learn_at = self._tracker.unfit + self._patience
        history = [seen for seen in self.score.history if seen.process != NO_PID]
        by_count = seen_by_count(history, self._epochs) if self.score.complete and not self.lacks_pids else []
        for seen in (by_count, seen_where_matched(history, self._epochs)):
            stream = self.stream
            shape = learn(seen, stream.length, stream.batch, stream.single, stream.shows_ranks)
            if shape is None:
                continue
            over = self._adopt(shape) if shape != self.shape else []
            over = over or self._adopt_with_more_slack(shape)
            if over:
                return over
        return []

    def _adopt_with_more_slack(self, learned: Shape) -> list[tuple[int, Given]]:
        """Try a learned shape with more slack than is known, where nearly all opens were predicted.

        The learned slack is true of nearly all opens; a thread that the machine suspends for a moment is later than
        that.
        """
        if not self._tracker.trusts_shape or self.score.agreement_of_last(RECENT_OPENS) < SURE:
            return []
        wider = with_more_slack(learned, self.shape.slack, self.stream.length)
        return self._adopt(wider) if wider is not None else []

    def _adopt(self, shape: Shape) -> list[tuple[int, Given]]:
        """Observe the last opens again with another shape, and go on with it if more of them are predicted.

        They must be more than chance explains, where a shape is known: more slack predicts some reads of an epoch in
        another order, or of a stranger, and from then on chance would look like agreement.
        """
        history = self.score.history
        starts = list(self.starts)
        if not self.score.complete:  # begin where the oldest of them were
            starts = [progress.floor for progress in self.ranks]
            for seen in history:
                if seen.position >= 0:
                    starts[seen.rank_index] = min(starts[seen.rank_index], seen.position)
        learned = LearnedLoader(shape, lag_of(shape, self.stream.batch, self.stream.length))
        score = Score(len(self.starts))
        tracker = Tracker(self.stream, learned, starts, self._epochs, score, trusts_shape=True)
        over: list[tuple[int, Given]] = []
        for seen in self.opens():
            match, given = tracker.observe(seen.sample, seen.process, seen.parent)
            over += given
            if match is not None:
                over.append((match.rank_index, (match.position, match.position + 1)))
        agreed = sum(seen.agrees for seen in history)
        explained, unfit = score.agreed - agreed, len(history) - agreed
        choices = self.stream.length // max(1, shape.workers * shape.slack)
        if explained <= 0 or (self._tracker.trusts_shape and bits(explained, unfit, choices) <= 0):
            return []
        score.go_on_from(self.score)
        self.score, self._tracker, self.ranks = score, tracker, tracker.ranks
        self._patience = LEAST_UNFIT
        self._learn_at = tracker.unfit + self._patience
        return over

    def opens(self, begun: int = 0) -> list[Open]:
        """The last opens, those among them that were not counted because a process opened its last sample once more.

        Whether such an open is one more sample is known with the loader's shape, so who observes opens again needs all.

        Args:
            begun: how many of the first ones are left out.
        """
        last: dict[int, Open] = {}
        opens: list[Open] = []
        for seen in islice(self.score.history, begun, None):
            if seen.again and seen.process in last:
                opens += [last[seen.process]] * seen.again
            last[seen.process] = seen._replace(again=0, agrees=False)
            opens.append(seen._replace(again=0))
        for process, times in self._tracker.opened_again():
            opens += [last[process]] * times if process in last else []
        return opens

    def joining(self) -> StreamMatcher:
        """A matcher of the same job and loader that has seen nothing, and begins where the ranks are."""
        return StreamMatcher(self.stream, [rank.floor for rank in self.ranks], self._epochs, self.shape)

    def widen_to(self, epochs: Mapping[int, EpochIndex]) -> None:
        """From now on an open may belong to any of these epochs, where so far it could only belong to some of them."""
        self._epochs = epochs
        self._tracker.widen_to(epochs)

    # -- what the tracker knows of the loader and its processes

    @property
    def shape(self) -> Shape:
        """How the processes of a rank share its stream."""
        return self._tracker.shape

    @property
    def batch(self) -> int:
        """Files of a rank's batch: as registered, or as its readers show, if that is more."""
        return max(self._tracker.shape.batch, self.stream.batch)

    @property
    def lacks_pids(self) -> bool:
        """Whether readers read that cannot be told apart: what is only known of processes is not known of them."""
        return self._tracker.by_sample.opens > 0

    @property
    def lag(self) -> int:
        """How far behind its rank's frontier a position may be read."""
        return self._tracker.lag

    def fits(self, sample: int, process: int) -> bool:
        """Whether the open would be predicted by what is loaded; nothing is recorded."""
        return self._tracker.fits(sample, process)

    def is_next(self, sample: int, process: int) -> bool:
        """Whether it is the very next that a process reads, by what it has read before; nothing is recorded."""
        return self._tracker.is_next(sample, process)

    def coming(self, process: int, most: int) -> list[int]:
        """The samples that a process reads next, at most so many; none where that is in doubt."""
        return self._tracker.coming(process, most)

    def untold_before(self, sample: int, process: int, told: Collection[int]) -> list[int]:
        """See `Tracker.untold_before`."""
        return self._tracker.untold_before(sample, process, told)

    def follows(self, process: int) -> bool:
        """Whether the last opens of a process, too many for chance, all came as predicted."""
        return self._tracker.follows(process)

    def knows(self, process: int) -> bool:
        """Whether a process has read before."""
        return self._tracker.knows(process)

    def has_strayed(self, process: int) -> bool:
        """Whether a process has read, and what it read last came otherwise than predicted, or is too little to tell."""
        return self._tracker.has_strayed(process)

    def rank_of(self, process: int) -> int:
        """The rank that a process reads for, -1 while that is not known."""
        return self._tracker.rank_of(process)

    # -- opens that turn out to be counted in the wrong place

    def count(self, epoch: int, rank_index: int, observed: int, agreed: int) -> None:
        """Add opens that were counted elsewhere; rank_index -1: no rank of this matcher's."""
        self.score.add(epoch, rank_index, observed, agreed)

    def disown(self, process: int, opens: int = SURE_STREAK) -> None:
        """The last opens of a process turned out to be none of the job's: those that disagreed are not counted."""
        self.score.disown(process, opens)

    def forget(self, opens: Iterable[Open]) -> None:
        """These opens will be counted elsewhere: as they are counted by now, those that still are."""
        self.score.forget(opens)
