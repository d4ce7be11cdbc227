"""Finds out in what order reads come that nobody registered, or to which the registration does not lead.

In: every open, after the engine has counted it; jobs that come and go; what explains the reads of other nodes. Out:
inferred jobs in force, words for the status. Part of `mlfs.explain.explainer`.

Opens come on the engine's way and are only noted. A task (`run`) sleeps until they call it (`TaskState`, and the table
below it). Then it holds against the reads what may explain them, the cheapest first: what explains another node's
reads, what explained the epochs before, the order of the files, and last a search for a seed, in a process of its own.
The hypothesis that it finds is in force at once. When its reads refute it, the task is called again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum, auto
from functools import partial
from operator import ne
from typing import Final, NamedTuple

import trio

from mlfs.errors import JobError
from mlfs.explain.attempt import POOL, Attempt, Woken
from mlfs.explain.confirm import Finding, confirm_sequential
from mlfs.explain.data_sets import Candidate, MakeSamples, as_indices, candidates_apart, part_of
from mlfs.explain.fields import Fields, order_of
from mlfs.explain.first_reads import MOST_FIRST_READS, FirstReads, LeftAlone
from mlfs.explain.hypotheses import Before, of_draws, of_finding, of_other_part, of_recipe, of_walk
from mlfs.explain.inferred_jobs import (
    InferredJobs,
    MakeStreams,
    Reads,
    drawings,
    fitted_by_chance,
    generators,
    is_decided,
    is_drawn,
    last_epoch,
    last_fitting,
    unfit_reads,
)
from mlfs.explain.next_epoch import next_epoch
from mlfs.explain.port import Jobs
from mlfs.explain.question import FEWEST_SAMPLES, reads_needed
from mlfs.explain.read_again import ReadBefore, of_streams
from mlfs.explain.recipes import Recipe
from mlfs.explain.search_stages import Draw, GeneratorsFound, SeedFound
from mlfs.explain.statistics import InferenceState, InferenceStatistics
from mlfs.follow.by_sample import NO_PID
from mlfs.follow.evidence import Read
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.follow.sentences import in_words
from mlfs.job import parse_job
from mlfs.launchers import seeds_on_command_lines

log = logging.getLogger("mlfs.explain")

# Searches that found nothing, each up to minutes of a core: after so many the mount is left alone.
MOST_IN_VAIN = 16
# The hypothesis of the epochs before is held against the reads of an epoch in another order again at so many of them:
# by then a hypothesis that is known may be told from others, for which the first reads were too few.
TRY_AGAIN_AFTER = (20, 40, 80)


class TaskState(Enum):
    """The state of inferring, in the words of the status (`InferenceState`) as far as it has one."""

    IDLE = auto()
    """A job is registered, and the reads are its: nothing is inferred."""

    WATCHING = auto()
    """There are too few reads that no job explains."""

    CALLED = auto()
    """The reads may tell something: the task is about to look."""

    SEARCHING = auto()
    """The task looks what explains the reads."""

    LEARNING = auto()
    """Its search has found a seed, and goes on: where that was drawn decides on the epochs to come."""


class TaskCause(Enum):
    """Something that happens to it."""

    REGISTERED = auto()
    UNREGISTERED = auto()
    """Or the registered job was set aside: there is none any more to which the reads belong."""

    CALL = auto()
    """Enough reads have come, a hypothesis was refuted, or what is known is to be tried with more reads."""

    BEGIN = auto()
    """The task has woken."""

    FOUND = auto()
    END = auto()
    """The task has done what it could. If it was called meanwhile, `CALL` follows."""


TRANSITIONS: Final = {
    (TaskState.WATCHING, TaskCause.CALL): TaskState.CALLED,
    (TaskState.CALLED, TaskCause.BEGIN): TaskState.SEARCHING,
    (TaskState.SEARCHING, TaskCause.FOUND): TaskState.LEARNING,
    (TaskState.CALLED, TaskCause.END): TaskState.WATCHING,
    (TaskState.SEARCHING, TaskCause.END): TaskState.WATCHING,
    (TaskState.LEARNING, TaskCause.END): TaskState.WATCHING,
    (TaskState.IDLE, TaskCause.UNREGISTERED): TaskState.WATCHING,
    **{(state, TaskCause.REGISTERED): TaskState.IDLE for state in TaskState},
}
"""The state after each cause; it stays as it is where a pair is not here."""


class Build(NamedTuple):
    """How a job's samples, and its streams, are made of its specification. Called in worker threads."""

    samples: MakeSamples
    streams: MakeStreams


