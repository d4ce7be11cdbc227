"""A job while it runs: its parts, and what happens to them with each read, each epoch's order and each judgement.

Pure. In: a specification and its streams (mlfs.orders), reads, orders of epochs. Out: what each read came to, the
epochs whose order is wanted, whether the prediction is believed. All of it happens on the loop, but for `load_epoch`.

The scheduler tells it of reads. These are the parts, in the order in which a read meets them:

- `readers_without_pid`: is it the job's, though nobody knows who made it?
- `SharedSamples`: is it another job's?
- `matching`: does it fit? Nearly all do, and go on with `loader_watch`.
- `evaluation`: does the job evaluate? `families`: is it a reader of the job's at all? `HeldReads`: does it wait for an
  epoch's order?
- `matching` again: which position of which rank is it? `tracker` finds it by `worker_stream` and `reach`; `progress`
  and `score` note it; `learning` finds the loader's shape.
- `loader_watch`: what does it tell of the loader?
- `same_job`: was it lost, so that something else may be true by now? `hypothesis`: is it?
- `local_ranks`: how far are the ranks?

Beside them stand `epochs_at_hand`, and for the status `findings`, `LateReads` and `BytesRead`. The parts that have no
module of their own stand below the job.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from mlfs.follow.agreement import Share, by_epoch
from mlfs.follow.by_sample import NO_PID
from mlfs.follow.epoch_index import EpochIndex, Ids, Match
from mlfs.follow.epochs_at_hand import EpochsAtHand, HeldReads
from mlfs.follow.evaluation import Evaluation, Purpose
from mlfs.follow.evidence import (
    JUDGED_OPENS,
    LOOK_BACK_AFTER,
    LOST_READS,
    SURE_SHARE,
    UNTIMED,
    Read,
)
from mlfs.follow.families import Families, Family, FamilyState, Key, no_name
from mlfs.follow.findings import Findings, epochs_in_unknown_order
from mlfs.follow.hypothesis import UNREGISTERED, Fit, Hypothesis, Origin, Rival, Rivals, refuted
from mlfs.follow.job_statistics import JobState, JobStatistics
from mlfs.follow.loader_watch import LoaderWatch
from mlfs.follow.local_ranks import LocalRanks
from mlfs.follow.matching import Open, StreamMatcher
from mlfs.follow.plain_order import walked_to
from mlfs.follow.progress import Given
from mlfs.follow.readers_without_pid import ReadersWithoutPid
from mlfs.follow.same_job import SameJob
from mlfs.follow.score import REMEMBERED_OPENS, Cell, Score
from mlfs.follow.sentences import flags_of, register_flags
from mlfs.follow.shape import LearnedLoader, Shape
from mlfs.follow.tracker import Followed
from mlfs.job import JobSpec
from mlfs.job.names import OPENED_AGAIN
from mlfs.orders.streams import JobStreams

RECOVERED = 0.75
"""Share of the recent reads that must be predicted before a prediction that failed is believed again. It lies well
above the half below which it fails, so that a job between the two does not go to and fro."""
GAVE_UP = "mlfs failed to follow this job (the log says how); its reads are served as they come: register it again"


class Seen(NamedTuple):
    """The job's verdict on a read.

    Attributes:
        match: the position that the read was matched to, None for none.
        given: positions that are given up by it, by local rank.
        another_leads: the reads fit another hypothesis better than the one by which the job is followed.
        apart: a stranger made the read, which is nothing to the job.
        coming: what the stranger reads next, where his order is plain.
    """

    match: Match | None
    given: Sequence[tuple[int, Given]] = ()
    another_leads: bool = False
    apart: bool = False
    coming: Sequence[int] = ()


NOTHING_YET = Seen(None)  # a read that waits, or that is another job's
APART = Seen(None, apart=True)  # a stranger's read
ANOTHER_LEADS = Seen(None, another_leads=True)  # see `Rivals.leading`


class JobRun:
    """One job while it runs.

    Args:
        sizes: bytes by sample.
        like: what was learned of the loader by the job that this one may replace.
        name_of: the name of a process's program, "" where it is not known.

    Attributes:
        hypothesis: the one by which it is followed.
        batch_files: samples of a rank's batch (of files, where a sample is several).
        begun_in: the epoch with which the run that is followed has begun, as far as is known.
        opened_again: whether its readers open a file again and again, and before its turn.
        member: by sample: whether the job reads it.
        predicting: whether its predictions are believed.
        is_set_aside: whether its reads have another order, which another job has or shall have.
        given_up: whether following it failed: a read of its samples is nothing to it any more.
        matcher: matches reads to positions in the streams. Another run of the script has another one, and other
            `ranks`, `loader` and `readers`.
        readers: which processes read for the job, and which are strangers. without_pid: the same of readers whom the
            kernel shows without a pid.
        registered: the job as it was registered, where this one was found to be what the script does instead.
        changes: fields by which it differs from that.
        rivals: what may be true of its reads instead. same_job: proposes those that have its own specification.
    """

    def __init__(
        self,
        spec: JobSpec,
        streams: JobStreams,
        sizes: Ids,
        hypothesis: Hypothesis | None = None,
        like: LearnedLoader | None = None,
        name_of: Callable[[int], str] = no_name,
    ) -> None:
        self.spec = spec
        self.streams = streams
        self.hypothesis = hypothesis or Hypothesis(spec, Origin.REGISTERED, streams)
        self.name = spec.name
        self.batch_files = streams.batch_files
        self.opened_again = spec.layout in OPENED_AGAIN
        self.member = bytearray(len(sizes))
        inside = streams.sample_ids[streams.sample_ids >= 0]
        np.frombuffer(self.member, dtype=np.uint8)[inside] = 1
        self.predicting, self.given_up = True, False
        self.is_set_aside = False
        self.epochs = EpochsAtHand(spec, streams, len(sizes))
        self.same_job = SameJob(spec, streams, self.epochs)
        self.matcher = self.same_job.expect(self.epochs.at_hand, like)
        self.shared = SharedSamples()
        self.held = HeldReads(self.epochs)
        self.loader = LoaderWatch(spec, streams, self.epochs, self.matcher)
        self.ranks = LocalRanks(spec, self.epochs, self.matcher)
        self.evaluation = Evaluation(self.epochs.timeline, spec.start_epoch)
        self.findings = Findings(spec.start_epoch, self.inferred)
        self.late = LateReads()
        self.bytes_read = BytesRead(spec, sizes)
        self.readers = Families(name_of)
        self.without_pid = ReadersWithoutPid(len(inside), bool(spec.shuffle) and spec.sampler != "sequential")
        self.registered: JobRun | None = None
        self.changes: dict[str, Any] = {}
        self.begun_in = spec.start_epoch
        self.rivals = Rivals(self.same_job.may_lack_set_epoch)
        self._look_back_at = 0  # reads that were counted when the families before the first proved one are judged
        self._judged_from = 0  # reads by which it was found, if it was inferred: those say nothing against it
        self._before: Sequence[Sequence[int]] = ()  # counted by another process: epoch, rank, opens, predicted ones

    @property
    def inferred(self) -> bool:
        """Whether nobody registered it, and the reads told it."""
        return self.hypothesis.origin in UNREGISTERED

    @property
    def score(self) -> Score:
        """How many of its reads were predicted: to be read; another object once the matcher has learned more."""
        return self.matcher.score

    @property
    def observed(self) -> int:
        """Reads that were counted."""
        return self.score.observed

    @property
    def observed_here(self) -> int:
        """Those of them that this process has counted."""
        return self.observed - sum(opens for _, _, opens, _ in self._before)

    @property
    def finished(self) -> bool:
        """Whether all ranks that read here have read all."""
        return self.ranks.finished

    def place(self) -> tuple[int, int] | None:
        """The epoch and the step at which its slowest rank reads; None where all have read all.

        A read that was lost keeps a rank's floor back for a while: what is known of its processes says more, but for
        those that have just begun.
        """
        if self.finished:
            return None
        epochs, shape = self.epochs, self.matcher.shape
        floors = {index: rank.floor for index, rank in enumerate(self.ranks.progress) if index not in self.ranks.silent}
        coming: dict[int, int] = {}
        for _, index, position in self.matcher.noted()[0]:
            if position >= floors.get(index, position + 1):
                coming[index] = min(position, coming.get(index, position))
        # Each worker of torch has two batches ahead by default: one may have read them before another begins.
        ahead = 3 * shape.batch * max(1, shape.workers)
        floor = min(max(floor, coming.get(index, floor) - ahead) for index, floor in floors.items())
        epoch = epochs.epoch_of(floor)
        return epoch, (floor - epochs.timeline.base(epoch)) // self.batch_files

    @property
    def state(self) -> JobState:
        if not self.predicting:
            return JobState.DRIFTING
        if self.finished:
            return JobState.FINISHED
        return JobState.RUNNING if self.observed else JobState.WAITING

    @property
    def register_flags(self) -> str:
        return register_flags(self.spec, self.findings.way_out)

    def statistics(self) -> JobStatistics:
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
            late_opens=dict(self.late.by_epoch),
            loader=self.loader.statistics(self.inferred),
            findings=self.findings.statistics(self.register_flags),
            epochs=spec.epochs,
            epoch=self.ranks.current_epochs()[1],
            ranks=self.ranks.statistics(),
            batch_files=self.loader.batch_files,
            files_per_sample=streams.files_per_sample,
            stream_bytes=self.bytes_read.stream_bytes,
            deviation_bytes=self.bytes_read.deviation_bytes,
            pfs_bytes_by_epoch=dict(sorted(self.bytes_read.pfs_by_epoch.items())),
            specification=spec.understood() | ({} if spec.serve is None else streams.served_figures()),
            readers=self.readers.statistics(),
        )

    # -- reads

    def follow(self, reads: Sequence[Read]) -> Followed:
        """Record the first of these reads of the job's samples, as far as `observe` would find nothing else to do.

        A job reads so nearly all of the time: processes that have proved to read for it go on as predicted, while
        nothing else may explain their reads.
        """
        if self.evaluation.may_have_begun or self.held.reads or not self.readers.proved or self.readers.has_heir:
            return [], []
        if self.rivals.by_origin or self.rivals.leading:
            return [], []
        batch = self.matcher.batch
        stretches, given = self.matcher.follow(reads, self.readers.proved)
        for stretch in stretches:
            self.loader.follow(stretch)
            self.late.read(stretch.times, stretch.positions[0], self.epochs)
            self._rank_came_to(stretch.rank_index, batch)
        return stretches, given

    def untold_before(self, read: Read, told: Callable[[], Collection[int]]) -> list[Read]:
        """The reads of a process that were told of with earlier ones of the same samples: those right before this one.

        Only of a process that reads for the job, whose last reads were all predicted, and this one is not the next.

        Args:
            told: asked for the samples that it has opened a moment before.
        """
        matcher, (sample, process, _, _) = self.matcher, read
        if process not in self.readers.proved or not matcher.follows(process) or matcher.is_next(sample, process):
            return []
        return [read._replace(sample=one) for one in matcher.untold_before(sample, process, told())]

    def _rank_came_to(self, rank_index: int, batch: int) -> None:
        frontier = self.matcher.ranks[rank_index].frontier
        self.ranks.read(rank_index, frontier)
        self.held.rank_came_to(frontier)
        self.evaluation.rank_came_to(rank_index, frontier, batch)

    def observe(
        self, sample: int, process: int, parent: int, at_s: float = UNTIMED, others: Sequence[JobRun] = ()
    ) -> Seen:
        """Record a read of one of the job's samples, and when it came.

        If it fits nothing, and an epoch that it may belong to is being computed, it is held (see `release_held`).
        Reads of a process that surely reads for another job count for nothing, nor do those of a stranger.
        """
        sharing = [other.matcher for other in others if other.member[sample]] if others else ()
        named = process != NO_PID
        if not named and not self.without_pid.read(sample, self.matcher, self.readers, sharing):
            return APART
        if sharing and self.shared.read(process, self.matcher, sharing):
            return NOTHING_YET
        known = named and bool(self.readers.proved)
        proved = known and process in self.readers.proved
        fits = known and self.matcher.fits(sample, process)
        if proved and fits and not self.evaluation.may_come and not self.held.reads:
            return self._match(sample, process, parent, at_s)  # nearly always
        is_new = known and parent and not proved and not self.matcher.knows(process)
        if is_new and self.same_job.begins_another_run(sample, self.matcher):
            self.readers.part_from_kin(process, parent)
        departs = known and not (fits or self.held.may_hold)
        if (named and self.evaluation.may_come) or departs:
            seen = self._may_evaluate(Read(sample, process, parent, at_s))
            if seen is not None:
                return seen
        if named and not proved:
            return self._observe_unproved(Read(sample, process, parent, at_s))
        if self.held.hold(sample, process, parent, at_s, self.matcher):
            return NOTHING_YET
        return self._match(sample, process, parent, at_s)

    def _may_evaluate(self, read: Read) -> Seen | None:
        """A read that may be an evaluation's: what it comes to, if it is, or waits; None if it is not."""
        readers, evaluation, matcher = self.readers, self.evaluation, self.matcher
        readers.look_at_heir(matcher)
        if not readers.proved or not readers.are_the_jobs(read.process, read.parent):
            return None
        fits = matcher.fits(read.sample, read.process)
        verdict = evaluation.read(read, fits, departs=not matcher.has_strayed(read.process))
        if verdict is not Purpose.TRAINING:
            readers.evaluate()
        if verdict is Purpose.EVALUATION:
            return Seen(None, apart=True, coming=walked_to(read.sample, self.member))
        if verdict is Purpose.WAITS:
            return NOTHING_YET
        return self._match_all([*due, read]) if (due := evaluation.take_due()) else None

    def _observe_unproved(self, read: Read, before: bool = False) -> Seen:
        """A read of a process that has not proved to read for the job: the job's, or on trial. Args: before: whether it
        came earlier: that nobody else reads now says nothing then.
        """
        readers, matcher = self.readers, self.matcher
        readers.look_at_heir(matcher)
        if readers.takes(read, matcher):
            if self.held.hold(*read, matcher):
                return NOTHING_YET
            return self._match_unproved(read) if readers.proved else self._match_first(read)
        family = readers.put_apart(read.process, read.parent)
        if self.rivals.leads_of is family and self.rivals.leading is not None:
            self.rivals.leading.read(read)
            return ANOTHER_LEADS
        was_stranger = family.state is FamilyState.STRANGER
        propose = partial(self.same_job.of_a_family, matcher, self.ranks)
        leading = readers.try_read(family, read, matcher, propose, before)
        if not family.is_apart:
            return self._match_waiting(family)
        if leading is not None:
            self.rivals.let_lead(leading, family)
            return ANOTHER_LEADS
        if family.state is not FamilyState.STRANGER:
            return NOTHING_YET
        if not was_stranger:
            self._disown(family)
        return Seen(None, apart=True, coming=walked_to(read.sample, self.member) if family.order.is_plain else ())

    def _match_first(self, read: Read) -> Seen:
        """A read before anybody has proved to read for the job. Each family is seen alone too where several read."""
        readers, first = self.readers, self.epochs.first
        was_apart = readers.kept_apart(read.process, read.parent) is not None
        walker = readers.read_first(read)
        if walker is not None:
            seen = APART
            if not was_apart:  # since then none of its reads was matched
                self._disown(walker)
        else:
            seen = self._match_unproved(read)
        if first is None or seen.another_leads:
            return seen
        history = self.score.history
        proved = readers.read_by_one(read, self.matcher, self.same_job.only_reader) or bool(readers.proved)
        if not proved or readers.one_family_read or all(opened.agrees for opened in history):
            return seen
        return self._match_without_others(first, readers.key_of(read.process, read.parent))

    def _match_without_others(self, first: EpochIndex, proved: Key) -> Seen:
        """A family has proved to read for the job, and its reads came mixed with others', which may have led the
        matcher astray: match them anew without those, and put the others on trial."""
        fitting: list[Open] = []
        others: list[Open] = []
        for opened in self.matcher.opens():
            mine = self.readers.key_of(opened.process, opened.parent) == proved or self.readers.fits_as_only_reader(
                opened
            )
            (fitting if mine else others).append(opened)
        matcher, before = self.same_job.expect(self.epochs.at_hand), self._before
        self._begin_anew(matcher, shape_is_learned=False)
        self._count_on(before)
        given: list[tuple[int, Given]] = []
        for opened in fitting:
            if self.readers.key_of(opened.process, opened.parent) == proved:
                self.readers.prove(opened.process, opened.parent, matcher.rank_of(opened.process))
        for opened in others:
            self.readers.seen_again(opened)
        for opened in [*fitting, *others]:
            read = opened.read
            mine = opened.process in self.readers.proved or not self.readers.proved
            if not mine:
                self.readers.put_apart(opened.process, opened.parent)  # seen alone, it did not fit
            seen = self._match_unproved(read) if mine else self._observe_unproved(read, before=True)
            if seen.match is not None:
                given.append((seen.match.rank_index, (seen.match.position, seen.match.position + 1)))
            given += seen.given
        return Seen(None, given)

    # -- reads that are matched

    def _match_unproved(self, read: Read) -> Seen:
        """Match a read, and note how its process does."""
        readers, matcher = self.readers, self.matcher
        seen = self._match(*read)
        history = matcher.score.history
        last = history[-1] if history else None
        agrees = last is not None and last.process == read.process and last.agrees
        if matcher.follows(read.process):
            if not readers.proved:
                self._look_back_at = matcher.score.observed + LOOK_BACK_AFTER
            readers.prove(read.process, read.parent, matcher.rank_of(read.process))
        else:
            readers.kin_read(read.process, read.parent, agrees, matcher)
        return seen

    def _match_waiting(self, family: Family) -> Seen:
        """A family has turned out to read for the job: match the reads that waited for that, as one."""
        earlier, waiting = list(family.earlier), list(family.waiting)
        whole = self.same_job.joins(self.matcher)
        for read in [*earlier, *waiting] if earlier else ():
            whole.read(read)
        # Else it read something else before its trial.
        seen = self._match_all([*earlier, *waiting] if whole.share >= SURE_SHARE else waiting)
        self._judged_from = self.score.ever_observed - 1
        return seen

    def _match_all(self, reads: Iterable[Read]) -> Seen:
        """Match reads that waited, as one."""
        match: Match | None = None
        given: list[tuple[int, Given]] = []
        for read in reads:
            if self.held.hold(*read, self.matcher):
                continue
            seen = self._match_unproved(read)
            if match is not None and seen.match is not None:
                given.append((match.rank_index, (match.position, match.position + 1)))  # it is over, as that one is
            match = seen.match or match
            given += seen.given
            if seen.another_leads:
                return Seen(match, given, another_leads=True)
        return Seen(match, given)

    def _disown(self, family: Family) -> None:
        """A stranger's reads before it was known to be one do not count, as far as they were not predicted."""
        unfit = [seen for seen in self.matcher.opens() if not seen.agrees]
        unfit = [seen for seen in unfit if self.readers.key_of(seen.process, seen.parent) == family.key]
        for process in dict.fromkeys(seen.process for seen in unfit):
            self.matcher.disown(process, REMEMBERED_OPENS)
        family.keep(seen.read for seen in unfit)

    def leave_out(self, opens: Iterable[Open]) -> None:
        """These reads turned out to be strangers'."""
        for family in self.readers.note_strangers(opens):
            self._disown(family)

    def _look_back(self) -> None:
        """Somebody reads as predicted: who read before, and did not, is a stranger."""
        self._look_back_at = 0
        for family in self.readers.others_before(self.score.history):
            self._disown(family)

    def _match(self, sample: int, process: int, parent: int, at_s: float = UNTIMED) -> Seen:
        """Match a read to a position, and tell the parts of it."""
        matcher = self.matcher
        before = matcher.score.agreed
        match, given = matcher.observe(sample, process, parent)
        self.loader.read(sample, process, match, at_s)
        if matcher.score.agreed <= before and (match is None or matcher.score.agreement_of_last(LOST_READS) == 0.0):
            self.same_job.propose(self.rivals, matcher, self.ranks, process, parent)
        rivals = self.rivals
        if (rivals.by_origin or rivals.leading) and rivals.show(Read(sample, process, parent, at_s), match, matcher):
            return Seen(match, given, another_leads=True)  # that one may be refused: these positions are over anyhow
        if match is None:
            return Seen(None, given)
        self.late.read((at_s,), match.position, self.epochs)
        self._rank_came_to(match.rank_index, matcher.batch)
        return Seen(match, given)

    def release_held(self, others: Sequence[JobRun] = ()) -> list[Seen]:
        """An epoch's order is known, or cannot be known: match the reads that waited for it."""
        return [self.observe(*read, others) for read in self.held.release()]

    def match_again(self, opens: Iterable[Open]) -> None:
        """Match reads that were observed before this job began."""
        for opened in opens:
            self._match_unproved(opened.read)

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
        self.held.look_ahead(max(self.ranks.frontiers), self.matcher.lag)
        return self.epochs.let_go(self.ranks.current_epochs()[0])

    # -- judging

    def judge(self, now_s: float) -> list[str]:
        """Update `predicting` from the agreement; in words, what has changed that a person should know."""
        self.ranks.note_rates(now_s)
        if self._look_back_at and self.observed >= self._look_back_at:
            self._look_back()
        for family in self.readers.gone_astray(self.matcher):
            self._disown(family)
        agreement, before = self.score.agreement, self.predicting
        if self.predicting and (self.score.drifting or self.is_set_aside):
            self.predicting = False
        elif not (self.predicting or self.is_set_aside) and (agreement is None or agreement >= RECOVERED):
            # There is none where all reads were another job's.
            self.predicting = True
        said = [str(self.state)] if self.predicting != before else []
        elsewhere = self.findings.began_elsewhere(self.matcher, self.epochs.timeline)
        return [*said, elsewhere] if elsewhere else said

    def may_meet(self, samples: int) -> None:
        """There are so many samples by now, as another job has come."""
        self.member.extend(bytes(max(0, samples - len(self.member))))

    # -- a job that nobody registered

    def comes_into_force(self, alternatives: Sequence[Hypothesis], was_chosen: bool) -> None:
        """It is followed by what it has been shown until now, and only reads from now on may refute it."""
        self.rivals.learn(alternatives, was_chosen)
        self._judged_from = self.score.ever_observed

    @property
    def judged(self) -> int:
        """How many of the last reads speak for or against it."""
        return max(0, min(self.score.ever_observed - self._judged_from, self.score.remembered))

    @property
    def is_refuted(self) -> bool:
        """Whether its last reads refute it: what was read next may be an epoch in another order."""
        last = islice(reversed(self.score.history), min(self.judged, JUDGED_OPENS))
        agrees = [seen.agrees for seen in last]
        return self.inferred and refuted(Fit(len(agrees), sum(agrees)))

    # -- what becomes of a registered one

    def set_aside(self, aside: bool) -> None:
        """Whether its predictions are not to be believed, however few reads there are that speak against them."""
        self.is_set_aside = aside

    def give_up(self) -> None:
        """Predict nothing and look at nothing any more."""
        self.given_up, self.predicting = True, False
        self.member = bytearray(len(self.member))
        self.held.release()

    # -- another hypothesis comes into force, which may be another run of the script

    def propose(self, rival: OtherJob) -> bool:
        """Propose that it is in truth another job. Returns whether that leads already, by what it has seen."""
        self.rivals.propose(rival)
        return self.rivals.rule([rival], self.matcher)

    def follow_leading(self, now_s: float = 0.0) -> JobRun:
        """Put the rival that leads in force, and go on from where its reads are: nothing else replaces a job.

        Returns:
            the job that is followed from now on: this one, the registered one, or another one with its counts.
        """
        leading, job = self.rivals.leading, self
        if leading is None:
            return self
        self.rivals.withdraw(leading)  # several reads of a batch may say that it leads
        if isinstance(leading, OtherJob):
            return leading.replaces(self, now_s)
        if leading.origin is Origin.AS_REGISTERED and self.registered is not None:
            job = self.registered
            job.set_aside(False)
        job.begun_in = job.spec.start_epoch
        if leading.origin is Origin.EPOCH_ANEW:
            job.begun_in = job.epochs.epoch_of(min(leading.firsts().values(), default=job.epochs.timeline.start))
        job._begin_anew(leading.matcher, job.loader.shape_is_learned)
        job.late = LateReads()
        job.bytes_read.begin_anew()
        return job

    def _begin_anew(self, matcher: StreamMatcher, shape_is_learned: bool) -> None:
        """Go on with another matcher. Args: shape_is_learned: whether its shape was learned from the reads so far."""
        self.rivals.withdraw_all()
        self.readers = self.readers.begin_anew()
        self._look_back_at = self._judged_from = 0
        self._before = ()
        matcher.widen_to(self.epochs.at_hand)
        self.matcher, self.predicting = matcher, True
        self.loader = LoaderWatch(
            self.spec, self.streams, self.epochs, matcher, from_start=False, shape_is_learned=shape_is_learned
        )  # fmt: skip
        self.ranks = LocalRanks(self.spec, self.epochs, matcher, self.ranks.silent)
        self.held.look_ahead(max(self.ranks.frontiers), matcher.lag)
        self.evaluation = Evaluation(self.epochs.timeline, self.spec.start_epoch)

    def take_counts(self, other: JobRun, opens: Sequence[Open]) -> None:
        """Go on with the counts of the job that this one replaces, and say what was found out about that one.

        Args: opens: the last reads, which this job has matched already: they count here alone.
        """
        said, way_out = self.hypothesis.sentence, flags_of(self.changes)
        if said:
            self.registered = other.registered or other
            self.same_job.replaces(other.same_job)
        other.matcher.forget(opens)
        # A read in an order that nobody knew then says nothing of the prediction since.
        unknown = epochs_in_unknown_order(other.score.cells) if said else {}
        for (epoch, index), cell in other.score.cells.items():
            rank = other.spec.ranks[index] if index >= 0 else -1
            place = self.spec.ranks.index(rank) if rank in self.spec.ranks else -1
            if epoch not in unknown:
                self.matcher.count(epoch, place, cell.observed, cell.agreed)
        self.late.go_on_from(other.late)
        self.ranks.go_on_from(other.ranks)
        self.bytes_read.go_on_from(other.bytes_read)
        self.findings.go_on_from(other.findings, said, way_out, len(opens), unknown, self.spec.start_epoch)

    # -- a job that goes on in another process

    def noted(self, since: int = 0) -> dict[str, Any]:
        """The counts, findings and readers, as JSON may have them, for the process that follows the job after this one.

        Args: since: the first epoch of which counts are told.
        """
        cells = [cell for cell in self.score.cells.values() if cell.epoch >= since and cell.observed]
        return {
            "opens": [[cell.epoch, cell.rank_index, cell.observed, cell.agreed] for cell in cells],
            "late": [at for at in self.late.by_epoch.items() if at[0] >= since],
            "pfs_bytes": [at for at in self.bytes_read.pfs_by_epoch.items() if at[0] >= since],
            "found": [self.findings.known, self.findings.way_out],
            "loader": [self.matcher.shape, self.matcher.lag],
            "readers": self.matcher.noted(),
        }

    def epochs_noted(self, noted: Sequence[Mapping[str, Any]]) -> set[int]:
        """The epochs that readers are in by what another process has noted."""
        processes, _, begun = noted[-1]["readers"]
        found = {self.epochs.epoch_of(position) for _, _, position in (*processes, *begun)}
        return {epoch for epoch in found if self.spec.start_epoch <= epoch < self.spec.epochs}

    def go_on(self, noted: Sequence[Mapping[str, Any]]) -> None:
        """Follow the readers, and count, from what another process has noted on: nobody follows this job yet.

        Args: noted: of each number the last one counts.
        """
        shape, lag = noted[-1]["loader"]
        loader = LearnedLoader(Shape(*shape), lag)
        if not self.observed:  # else it was found by reads that came since
            if loader != (self.matcher.shape, self.matcher.lag):
                self._begin_anew(self.same_job.expect(self.epochs.at_hand, loader), shape_is_learned=True)
            self.matcher.go_on(*noted[-1]["readers"])
        self._count_on([*{(at[0], at[1]): at for one in noted for at in one["opens"]}.values()])
        self.late.by_epoch.update(dict(at for one in noted for at in one["late"]))
        for epoch, size_bytes in dict(at for one in noted for at in one["pfs_bytes"]).items():
            self.bytes_read.count_pfs(epoch, size_bytes)
        self.findings.were(*noted[-1]["found"])

    def _count_on(self, before: Sequence[Sequence[int]]) -> None:
        self._before = before
        for epoch, rank, opens, agreed in before:
            self.matcher.count(epoch, rank, opens, agreed)

    # -- bytes

    def resized(self, sample: int, more_bytes: int) -> None:
        """A sample has changed its size at the source; a block of a file is none that a job reads."""
        if sample < len(self.member) and self.member[sample]:
            self.bytes_read.resized(more_bytes)


