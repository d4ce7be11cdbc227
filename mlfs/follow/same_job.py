"""Proposes what may be true of a job's reads though its specification is right: the script was started again, a further
family reads for the job, it is read as it was registered after all.

Pure. In: the matcher in force, how far the ranks are, who made a read that was lost. Out: rivals
(`mlfs.follow.hypothesis`), each with a matcher that expects the reads otherwise. Used by `mlfs.follow.job`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.epochs_at_hand import EpochsAtHand
from mlfs.follow.evidence import STRANGER_READS, UNFIT_READS
from mlfs.follow.hypothesis import SAME_JOB, Hypothesis, Origin, Rival, Rivals
from mlfs.follow.local_ranks import LocalRanks
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.shape import LearnedLoader, RankStream, Shape
from mlfs.job import JobSpec
from mlfs.job.names import built_in
from mlfs.orders.streams import JobStreams

OF_A_FAMILY: Final = (Origin.AS_REGISTERED, Origin.JOINS, Origin.FROM_START, Origin.EPOCH_ANEW)
"""The origins of what the reads of a family that is kept apart may be to the job, the likeliest first."""
OF_ALL_READS: Final = (Origin.FROM_START, Origin.EPOCH_ANEW, Origin.AS_REGISTERED)
"""Those of what all reads of the job may be, once one was lost."""


class SameJob:
    """The generator of hypotheses that have a job's own specification.

    Args:
        epochs: those at hand. Their owner adds and removes.
    """

    def __init__(self, spec: JobSpec, streams: JobStreams, epochs: EpochsAtHand) -> None:
        self._spec = spec
        self._streams = streams
        self._epochs = epochs
        self._registered: SameJob | None = None  # of the job as it was registered, where this one was found instead

    def replaces(self, other: SameJob) -> None:
        """The other job may be read as it was registered after all."""
        self._registered = other._registered or other

    # -- matchers

    def expect(
        self, epochs: Mapping[int, EpochIndex], like: LearnedLoader | None = None, start: int | None = None
    ) -> StreamMatcher:
        """A matcher that has seen nothing, with what the registration tells of the loader.

        Args:
            epochs: those that a read may belong to. like: what was learned of the loader from other reads.
            start: the position of the first reads; None: of the job's.
        """
        spec, streams = self._spec, self._streams
        workers, batch = spec.num_workers, streams.batch_files
        # torch's workers take whole batches; one sample each in turn would be the sign of another world size.
        torch = spec.sampler.startswith("torch")
        length, files = streams.length(spec.start_epoch), streams.files_per_sample
        stream = RankStream(length, batch, single=batch == 1 or not torch, one_rank=torch, files=files)
        shape = Shape(batch, workers) if workers and workers > 1 else None
        start = self._epochs.timeline.start if start is None else start
        return StreamMatcher(stream, [start] * len(spec.ranks), epochs, shape, like)

    def _matcher(self, origin: Origin, in_force: StreamMatcher, ranks: LocalRanks) -> StreamMatcher | None:
        """A matcher that expects the reads as a hypothesis says; None where that is nothing else than is in force."""
        at_hand, timeline = self._epochs.at_hand, self._epochs.timeline
        if origin is Origin.AS_REGISTERED:
            of = self._registered
            return None if of is None else of._matcher(Origin.FROM_START, in_force, ranks)
        if origin is Origin.JOINS:
            return in_force.joining()
        if origin is Origin.FROM_START:  # the first epochs alone: it must not learn to follow the run under way
            first = self._epochs.first_ones()
            return self.expect(first, LearnedLoader(in_force.shape, in_force.lag)) if first else None
        epoch = ranks.current_epochs()[0]
        if epoch <= self._spec.start_epoch or epoch not in at_hand:
            return None
        return self.expect({epoch: at_hand[epoch]}, start=timeline.base(epoch))

    # -- rivals

    def _rival(self, origin: Origin, matcher: StreamMatcher, by_run_under_way: bool = False) -> Rival:
        job = self._registered if origin is Origin.AS_REGISTERED and self._registered is not None else self
        hypothesis = Hypothesis(job._spec, origin, job._streams, SAME_JOB[origin])
        return Rival(hypothesis, matcher, by_run_under_way)

    def only_reader(self) -> Rival:
        """One family among several reads the job from its start."""
        return self._rival(Origin.ONLY_READER, self.expect(self._epochs.at_hand))

    def joins(self, in_force: StreamMatcher) -> Rival:
        """A further family reads for a rank, from where that is."""
        return self._rival(Origin.JOINS, in_force.joining())

    def of_a_family(self, in_force: StreamMatcher, ranks: LocalRanks) -> list[Rival]:
        """The rivals of a family that is kept apart: what its reads may be to the job, the likeliest first."""
        made = {origin: self._matcher(origin, in_force, ranks) for origin in OF_A_FAMILY}
        return [self._rival(origin, matcher) for origin, matcher in made.items() if matcher is not None]

    def propose(self, rivals: Rivals, in_force: StreamMatcher, ranks: LocalRanks, process: int, parent: int) -> None:
        """A read of the job was lost: propose what all its reads may be by now, one rival of each kind at a time.

        Args:
            process, parent: who made the read.
        """
        for origin in OF_ALL_READS:
            matcher = None if origin in rivals.by_origin else self._matcher(origin, in_force, ranks)
            if matcher is not None:
                known = self._is_of_the_run_under_way(process, parent, in_force)
                rivals.propose(self._rival(origin, matcher, by_run_under_way=known))

    # -- signs of another run

    def begins_another_run(self, sample: int, in_force: StreamMatcher) -> bool:
        """Whether a process that begins with this sample, and may be kin of the job's readers, is a second start.

        Two runs of one shell without workers are of one family. But a process begins with the job's first sample, while
        the rank is in the middle of an epoch, in another run only.
        """
        first, middles = self._epochs.first, list[bool]()
        if first is None or in_force.shape.workers > 1:
            return False
        for code in first.codes(sample):
            rank_index, offset = divmod(code, first.length)
            rank = in_force.ranks[rank_index]
            epoch = self._epochs.epoch_of(rank.frontier)
            begin, end = (self._epochs.timeline.base(one) for one in (epoch, epoch + 1))
            is_in_middle = begin + STRANGER_READS <= rank.frontier < end - in_force.batch
            middles.append(offset == first.begin and rank.is_done(first.base + offset) and is_in_middle)
        return bool(middles) and all(middles)

    def _is_of_the_run_under_way(self, process: int, parent: int, in_force: StreamMatcher) -> bool:
        """Whether a process is one of those that have read the job, or a worker beside or after them.

        Another child of the parent of a process that reads a whole rank may be the next worker, or the script that a
        shell has started again. A worker begins where an epoch has ended.
        """
        history = in_force.score.history
        reads, agreed = (
            Counter(seen.process for seen in history),
            Counter(seen.process for seen in history if seen.agrees),
        )
        known = {one for one in agreed if 2 * agreed[one] > reads[one]}  # some reads of others agree by chance
        siblings = [seen for seen in history if seen.agrees and seen.process in known and seen.parent == parent]
        if process in known or not (parent and siblings):
            return process in known
        shape, base = in_force.shape, self._epochs.timeline.base
        furthest = max(seen.position for seen in siblings) + 1
        epoch, a_round = self._epochs.epoch_of(furthest), in_force.batch * max(1, shape.workers)
        is_in_its_middle = base(epoch) + a_round < furthest < base(epoch + 1) - a_round
        return shape.workers > 1 or bool(self._spec.num_workers) or not is_in_its_middle

    def may_lack_set_epoch(self, rival: Rival, in_force: StreamMatcher) -> bool:
        """Whether a script that seems to begin anew may rather not call set_epoch, which a search is to find out.

        So it may be when nobody else reads than before, and no later epoch was ever read as predicted.
        """
        spec, own = self._spec, built_in(self._spec.sampler)
        if not (rival.by_run_under_way and spec.set_epoch) or in_force.lacks_pids:
            return False
        if own is None or "set_epoch" not in own.fields:
            return False
        return not any(
            cell.agreed > UNFIT_READS for (epoch, _), cell in in_force.score.cells.items() if epoch > spec.start_epoch
        )