class Inference:
    """Finds out in what order reads come that no registered job explains, or one that was set aside. `run` must be
    running."""

    def __init__(self, jobs: Jobs, build: Build) -> None:
        self._jobs = jobs
        self._make_samples = build.samples
        self._inferred = InferredJobs(jobs, build.streams)
        self._needed = reads_needed(max(jobs.manifest.n_files, FEWEST_SAMPLES))
        self._state = TaskState.WATCHING
        self._called = trio.Event()  # there is something for the task to do
        self._has_registered = False  # whether somebody has registered a job, also one that was set aside
        self._offered: list[Fields] = []  # what explains the reads of other nodes
        self._searches = self._in_vain = 0
        self._scope: trio.CancelScope | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Know nothing of the reads."""
        self._before = ReadBefore(self._jobs.manifest.n_files)
        self._is_read_again = False  # what was read before is, and no job says so
        self._reads = FirstReads()  # that no inferred job explains
        self._refuted: JobRun | None = None  # among the reads is its next epoch
        self._attempt: Attempt | None = None  # what the task is at, or was at last
        self._left_alone = LeftAlone(len(self._jobs.manifest.size))
        self._alone = FirstReads()  # of those that are left alone: what is found may explain them too
        self._by_chance: list[Hypothesis] = []  # what explained some first reads, and few of all that came

    def _happens(self, cause: TaskCause) -> None:
        self._state = TRANSITIONS.get((self._state, cause), self._state)

    # -- what the engine says

    def opened(self, opens: Sequence[Read]) -> None:
        if self._state is TaskState.IDLE:
            return
        unexplained, judged = list[Read](), dict[str, JobRun]()
        for read in opens:
            job = self._inferred.of(read)
            if job is None:
                unexplained.append(read)
            else:
                judged[job.name] = job
        for job in judged.values():
            if job.is_refuted:
                self._refute(job)
        if unexplained:
            self._remember(unexplained)
        for entry, process, parent, _ in unexplained:
            if process != NO_PID:  # what nobody can tell apart shows no order
                self._opened(entry, process, parent)

    def _opened(self, entry: int, process: int, parent: int) -> None:
        begun = self._left_alone.begins(entry, process)
        if not begun:
            self._alone.add(entry, process, parent)
        if not begun or self._inferred.is_plain_stranger(entry, process, parent):
            return
        if len(begun) > 1:
            self._alone = self._alone.of(partial(ne, process))
        self._reads.add_all(begun, process, parent)
        try_again = self._reads.total in TRY_AGAIN_AFTER
        if self._state is TaskState.SEARCHING:
            self._look_with_more(process, try_again)
        elif (try_again and self._refuted is not None) or (
            self._state is TaskState.WATCHING
            and self._reads.ready(self._needed)
            and not self._inferred.full
            and not self._inferred.is_on_trial(entry, process, parent)
        ):
            self._call()

    def _remember(self, opens: Sequence[Read]) -> None:
        """Nothing explains these opens: they may be read again."""
        if self._before.add(opens):
            self._is_read_again = True
            self._call()

    def _look_with_more(self, process: int, try_again: bool) -> None:
        """The task looks without this process' last reads: have it begin again where they may matter.

        They do if the process may be the one that begins a rank's epoch, or if by now there are enough reads to choose
        a hypothesis that is known.
        """
        attempt = self._attempt
        if attempt is None or attempt.again:
            return
        reads = self._reads.processes.get(process)
        lacks = reads is not None and len(reads.first) >= self._needed and attempt.lacks(process)
        helps = lacks and process in self._reads.searched_with(self._needed)
        if helps or (try_again and attempt.instead_of is not None):
            attempt.begin_again()

    def _refute(self, job: JobRun) -> None:
        """Its reads no longer come as explained: the task is to begin with the other hypotheses."""
        if fitted_by_chance(job):
            self._by_chance += job.rivals.alternatives
        self._reads, self._refuted = self._reads.joined(unfit_reads(job)), job
        self._call()
        self._jobs.end(job.name)

    def _call(self) -> None:
        """Have the task look, also while it is at something."""
        self._called.set()
        self._happens(TaskCause.CALL)
        if self._attempt is not None:
            self._attempt.wake()

    def offer(self, fields: Fields) -> None:
        """This explains the reads of another node: it is tried here, without a search and before any read."""
        if self._state is not TaskState.IDLE:
            self._offered.append(fields)
            self._called.set()

    def jobs_changed(self) -> None:
        """A job came or went."""
        self._inferred.jobs_changed()
        registered = [job for job in self._jobs.jobs.values() if not job.inferred]
        had, self._has_registered = self._has_registered, bool(registered)
        if not all(job.is_set_aside for job in registered):
            if self._state is not TaskState.IDLE:
                self._cancel()
                self._refuted = None
                self._before.begin_anew()
                self._happens(TaskCause.REGISTERED)
                for name in list(self._inferred.in_force):
                    self._jobs.end(name)
        elif self._state is TaskState.IDLE or (had and not registered):
            self._cancel()
            self._begin_anew()
            self._happens(TaskCause.UNREGISTERED)

    def begin_with(self, opens: Sequence[Open]) -> None:
        """A registered job was set aside: these are the reads of its epoch so far."""
        self.jobs_changed()
        self.opened([opened.read for opened in opens])

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        if self._attempt is not None:
            self._attempt.end()

    # -- the task

    async def run(self) -> None:
        try:
            while True:
                await self._called.wait()
                self._called = trio.Event()
                with trio.CancelScope() as self._scope:
                    try:
                        await self._look()
                    except Exception:  # whatever it is: the mount serves on without
                        log.exception("inferring failed")
                self._scope = None
                self._happens(TaskCause.END)
                if self._called.is_set():
                    self._happens(TaskCause.CALL)
        finally:
            self._cancel()

    async def _look(self) -> None:
        """Look for a job that explains the reads."""
        if await self._try_read_before() or await self._try_offered():
            return  # what it does not explain has called the task again
        self._happens(TaskCause.BEGIN)
        if self._state is not TaskState.SEARCHING:
            return  # it was called for nothing else
        refuted, self._refuted = self._refuted, None
        attempt = self._attempt = Attempt(
            self._jobs.runner, self._jobs.clock, self._reads.searched_with(self._needed), refuted
        )

        if refuted is not None:
            if await self._goes_on(refuted):
                return
            if not self._reads.ready(self._needed):
                # Further reads may show how it goes on; for a search they are too few.
                self._refuted = self._refuted or refuted
                return
        if await self._walked() and (self._refuted is not None or not self._reads.ready(self._needed)):
            return

        data_sets, processes = await self._data_sets()
        finding = confirm_sequential([candidate.data_set for candidate in data_sets])
        if finding is not None:
            await self._install_found(await self._explained_by(data_sets[finding.data_set], finding, (), None))
            return
        if data_sets and await self._validates():
            return
        searches = bool(data_sets) and self._in_vain < MOST_IN_VAIN and not attempt.again
        found = searches and await self._search(attempt, data_sets)
        if not found and attempt.again:
            self._refuted = self._refuted or refuted
            self._call()
            return
        self._searches += searches
        if not found:
            self._in_vain += searches
            # A worker that has read less may be the one whose reads tell: it is searched with once it has read enough.
            known = self._reads.processes
            processes = {pid for pid in processes if len(known[pid].first) >= self._needed} | self._reads.walkers()
            self._left_alone.add(processes)
            self._alone = self._alone.joined(self._reads.of(processes.__contains__))
            self._reads = self._reads.of(lambda process: process not in processes)
            log.info("%s", InferenceState.UNKNOWN)

    def _without_walkers(self) -> FirstReads:
        """The reads that may show a shuffled order: all but those of processes that walk the directories by now."""
        return self._reads.but_walkers()

    def _explicable(self) -> FirstReads:
        """The same, and the reads of processes that are left alone: what is found may explain them too. Those that have
        read on for long may be of an epoch before."""
        processes = self._alone.processes
        begun = self._alone.of(lambda process: len(processes[process].first) < MOST_FIRST_READS)
        return begun.joined(self._reads).but_walkers()

    async def _try_offered(self) -> bool:
        """Go by what explains other nodes' reads, if it is neither known here already nor refuted."""
        offered, self._offered = self._offered, []
        installed = False
        for fields in offered:
            try:
                spec = parse_job(fields)
            except JobError:
                continue  # of a node with another version of mlfs
            known = [*self._by_chance, *(job.hypothesis for job in self._inferred.in_force.values())]
            is_known = any(order_of(spec) == order_of(other.spec) for other in known)
            if not (is_known or self._state is TaskState.IDLE or self._inferred.full):
                installed |= await self._install([Hypothesis(spec, Origin.NODE)], self._without_walkers)
        return installed

    async def _try_read_before(self) -> bool:
        """Go by what processes read before, if one of them, or another one, reads it again.

        It believes that once where epochs begin alike and go on otherwise: each time costs a whole search anew.
        """
        if not self._is_read_again or self._inferred.full or any(one.spec.order_file for one in self._by_chance):
            return False
        self._is_read_again, before = False, self._before
        found = await self._jobs.runner.run(POOL, of_streams, before.streams())
        installed = found is not None and await self._install_found([found], lambda: before.again)
        before.begin_anew()
        return installed

    async def _goes_on(self, refuted: JobRun) -> bool:
        """Whether the reads are the next epoch by what explained the epochs before; then its job is in force."""
        reads, runner = self._without_walkers, self._jobs.runner
        data_set = await runner.run(POOL, as_indices, reads().heads(self._needed), refuted.streams.sample_ids)
        ranked = refuted.rivals.alternatives
        if refuted.rivals.was_chosen and last_fitting(refuted) < 0:  # it was chosen by chance, and would be again
            ranked = [one for one in ranked if order_of(one.spec) != order_of(refuted.hypothesis.spec)]
        found = await runner.run(POOL, next_epoch, ranked, drawings(refuted), last_epoch(refuted), data_set)
        if found is None:
            return False
        chosen_from = ranked if found.was_chosen else ()
        return await self._install([found.hypothesis], reads, found.epoch, chosen_from)

    async def _walked(self) -> bool:
        """Whether processes read a data set in the order of its files: a job does so then, until another one is found
        that reads the same samples. If others read them in another order already, those that walk are strangers."""
        walkers, needed = self._reads.walkers(), self._needed
        heads = self._reads.of(walkers.__contains__).heads(needed)
        if not heads or len(heads[0]) < needed:
            return False
        others = self._without_walkers().heads(needed)
        jobs = self._jobs
        ranked = await jobs.runner.run(POOL, of_walk, jobs.manifest, heads, others, needed, self._make_samples)
        if ranked is None:
            return False
        if not ranked or self._inferred.shuffles(heads[0][0]):
            self._reads = self._reads.of(lambda process: process not in walkers)
            return True
        return await self._install_found(ranked, lambda: self._reads.of(walkers.__contains__))

    async def _data_sets(self) -> tuple[list[Candidate], set[int]]:
        """The data sets that the reads may be of, and the processes that have read enough of them."""
        reads, needed, jobs = self._without_walkers(), self._needed, self._jobs
        processes = reads.ready(needed)
        if not processes:
            return [], processes
        asked = processes | reads.nearly_ready(needed)
        heads = reads.of(asked.__contains__).heads(needed)
        found = await jobs.runner.run(POOL, candidates_apart, jobs.manifest, heads, needed, self._make_samples)
        return found, processes

    async def _validates(self) -> bool:
        """Whether processes read, as it stands, what another job leaves of a data set that it has split."""
        heads, runner = self._without_walkers().heads(self._needed), self._jobs.runner
        for spec in [one.spec for one in self._inferred.in_force.values() if one.spec.split is not None]:
            ranked = await runner.run(POOL, of_other_part, spec, heads, self._make_samples)
            if ranked and await self._install_found(ranked):
                return True
        return False

    async def _search(self, attempt: Attempt, data_sets: list[Candidate]) -> bool:
        """Put in force what the other process finds, and what it learns later of the epochs to come.

        Returns whether it found anything.
        """
        refuted = attempt.instead_of
        hints = await self._jobs.runner.run(POOL, seeds_on_command_lines, self._reads.pids())
        registered = (job.spec.seed for job in self._jobs.jobs.values() if not job.inferred)
        hints = (*(generators(refuted) if refuted is not None else ()), *registered, *hints)
        again = refuted is not None and is_drawn(refuted)
        found: Finding | None = None
        installed = False
        asked = [candidate.data_set for candidate in data_sets]

        def decided() -> bool:
            """Once a second epoch has come as explained, it has shown what the rest of the search would show."""
            return bool(self._inferred.in_force) and all(map(is_decided, self._inferred.in_force.values()))

        async with attempt.searching(asked, hints, again, decided) as events:
            async for event in events:
                if event is None:
                    break
                if isinstance(event, Woken):
                    attempt.has_woken()
                    if await self._try_read_before():
                        installed = True
                        break
                    if self._refuted is not None:
                        if await self._goes_on(self._refuted):
                            break
                    elif not self._offered:
                        self._called = trio.Event()
                    continue
                self._happens(TaskCause.FOUND)
                if isinstance(event, Recipe):
                    reads = self._explicable()
                    ranked = await self._jobs.runner.run(POOL, of_recipe, data_sets[event.data_set], event, reads)
                    installed = await self._install_found(ranked)
                elif isinstance(event, SeedFound):
                    candidate = data_sets[event.finding.data_set]
                    ranked = await self._explained_by(candidate, event.finding, event.draws, refuted)
                    if await self._install_found(ranked):
                        found = event.finding
                elif isinstance(event, GeneratorsFound) and found is not None:
                    candidate = data_sets[found.data_set]
                    ranked = await self._jobs.runner.run(POOL, of_draws, candidate, found, event.draws)
                    await self._learn(found, ranked)
        return installed or found is not None

    # -- what was found

    async def _explained_by(
        self, candidate: Candidate, finding: Finding, draws: Sequence[Draw], refuted: JobRun | None
    ) -> list[Hypothesis]:
        """The hypotheses of a finding, by all that was read until now."""
        reads = self._explicable()
        before = Before()
        if refuted is not None:
            before = Before(refuted.hypothesis.spec, drawings(refuted), last_epoch(refuted))
        if finding.part:
            candidate = await self._jobs.runner.run(POOL, part_of, candidate, finding.part, self._make_samples)
        return await self._jobs.runner.run(POOL, of_finding, candidate, finding, draws, before, reads, self._needed)

    async def _install_found(self, ranked: Sequence[Hypothesis], reads: Reads | None = None) -> bool:
        """Put the best hypothesis in force that is not known to have fitted by chance."""
        by_chance = [order_of(known.spec) for known in self._by_chance]
        possible = [hypothesis for hypothesis in ranked if order_of(hypothesis.spec) not in by_chance]
        return await self._install(possible, self._explicable if reads is None else reads)

    async def _install(
        self, ranked: Sequence[Hypothesis], reads: Reads, epoch: int = 0, chosen_from: Sequence[Hypothesis] = ()
    ) -> bool:
        """Put the best hypothesis in force; its rivals wait for the next epoch's reads."""
        installed = await self._inferred.install(ranked, reads, epoch, chosen_from)
        if installed:
            self._are_explained(reads())
        return installed

    async def _learn(self, found: Finding, ranked: Sequence[Hypothesis]) -> None:
        """Have the job that goes by the finding know where its seed may have been drawn."""
        job = self._inferred.with_seed_of(found)
        if job is not None:
            if await self._inferred.learn_more(job, ranked):
                self._are_explained(self._without_walkers())
        elif self._refuted is not None:  # meanwhile another epoch has begun
            self._refuted.rivals.learn(ranked)
            await self._goes_on(self._refuted)

    def _are_explained(self, by: FirstReads) -> None:
        """A job is in force that goes on as these reads do: from here on those count that are none of its."""
        self._inferred.end_walks()
        self._reads = reads = self._inferred.but_explained(self._reads, by)
        self._alone = self._inferred.but_explained(self._alone, by)
        if self._refuted is not None and unfit_reads(self._refuted).processes.keys().isdisjoint(reads.processes):
            self._refuted = None
        inferred = self._inferred
        processes = reads.processes
        others = reads.of(lambda pid: not inferred.is_on_trial(processes[pid].first[0], pid, processes[pid].parent))
        self._called = trio.Event()
        if self._offered or self._refuted is not None or (others.ready(self._needed) and not inferred.full):
            self._called.set()

    # -- for the status

    def job_with_samples_of(self, registered: JobRun) -> JobRun | None:
        """The inferred job that reads what a registered one was to read."""
        entries = registered.streams.sample_ids
        inside = self._inferred.reading(int(entries.flat[0])) if entries.size else []
        return inside[0] if inside else None

    @property
    def state(self) -> InferenceState:
        if self._state is TaskState.IDLE:
            return InferenceState.IDLE
        if self._inferred.in_force:
            return InferenceState.LOCKED
        if self._state is not TaskState.WATCHING:
            return InferenceState.SEARCHING
        return InferenceState.UNKNOWN if self._left_alone else InferenceState.WATCHING

    def statistics(self) -> InferenceStatistics:
        is_at_work = self._state not in (TaskState.IDLE, TaskState.WATCHING)
        attempt = self._attempt.statistics() if self._attempt is not None and is_at_work else None
        jobs = self._inferred.in_force.values()
        others = max((len(job.rivals.alternatives) - 1 for job in jobs if not is_decided(job)), default=0)
        hypothesis = "; ".join(in_words(job.hypothesis.spec) for job in jobs)
        return InferenceStatistics(self.state, self._searches, attempt, hypothesis, others)
