"""A job while it runs: its parts, and what happens to them with each read, each epoch's order and each judgement.

Pure. In: a specification and its streams (mlfs.orders), reads, orders of epochs. Out: what each read came to, the
epochs whose order is wanted, whether the prediction is believed. All of it happens on the loop, but for `load_epoch`.

The scheduler knows a job as `mlfs.plan.scheduler.followed.FollowedJob`. The parts, in the order in which a read meets
them: `shared_samples` (is it another job's?), `held_reads` (does it wait for an epoch's order?), `matching` (which
position of which rank is it?), `loader_watch` (what does it tell of the loader?), `second_run` (was the script started
again?), `local_ranks` (how far are the ranks?). Beside them `epochs_at_hand`, and for the status `findings`,
`bytes_read` and `rank_rates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from mlfs.follow.agreement import Share, by_epoch
from mlfs.follow.bytes_read import BytesRead
from mlfs.follow.epoch_index import EpochIndex, Ids
from mlfs.follow.epochs_at_hand import EpochsAtHand
from mlfs.follow.findings import Findings, epochs_in_unknown_order
from mlfs.follow.held_reads import HeldReads
from mlfs.follow.job_statistics import JobState, JobStatistics, RankStatistics
from mlfs.follow.loader import loader_of
from mlfs.follow.loader_watch import UNTIMED, LoaderWatch
from mlfs.follow.local_ranks import LocalRanks
from mlfs.follow.matcher_at_start import matcher_at_start
from mlfs.follow.matching import Open
from mlfs.follow.rank_rates import RankRates
from mlfs.follow.score import Score
from mlfs.follow.second_run import SecondRun
from mlfs.follow.sentences import register_flags
from mlfs.follow.shape import LearnedLoader
from mlfs.follow.shared_samples import SharedSamples
from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams
from mlfs.plan.scheduler.followed import Seen

RECOVERED = 0.75
"""Share of the recent reads that must be predicted before a prediction that failed is believed again. It lies well
above the half below which it fails, so that a job between the two does not go to and fro."""
GAVE_UP = "mlfs failed to follow this job (the log says how); its reads are served as they come: register it again"
NOTHING_YET = Seen(None)
"""What a read comes to that waits, or that is another job's."""


