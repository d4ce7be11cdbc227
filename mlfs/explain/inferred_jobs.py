"""The jobs that nobody registered and the reads have shown: put in force, watched, and replaced by what explains more.

In: hypotheses, the best first, and the reads that they explain. Out: jobs in the engine. Used by
`mlfs.explain.inference`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from mlfs.errors import JobError
from mlfs.explain.attempt import POOL
from mlfs.explain.chance import FEWEST_FITTING, borne_out
from mlfs.explain.confirm import Finding
from mlfs.explain.fields import JOB_NAME
from mlfs.explain.first_reads import FirstReads
from mlfs.explain.port import Jobs, load_epochs
from mlfs.explain.screen import EpochPlaces, columns, screen
from mlfs.explain.search_stages import COMMON_SEEDS
from mlfs.follow.evidence import JUDGED_OPENS, Read
from mlfs.follow.families import Family, FamilyState
from mlfs.follow.hypothesis import Hypothesis
from mlfs.follow.job import JobRun
from mlfs.follow.sentences import in_words
from mlfs.follow.shape import worker_and_turn
from mlfs.job import JobSpec
from mlfs.job.parse import COMPOSED
from mlfs.orders.streams import JobStreams

# -- one that is in force

# Each generator that is tried further costs a search seconds.
MOST_GENERATORS = 6


def unfit_reads(job: JobRun) -> FirstReads:
    """The reads since the last twelve in a row that came as a job says.

    In the beginning of an epoch all of its first twelve: one of another epoch may lie by chance where this one begins,
    and no search finds one without its first read. So may the first read of a process, or one a little ahead: it counts
    once the process goes on from there.
    """
    history, in_a_row = job.score.history, 0
    begun = len(history) - job.judged
    epoch, of_epoch = -1, JUDGED_OPENS
    shape, base = job.matcher.shape, job.epochs.timeline.base
    turns, in_doubt = dict[int, int](), dict[int, int]()  # by process
    for at, seen in enumerate(history):
        in_a_row = in_a_row + 1 if seen.agrees else 0
        turn = worker_and_turn(shape, seen.position - base(seen.cell.epoch))[1]
        if turn - turns.get(seen.process, turn) == 1:
            in_doubt.pop(seen.process, None)
        else:
            in_doubt[seen.process] = at
        turns[seen.process] = turn
        if in_a_row < min(JUDGED_OPENS, at + 1):
            continue
        if seen.cell.epoch > epoch:
            begun, epoch, of_epoch = max(begun, at), seen.cell.epoch, 0 if epoch >= 0 else JUDGED_OPENS
        of_epoch += 1
        if of_epoch > JUDGED_OPENS:
            begun = max(begun, at + 1 - JUDGED_OPENS, min(in_doubt.values(), default=at + 1))
    reads = FirstReads()
    for seen in job.matcher.opens(begun):
        reads.add(seen.sample, seen.process, seen.parent)
    return reads


def last_fitting(job: JobRun) -> int:
    """The last epoch that was read as explained; -1 if there is none."""
    cells = job.score.cells.items()
    fitting = [epoch for (epoch, _), cell in cells if cell.agreed >= FEWEST_FITTING and 2 * cell.agreed > cell.observed]
    return max(fitting, default=-1)


def last_epoch(job: JobRun) -> int:
    """The same, or where the reader is if there is none."""
    fitting = last_fitting(job)
    return job.ranks.current_epochs()[1] if fitting < 0 else fitting


def is_decided(job: JobRun) -> bool:
    """Whether a second epoch has come as explained, or its first reads have chosen this hypothesis."""
    return job.rivals.was_chosen or last_epoch(job) > job.spec.start_epoch


def fitted_by_chance(job: JobRun) -> bool:
    """Whether it explained its first reads and hardly any of those since: no alternative is right either."""
    first = job.spec.start_epoch
    half_read_at = job.epochs.timeline.base(first + 1) - job.streams.length(first) // 2
    lost_early = last_epoch(job) == first and max(job.ranks.frontiers) < half_read_at
    return not is_decided(job) and (lost_early or not borne_out(job.score.history))


def walks(job: JobRun) -> bool:
    """Whether it is explained by the order of the files, which is also that of the directories."""
    return job.spec.sampler == "sequential"


def is_drawn(job: JobRun) -> bool:
    """Whether torch's default generator may have drawn the seed, as no person would choose it."""
    spec = job.spec
    large = spec.sampler == "torch-distributed" and spec.world_size == 1 and spec.seed >= COMMON_SEEDS
    return large or any(_goes_on_by_default(other.spec) for other in job.rivals.alternatives)


