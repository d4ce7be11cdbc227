"""The jobs that nobody registered and the reads have shown: put in force, watched, and replaced by what explains more.

In: hypotheses, the best first, and the reads that they explain. Out: jobs in the engine. Used by
`mlfs.explain.inference`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from mlfs.errors import JobError
from mlfs.explain.confirm import Finding
from mlfs.explain.evidence import FEWEST_FITTING, borne_out
from mlfs.explain.fields import JOB_NAME, in_words
from mlfs.explain.first_reads import FirstReads, Read
from mlfs.explain.port import Jobs, load_epochs
from mlfs.explain.question import places_of
from mlfs.explain.search_stages import COMMON_SEEDS
from mlfs.follow import evidence
from mlfs.follow.evidence import JUDGED_OPENS
from mlfs.follow.families import State
from mlfs.follow.hypothesis import Fit, Hypothesis, refuted
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.follow.score import REMEMBERED_OPENS
from mlfs.job import JobSpec
from mlfs.job.parse import COMPOSED
from mlfs.orders.streams import JobStreams

# -- one that is in force: do the reads still come as explained?

# Each generator that is tried further costs a search seconds.
MOST_GENERATORS = 6


class InferredJob:
    """One inferred job: the hypothesis in force, its rivals, and how well it does.

    Args:
        was_chosen: whether the first reads of an epoch have chosen this hypothesis from several.

    Attributes:
        hypothesis: the one in force. ranked: all that explain what was read first, this one included, best first.
        unfit: the reads since the last twelve in a row that came as explained. In the beginning of an epoch all of its
            first twelve: one of another epoch may lie by chance where this one begins, and no search finds one without
            its first read.
    """

    def __init__(
        self, job: JobRun, hypothesis: Hypothesis, ranked: Sequence[Hypothesis], was_chosen: bool = False
    ) -> None:
        self.job = job
        self.hypothesis = hypothesis
        self.ranked = ranked
        self.unfit = FirstReads()
        self._was_chosen = was_chosen
        self._counted = job.score.observed
        self._unseen: deque[Open] = deque(maxlen=REMEMBERED_OPENS)  # counted by the job, and not come here yet
        self._judged: deque[bool] = deque(maxlen=JUDGED_OPENS)
        self._first = job.spec.start_epoch
        self._epoch, self._opens_of_epoch = self._first, JUDGED_OPENS  # the last one that has begun
        self._half_read_at = job.epochs.timeline.base(self._first + 1) - job.streams.length(self._first) // 2

    def follow_all(self, opens: Sequence[evidence.Read]) -> bool:
        """Take note of opens if all came as explained, as in the middle of an epoch. Returns whether they did.

        The job has counted these opens and no others since it was looked at last, all of them as predicted.
        """
        score, count = self.job.score, len(opens)
        if score.observed - self._counted != count or self._unseen or self._opens_of_epoch <= JUDGED_OPENS:
            return False
        if self.job.evaluation.may_come or not all(self._judged) or len(score.history) < count:
            return False
        own, counted = self.job.readers.own, list(islice(reversed(score.history), count))
        for seen, (entry, process, _, _) in zip(reversed(counted), opens, strict=True):
            if seen.entry != entry or seen.process != process or not seen.agrees or process not in own:
                return False
        if counted and counted[0].cell.epoch != self._epoch:
            return False
        self._counted = score.observed
        self._judged.extend([True] * min(count, JUDGED_OPENS))
        self._opens_of_epoch += count
        if self.unfit.total:
            self.unfit = FirstReads()
        return True

    def follow(self, entry: int, process: int, parent: int) -> bool:
        """Take note of an open; True when it refutes the explanation."""
        evaluation = self.job.evaluation
        if evaluation.may_come and evaluation.is_by(process):
            self.unfit = FirstReads()
            return False
        opens = self._counts_of(entry, process)
        self._judged.extend([seen.agrees for seen in opens])
        if opens and all(self._judged):
            if opens[-1].cell.epoch > self._epoch:
                self._epoch, self._opens_of_epoch = opens[-1].cell.epoch, 0
                self.unfit = FirstReads()
            self._opens_of_epoch += len(opens)
            if self._opens_of_epoch > JUDGED_OPENS:
                if self.unfit.total:
                    self.unfit = FirstReads()
                return False
        self.unfit.add(entry, process, parent)
        return refuted(Fit(len(self._judged), sum(self._judged)))

    def _counts_of(self, entry: int, process: int) -> list[Open]:
        """How the job has counted this open, and those before it that did not come here.

        The job has counted a whole batch of opens when the first of them comes here. None: the open is held back, while
        the order of an epoch is being computed. Several: others were held back until now.
        """
        score = self.job.score
        # How earlier opens were counted may have changed since: so the sum of those that agreed tells nothing.
        counted, self._counted = score.observed - self._counted, score.observed
        if counted:
            self._unseen.extend(score.history[at] for at in range(-min(counted, len(score.history)), 0))
        for at, seen in enumerate(self._unseen):
            if seen.entry == entry and seen.process == process:
                return [self._unseen.popleft() for _ in range(at + 1)]
        return []

    def learn(self, ranked: Sequence[Hypothesis]) -> None:
        """More became known of where the seed was drawn: these explain what was read first, best first."""
        self.ranked = ranked

    @property
    def last_epoch(self) -> int:
        """The last epoch that was read as explained, or where the reader is if there is none."""
        cells = self.job.score.cells.items()
        fitting = [
            epoch for (epoch, _), cell in cells if cell.agreed >= FEWEST_FITTING and 2 * cell.agreed > cell.observed
        ]
        return max(fitting, default=self.job.ranks.current_epochs()[1])

    @property
    def decided(self) -> bool:
        """Whether a second epoch has come as explained, or its first reads have chosen this explanation."""
        return self._was_chosen or self.last_epoch > self._first

    @property
    def fitted_by_chance(self) -> bool:
        """Whether it explained its first reads and hardly any of those since: none of its rivals is right either."""
        job = self.job
        lost_early = self.last_epoch == self._first and max(job.ranks.frontiers) < self._half_read_at
        return not self.decided and (lost_early or not borne_out(job.score.history))

    @property
    def walks(self) -> bool:
        """Whether it is explained by the order of the files, which is also that of the directories."""
        return self.job.spec.sampler == "sequential"

    @property
    def other_explanations(self) -> int:
        """How many other hypotheses explain what was read."""
        return 0 if self.decided else max(0, len(self.ranked) - 1)

    @property
    def drawn(self) -> bool:
        """Whether torch's default generator may have drawn the seed, as no person would choose it."""
        spec = self.job.spec
        large = spec.sampler == "torch-distributed" and spec.world_size == 1 and spec.seed >= COMMON_SEEDS
        return large or any(_goes_on_by_default(other.spec) for other in self.ranked)

    @property
    def generators(self) -> tuple[int, ...]:
        """Seeds of the default generator that may be right, the likeliest first: the right one goes on."""
        return tuple(dict.fromkeys(spec.seed for spec in self.drawings))[:MOST_GENERATORS]

    @property
    def drawings(self) -> list[JobSpec]:
        """Jobs by the default generator: the one in force if further epochs have borne it out, else its rivals too."""
        borne_out_by_another_epoch = self.last_epoch > self._first
        likely = [self.hypothesis] if borne_out_by_another_epoch else [self.hypothesis, *self.ranked]
        return [hypothesis.spec for hypothesis in likely if _goes_on_by_default(hypothesis.spec)]