class JobRun:
    """See the module.

    Args:
        sizes: bytes by sample.
        like: what was learned of the loader by the job that this one may replace.

    Attributes:
        inferred: nobody registered the job, the reads told it.
        batch_files: samples of a rank's batch (of files, where a sample is several).
        member: by sample: whether the job reads it.
        predicting: whether its predictions are believed.
        given_up: whether following it failed: a read of its samples is nothing to it any more.
        matcher: matches reads to positions in the streams. A second run of the script has another one, and so have
            `ranks` and `loader` then.
    """

    def __init__(
        self, spec: JobSpec, streams: JobStreams, sizes: Ids, inferred: bool = False, like: LearnedLoader | None = None
    ) -> None:
        self.spec = spec
        self.streams = streams
        self.inferred = inferred
        self.name = spec.name
        self.batch_files = streams.batch_files
        self.member = bytearray(len(sizes))
        inside = streams.sample_ids[streams.sample_ids >= 0]
        np.frombuffer(self.member, dtype=np.uint8)[inside] = 1
        self.predicting, self.given_up = True, False
        self._set_aside = False  # the reads have another order, which another job has or shall have
        self.epochs = EpochsAtHand(spec, streams, len(sizes))
        expect = partial(matcher_at_start, spec, streams, self.epochs.timeline)
        self.matcher = expect(self.epochs.at_hand, like)
        self.shared = SharedSamples()
        self.held = HeldReads(self.epochs)
        self.loader = LoaderWatch(spec, streams, self.epochs, self.matcher)
        self.second_run = SecondRun(expect)
        self.ranks = LocalRanks(spec, self.epochs, self.matcher)
        self.findings = Findings(spec.start_epoch, inferred)
        self.bytes_read = BytesRead(spec, sizes)
        self.rates = RankRates()

    @property
    def score(self) -> Score:
        """How many of its reads were predicted: to be read; another object once the matcher has learned more."""
        return self.matcher.score

    @property
    def observed(self) -> int:
        """Reads that were counted."""
        return self.score.observed

    @property
    def finished(self) -> bool:
        """Whether all ranks that read here have read all."""
        return self.ranks.finished

    @property
    def state(self) -> JobState:
        """In one word."""
        if not self.predicting:
            return JobState.DRIFTING
        if self.finished:
            return JobState.FINISHED
        return JobState.RUNNING if self.observed else JobState.WAITING

    def statistics(self) -> JobStatistics:
        """Frozen figures."""
        spec, streams, score = self.spec, self.streams, self.score
        recent = score.recent_opens
        return JobStatistics(
            name=self.name,
            inferred=self.inferred,
            state=self.state,
            given_up=self.given_up,
            share=Share(score.agreed, score.observed),
            recent=Share(round((score.agreement or 0.0) * recent), recent),
            shares=by_epoch(score.cells, spec.ranks),
            loader=loader_of(
                spec,
                self.inferred,
                streams.files_per_sample,
                *self.loader.known(),
                slack=self.matcher.shape.slack,
                shape_is_learned=self.loader.shape_is_learned,
            ),
            findings=self.findings.statistics(register_flags(spec, self.findings.way_out)),
            epochs=spec.epochs,
            epoch=self.ranks.current_epochs()[1],
            ranks=tuple(self._rank_statistics(index) for index in range(len(spec.ranks))),
            batch_files=streams.batch_files,
            files_per_sample=streams.files_per_sample,
            stream_bytes=self.bytes_read.stream_bytes,
            pfs_bytes_by_epoch=self.bytes_read.by_epoch(),
            specification=spec.understood(),
        )

    def _rank_statistics(self, index: int) -> RankStatistics:
        frontier = self.ranks.progress[index].frontier
        epoch = self.epochs.epoch_of(frontier)
        return RankStatistics(
            rank=self.spec.ranks[index],
            epoch=epoch,
            position=frontier - self.epochs.timeline.base(epoch),
            length=self.streams.length(epoch),
            reads_here=index not in self.ranks.silent,
            samples_per_s=self.rates.by_rank.get(index, 0.0),
        )

    # -- reads

    def observe(
        self, sample: int, process: int, parent: int, at_s: float = UNTIMED, others: Iterable[JobRun] = ()
    ) -> Seen:
        """Record a read of one of the job's samples, and when it came.

        If it fits nothing, and an epoch that it may belong to is being computed, it is held (see `release_held`).
        Where jobs have samples in common, reads of a process that surely reads for another job count for nothing.
        """
        if others and self.shared.is_read_for_another(process, self.matcher, (other.matcher for other in others)):
            return NOTHING_YET
        if self.held.hold(sample, process, parent, at_s, self.matcher):
            return NOTHING_YET
        return self._match(sample, process, parent, at_s)

    def _match(self, sample: int, process: int, parent: int, at_s: float = UNTIMED) -> Seen:
        """Match a read to a position, and tell the parts of it."""
        matcher, second_run = self.matcher, self.second_run
        before = matcher.score.agreed
        match, given = matcher.observe(sample, process, parent)
        self.loader.read(sample, process, match, at_s)
        unfit = matcher.score.agreed <= before
        if (unfit or second_run.matcher is not None) and second_run.leads(
            sample, process, parent, match, matcher, self.epochs.first
        ):
            return Seen(None, (), True)
        if match is None:
            return Seen(None, given)
        frontier = matcher.ranks[match.rank_index].frontier
        self.ranks.read(match.rank_index, frontier)
        self.held.rank_came_to(frontier)
        return Seen(match, given)

    def release_held(self, others: Iterable[JobRun] = ()) -> list[Seen]:
        """An epoch's order is known, or cannot be known: match the reads that waited for it."""
        return [self.observe(*read, others) for read in self.held.release()]

    def replay(self, opens: Iterable[Open]) -> None:
        """Match reads that were observed before this job began."""
        for opened in opens:
            self._match(opened.entry, opened.process, opened.parent)

    # -- epochs

    def missing_epochs(self) -> list[int]:
        """Epochs whose order should be at hand, is not, and is not being computed."""
        return [] if self.given_up else self.epochs.missing(*self.ranks.current_epochs())

    def wanted_epochs(self) -> list[int]:
        """Epochs whose order is needed soon, and shall be computed now."""
        return [] if self.given_up else self.epochs.wanted(*self.ranks.current_epochs())

    def load_epoch(self, epoch: int) -> EpochIndex:
        """Compute an epoch's order and its inverse (a worker thread's work)."""
        return self.epochs.load(epoch)

    def add_epoch(self, index: EpochIndex) -> list[int]:
        """Take an epoch's order into use, and let go of those that all ranks have left: returns these."""
        self.epochs.add(index)
        self.bytes_read.epoch_added(index)
        self.held.epoch_added(max(self.ranks.frontiers), self.matcher.lag)
        return self.epochs.let_go(self.ranks.current_epochs()[0])

    # -- judging

    def judge(self, now_s: float) -> list[str]:
        """Update `predicting` from the agreement; in words, what has changed that a person should know."""
        self.rates.update([progress.frontier for progress in self.ranks.progress], now_s)
        agreement, before = self.score.agreement, self.predicting
        if self.predicting and (self.score.drifting or self._set_aside):
            self.predicting = False
        elif not (self.predicting or self._set_aside) and (agreement is None or agreement >= RECOVERED):
            # There is none where all reads were another job's.
            self.predicting = True
        said = [str(self.state)] if self.predicting != before else []
        elsewhere = self.findings.began_elsewhere(self.matcher, self.epochs.timeline)
        return [*said, elsewhere] if elsewhere else said

    def set_aside(self, aside: bool) -> None:
        """Whether its predictions are not to be believed, however few reads there are that speak against them."""
        self._set_aside = aside

    def give_up(self) -> None:
        """Predict nothing and look at nothing any more."""
        self.given_up, self.predicting = True, False
        self.member = bytearray(len(self.member))
        self.held.release()

    # -- another run of the script, or another explanation of it

    def restart(self) -> None:
        """Go on from where the second run of the script is."""
        matcher = self.second_run.matcher
        if matcher is None:
            return
        self.second_run.forget()
        matcher.widen_to(self.epochs.at_hand)
        self.matcher, self.predicting = matcher, True
        learned = self.loader.shape_is_learned
        self.loader = LoaderWatch(
            self.spec, self.streams, self.epochs, matcher, from_start=False, shape_is_learned=learned
        )  # fmt: skip
        self.ranks = LocalRanks(self.spec, self.epochs, matcher, self.ranks.silent)

    def forget_restart(self) -> None:
        """What seemed to be a second run of the script is something else."""
        self.second_run.forget()

    def take_counts(self, other: JobRun, opens: Sequence[Open], said: str = "", way_out: str = "") -> None:
        """Go on with the counts of the job that this one replaces.

        Args:
            opens: the last reads, which this job has matched already: they count here alone.
            said, way_out: what was found out about the other job, in words and as flags.
        """
        other.matcher.forget(opens)
        # What was read in an order that nobody knew then says nothing of the prediction since.
        unknown = epochs_in_unknown_order(other.score.cells) if said else {}
        for (epoch, index), cell in other.score.cells.items():
            if epoch in unknown:
                continue
            rank = other.spec.ranks[index] if index >= 0 else -1
            place = self.spec.ranks.index(rank) if rank in self.spec.ranks else -1
            self.matcher.count(epoch, place, cell.observed, cell.agreed)
        self.ranks.go_on_from(other.ranks)
        self.bytes_read.go_on_from(other.bytes_read)
        self.findings.go_on_from(other.findings, said, way_out, len(opens), unknown, self.spec.start_epoch)

    # -- bytes

    def count_pfs(self, epoch: int, size_bytes: int) -> None:
        """Bytes came from the PFS for an epoch."""
        self.bytes_read.count_pfs(epoch, size_bytes)

    def resized(self, sample: int, more_bytes: int) -> None:
        """A sample has changed its size at the source."""
        if self.member[sample]:
            self.bytes_read.resized(more_bytes)