def generators(job: JobRun) -> tuple[int, ...]:
    """Seeds of the default generator that may be right, the likeliest first: the right one goes on."""
    return tuple(dict.fromkeys(spec.seed for spec in drawings(job)))[:MOST_GENERATORS]


def drawings(job: JobRun) -> list[JobSpec]:
    """Jobs by the default generator: the one in force if further epochs have borne it out, else all alternatives."""
    borne_out_by_another_epoch = last_epoch(job) > job.spec.start_epoch
    likely = [job.hypothesis] if borne_out_by_another_epoch else [job.hypothesis, *job.rivals.alternatives]
    return [hypothesis.spec for hypothesis in likely if _goes_on_by_default(hypothesis.spec)]


def _goes_on_by_default(spec: JobSpec) -> bool:
    """Whether torch's default generator draws, and goes on from epoch to epoch."""
    return spec.generator == "default" and spec.sampler != COMPOSED


# -- all of them


log = logging.getLogger("mlfs.explain")

# A script reads a data set to train with and one to validate with; more than twice as many are no script of a kind
# that is understood.
MOST_JOBS = 4

MakeStreams = Callable[[JobSpec], JobStreams]
Reads = Callable[[], FirstReads]
"""The reads of some processes, those included that come until it is called."""


class InferredJobs:
    """Puts jobs in force that reads have shown, and says which reads are none of theirs.

    Attributes:
        in_force: by name. It is made anew when a job comes or goes.
    """

    def __init__(self, jobs: Jobs, make_streams: MakeStreams) -> None:
        self.in_force: dict[str, JobRun] = {}
        self._jobs = jobs
        self._make_streams = make_streams

    # -- those in force

    def reading(self, entry: int) -> list[JobRun]:
        return [job for job in self.in_force.values() if job.member[entry]]

    def of(self, read: Read) -> JobRun | None:
        """The job for which a process reads a file; None where it is a stranger to all."""
        found = None
        for job in self.in_force.values():
            if job.member[read.sample]:
                if read.process in job.readers.proved:
                    return job
                if found is None and job.readers.kept_apart(read.process, read.parent) is None:
                    found = job
        return found

    def _apart(self, entry: int, process: int, parent: int) -> Iterator[Family]:
        """The process's family, as the jobs that read this file have it, if they keep its reads apart."""
        families = (job.readers.kept_apart(process, parent) for job in self.reading(entry))
        return (family for family in families if family is not None)

    def is_plain_stranger(self, entry: int, process: int, parent: int) -> bool:
        """Whether the process walks the directories beside a job that reads them: `cp -r` is no other job."""
        return any(family.order.is_plain for family in self._apart(entry, process, parent))

    def is_on_trial(self, entry: int, process: int, parent: int) -> bool:
        """Whether a job reads this file to which the process may yet prove to belong: the worker of another rank."""
        return any(family.state is FamilyState.ON_TRIAL for family in self._apart(entry, process, parent))

    def shuffles(self, entry: int) -> bool:
        """Whether a job reads this file that does not walk the directories."""
        return any(not walks(job) for job in self.reading(entry))

    def end_walks(self) -> None:
        """End jobs that follow a walk over files that another job reads: nobody else was known when they began."""
        for name, job in list(self.in_force.items()):
            entries, proved = job.streams.sample_ids, job.readers.proved
            others = [other for other in self.reading(int(entries.flat[0])) if not walks(other)] if entries.size else []
            if walks(job) and any(proved.keys().isdisjoint(other.readers.proved) for other in others):
                self._jobs.end(name)

    def but_explained(self, reads: FirstReads, by: FirstReads) -> FirstReads:
        """The reads of those processes that read for none of the jobs.

        Args:
            by: reads by which the last job was found, and which it has been shown.
        """

        def is_explained(process: int) -> bool:
            known = reads.processes[process]
            inside = self.reading(known.first[0])
            kept_apart = all(job.readers.kept_apart(process, known.parent) for job in inside)
            return process in by.processes and not kept_apart

        return reads.of(lambda process: not is_explained(process))

    @property
    def full(self) -> bool:
        return len(self.in_force) >= MOST_JOBS

    def jobs_changed(self) -> None:
        self.in_force = {name: job for name, job in self._jobs.jobs.items() if job.inferred}

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

    async def learn_more(self, job: JobRun, ranked: Sequence[Hypothesis]) -> bool:
        """Take note of where the seed was drawn: the epochs after the first one may have another order.

        Returns whether the job was replaced by one that goes on in that order.
        """
        spec = job.hypothesis.spec
        if "batch_size" in spec.model_fields_set:
            batch = {"batch_size": spec.batch_size}
            ranked = [replace(other, spec=other.spec.model_copy(update=batch)) for other in ranked]
        if spec.sampler == "accelerate":  # whose processes read says more than who may have drawn the seed
            ranked = [job.hypothesis, *ranked]
        job.rivals.learn(ranked)
        if job.ranks.current_epochs()[1] > 0 or not ranked or ranked[0].spec == spec:
            return False  # the first reads of the next epoch choose
        streams = await self._jobs.runner.run(POOL, self._streams_of, ranked[0].spec)
        if streams is None or job not in self.in_force.values():
            return False
        low = min(progress.frontier for progress in job.matcher.ranks)
        begin = Begin(0, low // max(1, job.spec.batch_size))
        await self._follow(ranked[0], ranked, streams, begin, FirstReads, name=job.name)
        return True

    def with_seed_of(self, finding: Finding) -> JobRun | None:
        """The job that was installed for the finding, before it was known where its seed was drawn."""
        for job in self.in_force.values():  # the generator in force may have another one: it drew this one
            specs = [other.spec for other in (job.hypothesis, *job.rivals.alternatives)]
            if any("seed" in spec.model_fields_set and spec.seed == finding.seed for spec in specs):
                return job
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
        job = JobRun(spec, streams, self._jobs.manifest.sample_sizes, hypothesis, name_of=self._jobs.name_of)
        await load_epochs(self._jobs.runner, job, most=1)
        for read in reads().recent:
            if job.member[read.sample] and job.observe(*read).another_leads:
                job.follow_leading()
        job.comes_into_force(ranked, was_chosen)
        await self._jobs.install(job)


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
    if max(totals) <= len(recent) or not recent:
        return Begin(epoch, 0)
    a_pass = max(1, streams.length(epoch) * len(streams.spec.ranks))
    guesses = [epoch + total // a_pass for total in totals]
    likely = {tried for guess in guesses for tried in range(max(epoch, guess - _EPOCHS_BEFORE), guess + 2)}
    entries, processes = columns(recent)
    n_entries = 1 + int(max(entries.max(), streams.sample_ids.max()))
    best, best_share = Begin(epoch, 0), -1.0
    for tried in sorted(likely):
        of_ranks = [streams.epoch_ids(tried, rank) for rank in streams.spec.ranks]
        hits = screen(EpochPlaces.of(of_ranks, n_entries), entries, processes)
        if hits.share > best_share:
            best, best_share = Begin(tried, hits.first // max(1, streams.spec.batch_size)), hits.share
    return best