def _goes_on_by_default(spec: JobSpec) -> bool:
    """Whether torch's default generator draws, and goes on from epoch to epoch."""
    return spec.generator == "default" and spec.sampler != COMPOSED


# -- all of them


log = logging.getLogger("mlfs.explain")

POOL = "infer"
# A script reads a data set to train with and one to validate with; more than twice as many are no script of a kind
# that is understood.
MOST_JOBS = 4

MakeStreams = Callable[[JobSpec], JobStreams]
Reads = Callable[[], FirstReads]
"""The reads of some processes, those included that come until it is called."""


class InferredJobs:
    """Puts jobs in force that reads have shown, watches them, and replaces them by what explains more.

    Attributes:
        in_force: by name.
    """

    def __init__(self, jobs: Jobs, make_streams: MakeStreams) -> None:
        self.in_force: dict[str, InferredJob] = {}
        self._jobs = jobs
        self._make_streams = make_streams

    # -- those in force

    def reading(self, entry: int) -> list[InferredJob]:
        """The jobs that read this file."""
        return [inferred for inferred in self.in_force.values() if inferred.job.member[entry]]

    def follow_all(self, opens: Sequence[evidence.Read]) -> bool:
        """Have the only job in force take note of opens, if all of them came as it says. Returns whether it did."""
        return len(self.in_force) == 1 and next(iter(self.in_force.values())).follow_all(opens)

    def of(self, entry: int, process: int, parent: int) -> InferredJob | None:
        """The job for which the process reads this file; None where it is a stranger to all."""
        found = None
        for inferred in self.in_force.values():
            readers = inferred.job.readers
            if inferred.job.member[entry] and readers.kept_apart(process, parent) is None:
                if process in readers.own:
                    return inferred
                found = found or inferred
        return found

    def is_plain_stranger(self, entry: int, process: int, parent: int) -> bool:
        """Whether the process walks the directories beside a job that reads them: `cp -r` is no other job."""
        apart = (inferred.job.readers.kept_apart(process, parent) for inferred in self.reading(entry))
        return any(family is not None and family.order.is_plain for family in apart)

    def is_on_trial(self, entry: int, process: int, parent: int) -> bool:
        """Whether a job reads this file to which the process may yet prove to belong: the worker of another rank."""
        apart = (inferred.job.readers.kept_apart(process, parent) for inferred in self.reading(entry))
        return any(family is not None and family.state is State.ON_TRIAL for family in apart)

    def shuffles(self, entry: int) -> bool:
        """Whether a job reads this file that does not walk the directories."""
        return any(not inferred.walks for inferred in self.reading(entry))

    def end_walks(self) -> None:
        """End jobs that follow a walk over files that another job reads: nobody else was known when they began."""
        for name, inferred in list(self.in_force.items()):
            entries = inferred.job.streams.sample_ids
            own = inferred.job.readers.own
            others = [other for other in self.reading(int(entries.flat[0])) if not other.walks] if entries.size else []
            if inferred.walks and any(own.keys().isdisjoint(other.job.readers.own) for other in others):
                self._jobs.end(name)

    def but_explained(self, reads: FirstReads, by: FirstReads) -> FirstReads:
        """The reads of those processes that read for none of the jobs.

        Args:
            by: reads by which the last job was found, and which it has been shown.
        """

        def is_explained(process: int) -> bool:
            known = reads.processes[process]
            inside = self.reading(known.first[0])
            kept_apart = all(one.job.readers.kept_apart(process, known.parent) for one in inside)
            return process in by.processes and not kept_apart

        return reads.of(lambda process: not is_explained(process))

    @property
    def full(self) -> bool:
        """Whether there are as many as there may be."""
        return len(self.in_force) >= MOST_JOBS

    @property
    def decided(self) -> bool:
        """Whether there are any, and of none it is open by which hypothesis it goes on."""
        return bool(self.in_force) and all(inferred.decided for inferred in self.in_force.values())

    def jobs_changed(self) -> None:
        """Forget those that are no more."""
        jobs = self._jobs.jobs
        self.in_force = {name: inferred for name, inferred in self.in_force.items() if jobs.get(name) is inferred.job}

    def end_all(self) -> None:
        """End all inferred jobs, as somebody has registered one."""
        for name in list(self.in_force):
            self._jobs.end(name)

    @property
    def explanation(self) -> str:
        """The explanation of the reads in words; "" while there is none."""
        return "; ".join(in_words(inferred.hypothesis.spec) for inferred in self.in_force.values())

    @property
    def other_explanations(self) -> int:
        """How many other hypotheses explain them as well, of the job that has most of them."""
        return max((inferred.other_explanations for inferred in self.in_force.values()), default=0)

    # -- another one

    async def install(
        self, ranked: Sequence[Hypothesis], reads: Reads, epoch: int = 0, chosen_from: Sequence[Hypothesis] = ()
    ) -> bool:
        """Put the first hypothesis in force that makes a job, where its readers are. Nobody has registered another one:
        so it is enough that the reads are no chance, and those to come may refute it.

        Args:
            epoch: whose beginning is explained. chosen_from: the rivals from which the reads have chosen this one;
                none: the other ones of `ranked` are rivals, and the next epoch's reads will choose.
        """
        for hypothesis in ranked:
            seen = reads()
            made = await self._jobs.runner.run(POOL, self._streams_from, hypothesis, epoch, seen)
            if made is not None:
                await self._follow(hypothesis, chosen_from or ranked, *made, reads, was_chosen=bool(chosen_from))
                return True
        return False

    async def learn_more(self, inferred: InferredJob, ranked: Sequence[Hypothesis]) -> bool:
        """Take note of where the seed was drawn: the epochs after the first one may have another order.

        Returns whether the job was replaced by one that goes on in that order.
        """
        if "batch_size" in inferred.hypothesis.spec.model_fields_set:
            batch = {"batch_size": inferred.hypothesis.spec.batch_size}
            ranked = [replace(other, spec=other.spec.model_copy(update=batch)) for other in ranked]
        inferred.learn(ranked)
        if inferred.job.ranks.current_epochs()[1] > 0 or not ranked or ranked[0].spec == inferred.hypothesis.spec:
            return False  # the first reads of the next epoch choose
        streams = await self._jobs.runner.run(POOL, self._streams_of, ranked[0].spec)
        if streams is None or inferred not in self.in_force.values():
            return False
        low = min(progress.frontier for progress in inferred.job.matcher.ranks)
        begin = Begin(0, low // max(1, inferred.job.spec.batch_size))
        await self._follow(ranked[0], ranked, streams, begin, FirstReads, name=inferred.job.name)
        return True

    def with_seed_of(self, finding: Finding) -> InferredJob | None:
        """The job that was installed for the finding, before it was known where its seed was drawn."""
        for inferred in self.in_force.values():  # the generator in force may have another one: it drew this one
            specs = [other.spec for other in (inferred.hypothesis, *inferred.ranked)]
            if any("seed" in spec.model_fields_set and spec.seed == finding.seed for spec in specs):
                return inferred
        return None

    def _streams_of(self, spec: JobSpec) -> JobStreams | None:
        """A worker thread's work. None for what is no job after all."""
        try:
            return self._make_streams(spec)
        except JobError as error:
            log.info("not usable: %s: %s", in_words(spec), error)
            return None

    def _streams_from(self, hypothesis: Hypothesis, epoch: int, seen: FirstReads) -> tuple[JobStreams, Begin] | None:
        """A worker thread's work: the streams, and where in an epoch the readers are. None for what is no job."""
        streams = hypothesis.streams or self._streams_of(hypothesis.spec)
        if streams is None:
            return None
        return streams, where(streams, epoch, list(seen.recent), (seen.total, seen.opened))

    async def _follow(
        self,
        hypothesis: Hypothesis,
        ranked: Sequence[Hypothesis],
        streams: JobStreams,
        begin: Begin,
        reads: Reads,
        name: str = "",
        was_chosen: bool = False,
    ) -> None:
        """Make a job that begins where the readers are, show it the reads that were seen, and have it followed."""
        names = (JOB_NAME, *(f"{JOB_NAME}-{number}" for number in range(2, MOST_JOBS + 1)))
        name = name or next(name for name in names if name not in self.in_force)
        begins = {"name": name, "start_epoch": begin.epoch, "start_step": begin.step}
        spec = streams.spec.model_copy(update=begins)
        streams = JobStreams(spec, streams.sample_ids, streams.order)
        job = JobRun(spec, streams, self._jobs.manifest.sample_sizes, inferred=True, name_of=self._jobs.name_of)
        await load_epochs(self._jobs.runner, job, most=1)
        for read in reads().recent:
            if job.member[read.entry] and job.observe(*read).another_leads:
                job.follow_leading()
        await self._jobs.install(job)
        self.in_force[name] = InferredJob(job, hypothesis, ranked, was_chosen)
        log.info("inferred from the reads: %s", in_words(hypothesis.spec))


# -- where in a known order the readers are

# How many epochs before the one that the number of reads suggests are tried: files read twice, and other reads, make
# that number too large.
_EPOCHS_BEFORE = 3


class Begin(NamedTuple):
    """The place from which a job is followed."""

    epoch: int
    step: int


def where(streams: JobStreams, epoch: int, recent: Sequence[Read], totals: tuple[int, int]) -> Begin:
    """Find the oldest of the recent reads in the streams. It is the epoch's beginning if no reads came before them.

    Args:
        epoch: the one whose beginning was explained.
        totals: how many reads there were since, where a file that is opened again at once counts once, and where each
            open counts: a sampler may repeat its samples, and a script may open each file twice.
    """
    if max(totals) <= len(recent):
        return Begin(epoch, 0)
    a_pass = max(1, streams.length(epoch) * len(streams.spec.ranks))
    guesses = [epoch + total // a_pass for total in totals]
    likely = {tried for guess in guesses for tried in range(max(epoch, guess - _EPOCHS_BEFORE), guess + 2)}
    best, best_share = Begin(epoch, 0), -1.0
    for tried in sorted(likely):
        share, lowest = _following(streams, tried, recent)
        if share > best_share:
            best, best_share = Begin(tried, lowest // max(1, streams.spec.batch_size)), share
    return best


def _following(streams: JobStreams, epoch: int, recent: Sequence[Read]) -> tuple[float, int]:
    """The share of reads that come right behind the last one of their process, and the lowest position of those."""
    entries = {read.entry for read in recent}
    following, lowest, spec = 0, streams.length(epoch), streams.spec
    apart = spec.num_workers or 1 if spec.batch_size == 1 else 1  # workers take single samples in turn
    last: dict[tuple[int, int], int] = {}
    positions = [places_of(streams.epoch_ids(epoch, rank), entries) for rank in streams.spec.ranks]
    for entry, pid, _ in recent:
        for rank, position_of in enumerate(positions):
            at = position_of.get(entry)
            if at is None:
                continue
            if last.get((pid, rank), -apart - 1) == at - apart:
                following += 1
                lowest = min(lowest, at - apart)
            last[pid, rank] = at
    return following / len(recent), lowest