# -- the hypothesis that a job is in truth another one


class OtherJob(Rival):
    """The hypothesis that a job is in truth another one, which has seen the reads that it was found by.

    Args:
        run: the other one. job: the one in force. since: how many reads that one had counted before those.
    """

    def __init__(self, hypothesis: Hypothesis, run: JobRun, job: JobRun, since: int) -> None:
        super().__init__(hypothesis, run.matcher)
        self.run = run
        self._key_of, self._since = job.readers.key_of, since

    def is_about(self, seen: Open | Read) -> bool:
        families = self.hypothesis.families
        return families is None or self._key_of(seen.process, seen.parent) in families

    def read(self, read: Read) -> Match | None:
        return self.run._match_unproved(read).match

    def replaces(self, job: JobRun, now_s: float) -> JobRun:
        """Have it go on in the place of the job, with its counts; and say how that could have been registered so."""
        run, changes = self.run, {**job.changes, **self.hypothesis.changes}
        strangers = [seen for seen in job.score.since(self._since) if not self.is_about(seen)]
        job.leave_out(strangers)
        run.leave_out(strangers)
        run.changes = {name: value for name, value in changes.items() if value is not None}
        run.late.comes_into_force(now_s, run.score.cells)
        run.take_counts(job, list(run.score.history))
        return run


