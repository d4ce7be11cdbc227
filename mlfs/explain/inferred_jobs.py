"""The jobs that nobody registered and the reads told: installed, watched, and replaced by what explains more.

In: explanations, the best first, and the reads that they explain. Out: jobs in the engine. Used by
`mlfs.explain.inference`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.choice import chosen
from mlfs.explain.confirm import Finding
from mlfs.explain.data_sets import as_indices
from mlfs.explain.explanations import in_words
from mlfs.explain.fields import JOB_NAME, Fields
from mlfs.explain.first_reads import FirstReads, Read
from mlfs.explain.going_on import goes_on
from mlfs.explain.inferred_job import InferredJob
from mlfs.explain.port import Jobs
from mlfs.explain.prepare import prepare
from mlfs.explain.resume import Begin, where
from mlfs.follow.job import JobRun
from mlfs.follow.shape import LearnedLoader
from mlfs.job import JobSpec, parse_job
from mlfs.orders.streams import JobStreams

log = logging.getLogger("mlfs.explain")

POOL = "infer"
# A script reads a data set to train with and one to validate with; more than twice as many are no script of a kind
# that is understood.
MOST_JOBS = 4

MakeStreams = Callable[[JobSpec], JobStreams]


class Expected(NamedTuple):
    """A job after whose first epoch the script validates.

    Attributes:
        persistent: whether workers of that epoch live on.
    """

    inferred: InferredJob
    persistent: bool


class InferredJobs:
    """See the module.

    Attributes:
        in_use: by name.
    """

    def __init__(self, jobs: Jobs, make_streams: MakeStreams) -> None:
        self.in_use: dict[str, InferredJob] = {}
        self._jobs = jobs
        self._make_streams = make_streams

    # -- those in use

    def reading(self, entry: int) -> list[InferredJob]:
        """The jobs that read this file."""
        return [inferred for inferred in self.in_use.values() if inferred.job.member[entry]]

    def of(self, entry: int, process: int, parent: int) -> InferredJob | None:
        """The job for which the process reads this file; None where it is a stranger to all."""
        found = None
        for inferred in self.in_use.values():
            readers = inferred.job.readers
            if inferred.job.member[entry] and not readers.is_apart(process, parent):
                if process in readers.own:
                    return inferred
                found = found or inferred
        return found

    def is_plain_stranger(self, entry: int, process: int, parent: int) -> bool:
        """Whether the process walks the directories beside a job that reads them: `cp -r` is no other job."""
        return any(inferred.job.readers.walks(process, parent) for inferred in self.reading(entry))

    def is_on_trial(self, entry: int, process: int, parent: int) -> bool:
        """Whether a job reads this file to which the process may yet prove to belong: the worker of another rank."""
        return any(inferred.job.readers.is_on_trial(process, parent) for inferred in self.reading(entry))

    def shuffles(self, entry: int) -> bool:
        """Whether a job reads this file that does not walk the directories."""
        return any(not inferred.walks for inferred in self.reading(entry))

    def end_walks(self) -> None:
        """Who walked the directories while nobody else was known, and read what another job reads, is no job."""
        for name, inferred in list(self.in_use.items()):
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
            inside = self.reading(reads.firsts[process][0])
            kept_apart = all(one.job.readers.is_apart(process, reads.parents[process]) for one in inside)
            return process in by.firsts and not kept_apart

        return reads.of(lambda process: not is_explained(process))

    def before_validation(self, entry: int, process: int, parent: int) -> Expected | None:
        """A job whose first epoch has ended and whose script begins to read other files.

        Workers that live on after their epoch are there for the next one; a process that validates and trains is none.
        """
        for inferred in self.in_use.values():
            if inferred.job.member[entry] or not inferred.reads_others_next(process, parent):
                continue
            own = inferred.job.readers.own
            workers = () if process in own else own
            return Expected(inferred, any(self._jobs.name_of(other) for other in workers if other != parent))
        return None

    @property
    def full(self) -> bool:
        """Whether there are as many as there may be."""
        return len(self.in_use) >= MOST_JOBS

    @property
    def decided(self) -> bool:
        """Whether there are any, and of none it is open by which explanation it goes on."""
        return bool(self.in_use) and all(inferred.decided for inferred in self.in_use.values())

    def jobs_changed(self) -> None:
        """Forget those that are no more."""
        jobs = self._jobs.jobs
        self.in_use = {name: inferred for name, inferred in self.in_use.items() if jobs.get(name) is inferred.job}

    def end_all(self) -> None:
        """Somebody has registered a job: no more guessing."""
        for name in list(self.in_use):
            self._jobs.end(name)

    @property
    def explanation(self) -> str:
        """What explains the reads, in words; "" while nothing does."""
        return "; ".join(in_words(inferred.fields) for inferred in self.in_use.values())

    @property
    def other_explanations(self) -> int:
        """How many others explain them as well, of the job that has most of them."""
        return max((inferred.others for inferred in self.in_use.values()), default=0)

    # -- another one

    async def install_first(self, alternatives: list[Fields], reads: FirstReads) -> bool:
        """Install the first explanation that makes a job, where its readers are; keep the others to choose from."""
        for fields in alternatives:
            made = await self._jobs.runner.run(POOL, self._streams_from, fields, 0, *_shown(reads))
            if made is not None:
                await self._install(fields, alternatives, *made, reads)
                return True
        return False

    async def install_alternative(self, lost: InferredJob, reads: FirstReads, needed: int) -> bool:
        """Whether another explanation of what was read before explains the new reads as well; it is installed then.

        Reading in the order of the files is left to those who look where it begins: each part of it goes on like it.
        """
        others = [fields for fields in lost.alternatives if fields["sampler"] != "sequential"]
        ids, heads, runner = lost.job.streams.sample_ids, reads.heads(needed), self._jobs.runner
        data_set = await runner.run(POOL, as_indices, heads, ids.astype(np.int32))
        epochs = (lost.lost_after + 1, lost.lost_after, 0)
        found = await runner.run(POOL, chosen, others, data_set, epochs)
        if found is None:
            return False
        fields, epoch = found
        made = await runner.run(POOL, self._streams_from, fields, epoch, *_shown(reads))
        if made is None:
            return False
        await self._install(fields, lost.alternatives, *made, reads, was_chosen=True)
        return True

    async def install_place_of(self, lost: InferredJob, reads: FirstReads, needed: int) -> bool:
        """Whether the reads begin where a generator of the epochs before goes on; a job from there is installed."""
        ids, runner = lost.job.streams.sample_ids, self._jobs.runner
        data_set = await runner.run(POOL, as_indices, reads.heads(needed), ids.astype(np.int32))
        found = await runner.run(POOL, goes_on, lost.drawings, lost.lost_after, data_set)
        return found is not None and await self.install_first([found], reads)

    async def expect_validation(self, expected: Expected) -> None:
        """The script validates after each epoch: what that draws shifts the second epoch."""
        inferred, alternatives = expected.inferred, expected.inferred.with_validation(expected.persistent)
        if not alternatives or inferred not in self.in_use.values():
            return
        streams = await self._jobs.runner.run(POOL, self._streams_of, alternatives[0])
        if streams is None or inferred not in self.in_use.values() or inferred.job.ranks.current_epochs()[0] > 1:
            return
        name = inferred.job.spec.name
        begin, reads = Begin(1, 0), FirstReads()
        await self._install(alternatives[0], alternatives, streams, begin, reads, name, goes_on_from=inferred)

    async def learn_more(self, inferred: InferredJob, alternatives: list[Fields]) -> bool:
        """Where the seed was drawn is known now: what comes after the first epoch may be another order.

        Returns whether the job was replaced by one that goes on in that order.
        """
        known = {key: inferred.fields[key] for key in ("batch_size",) if key in inferred.fields}
        alternatives = [fields | known for fields in alternatives]
        inferred.learn_alternatives(alternatives)
        if inferred.job.ranks.current_epochs()[1] > 0 or not alternatives or alternatives[0] == inferred.fields:
            return False  # the first reads of the next epoch choose
        streams = await self._jobs.runner.run(POOL, self._streams_of, alternatives[0])
        if streams is None or inferred not in self.in_use.values():
            return False
        low = min(progress.frontier for progress in inferred.job.matcher.ranks)
        begin = Begin(0, low // max(1, inferred.job.spec.batch_size))
        name = inferred.job.spec.name
        await self._install(alternatives[0], alternatives, streams, begin, FirstReads(), name)
        return True

    def with_seed_of(self, finding: Finding) -> InferredJob | None:
        """The job that was installed for the finding, before it was known where its seed was drawn."""
        for inferred in self.in_use.values():
            if inferred.fields.get("seed") == finding.seed or inferred.fields.get("generator") == "default":
                return inferred
        return None

    def _streams_of(self, fields: Fields) -> JobStreams | None:
        """A worker thread's work. None for what is no job after all."""
        try:
            return self._make_streams(parse_job(fields))
        except JobError as error:
            log.info("not usable: %s: %s", in_words(fields), error)
            return None

    def _streams_from(
        self, fields: Fields, epoch: int, recent: list[Read], seen: tuple[int, int]
    ) -> tuple[JobStreams, Begin] | None:
        """A worker thread's work: the streams, and where in an epoch the readers are. None for what is no job."""
        streams = self._streams_of(fields)
        return None if streams is None else (streams, where(streams, epoch, recent, seen))

    async def _install(
        self,
        fields: Fields,
        alternatives: list[Fields],
        streams: JobStreams,
        begin: Begin,
        reads: FirstReads,
        name: str = "",
        was_chosen: bool = False,
        goes_on_from: InferredJob | None = None,
    ) -> None:
        """Make a job that begins where the readers are, show it the reads that were seen, and have it followed.

        Args:
            goes_on_from: the job that came as explained until now; its loader is known.
        """
        names = (JOB_NAME, *(f"{JOB_NAME}-{number}" for number in range(2, MOST_JOBS + 1)))
        name = name or next(name for name in names if name not in self.in_use)
        told = {"name": name, "start_epoch": begin.epoch, "start_step": begin.step}
        spec = streams.spec.model_copy(update=told)
        streams = JobStreams(spec, streams.sample_ids, streams.order)
        like = first_epoch = None
        if goes_on_from is not None:
            like = LearnedLoader(goes_on_from.job.matcher.shape, goes_on_from.job.matcher.lag)
            first_epoch = goes_on_from.first_epoch
        job = JobRun(spec, streams, self._jobs.manifest.size, inferred=True, like=like, name_of=self._jobs.name_of)
        await prepare(self._jobs.runner, job, most=1)
        for read in reads.recent:  # those included that came until now
            if job.member[read.entry] and job.observe(*read).restarted:
                job.restart()
        await self._jobs.install(job)
        self.in_use[name] = InferredJob(job, fields, alternatives, was_chosen, first_epoch)
        log.info("inferred from the reads: %s", in_words(fields))


def _shown(reads: FirstReads) -> tuple[list[Read], tuple[int, int]]:
    """What tells where readers are: the last opens, and how many reads and opens there were."""
    return list(reads.recent), (reads.total, reads.opened)