# -- the parts that only a job has: of reads, then of the status

MOST_PROCESSES = 4096
"""Processes that are remembered. Loaders start new workers each epoch; what is forgotten is found out again."""


class SharedSamples:
    """Which job a read belongs to, where several jobs have samples in common.

    In: the process that reads, and what the matchers of all jobs predict. Out: whether the read is surely another
    job's.
    """

    def __init__(self) -> None:
        self._others_processes: set[int] = set()

    def are_read_for_another(self, processes: Iterable[int]) -> bool:
        """Whether some of these processes read samples of this job for another one."""
        return not self._others_processes.isdisjoint(processes)

    def read(self, process: int, own: StreamMatcher, others: Iterable[StreamMatcher]) -> bool:
        """A process reads: whether another job predicts what it reads, and this one does not.

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


class LateReads:
    """Reads of a job that came before the job was in force, by epoch.

    In: when the job came into force, what it had been shown by then, when the reads came that it counts later. Out: how
    many of the reads that it counts came too early to be fetched ahead by its order.

    A job that is found by its reads is shown these, and they count as predicted in its agreement, as they come in its
    order. Some more of them wait in the engine's queue when the job comes into force.

    Attributes:
        by_epoch: as far as is known.
    """

    def __init__(self) -> None:
        self.by_epoch: Counter[int] = Counter()
        self._in_force_s = -math.inf

    def comes_into_force(self, now_s: float, cells: Mapping[tuple[int, int], Cell]) -> None:
        """From now on reads are fetched ahead. Args: cells: counts, by epoch and rank, of what the job was shown."""
        self._in_force_s = now_s
        for (epoch, _), cell in cells.items():
            if cell.observed:
                self.by_epoch[epoch] += cell.observed

    def read(self, times: Sequence[float], position: int, epochs: EpochsAtHand) -> None:
        """Reads were matched to positions of an epoch, in the order of time, the first of them to that one. Reads that
        are only matched anew have no time: they were counted.
        """
        if times[0] < self._in_force_s and (late := sum(UNTIMED != at_s < self._in_force_s for at_s in times)):
            self.by_epoch[epochs.epoch_of(position)] += late

    def go_on_from(self, before: LateReads) -> None:
        """Add what another job had, in whose place this one came."""
        self.by_epoch += before.by_epoch


class BytesRead:
    """How many bytes a job reads: in an epoch here, and from the PFS.

    In: the first epoch's order and the sizes, bytes that came from the PFS, samples that change their size. Out:
    numbers for the status.

    Args:
        sizes: bytes by sample.

    Attributes:
        stream_bytes: of one epoch's streams of the local ranks; 0 before an order is at hand.
        deviation_bytes: how far sizes differ in them, as a standard deviation.
        pfs_by_epoch: what came from the PFS for each epoch.
    """

    def __init__(self, spec: JobSpec, sizes: Ids) -> None:
        self.stream_bytes = 0
        self.deviation_bytes = 0.0
        self.pfs_by_epoch: dict[int, int] = {}
        self._here_of_world = len(spec.ranks), spec.world_size
        self._sizes = sizes

    def epoch_added(self, index: EpochIndex) -> None:
        """An epoch's order is at hand: the first one tells how many bytes an epoch has."""
        if self.stream_bytes:
            return
        count, squares = 0, 0.0
        for ids in index.ids:
            sizes = self._sizes[ids[ids >= 0]]
            count += len(sizes)
            self.stream_bytes += int(sizes.sum())
            squares += float(np.square(sizes, dtype=np.float64).sum())
        variance = squares / max(1, count) - (self.stream_bytes / max(1, count)) ** 2
        self.deviation_bytes = math.sqrt(max(0.0, variance))

    def resized(self, more_bytes: int) -> None:
        """A sample of the job has grown at the source, or shrunk. The ranks here read their share of it."""
        here, world = self._here_of_world
        if self.stream_bytes:
            self.stream_bytes += more_bytes * here // world

    def count_pfs(self, epoch: int, size_bytes: int) -> None:
        """Bytes came from the PFS for an epoch."""
        by_epoch = self.pfs_by_epoch
        by_epoch[epoch] = by_epoch[epoch] + size_bytes if epoch in by_epoch else size_bytes

    def begin_anew(self) -> None:
        """Another run of the script reads."""
        self.pfs_by_epoch = {}

    def go_on_from(self, before: BytesRead) -> None:
        """Take over what was read from the PFS for the job that this one replaces."""
        self.pfs_by_epoch = dict(before.pfs_by_epoch)
