"""No job is registered: finds out in what order the mount is read, and has the engine fetch ahead by it.

In: every open, after the engine has counted it; jobs that come and go. Out: inferred jobs, words for the status. What
takes longer runs in worker threads and in a process of its own. Part of `mlfs.explain.explainer`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from mlfs.errors import JobError
from mlfs.explain.attempt import POOL, Attempt, Woken
from mlfs.explain.command_lines import seeds_on_command_lines
from mlfs.explain.confirm import Finding, borne_out, confirm_sequential, reads_otherwise, refine
from mlfs.explain.data_sets import Candidate, MakeSamples, as_indices, candidates_apart, candidates_together
from mlfs.explain.dealt import dealing, dealt
from mlfs.explain.explanations import continued, explanations, in_words
from mlfs.explain.fields import Fields
from mlfs.explain.first_reads import FirstReads
from mlfs.explain.inferred_job import InferredJob
from mlfs.explain.inferred_jobs import Expected, InferredJobs, MakeStreams
from mlfs.explain.pieces import told_pieces
from mlfs.explain.port import Jobs
from mlfs.explain.question import FEWEST_SAMPLES, reads_needed
from mlfs.explain.recipes import Recipe, repeats_samples, same_first_epoch
from mlfs.explain.repeated import repeated, repeated_permutation, repeating
from mlfs.explain.search_stages import Draw, GeneratorsFound, SeedFound
from mlfs.explain.statistics import InferenceState, InferenceStatistics
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.job import parse_job
from mlfs.launchers import whose

log = logging.getLogger("mlfs.explain")

# Searches that found nothing, each up to minutes of a core: after so many the mount is left alone.
MOST_IN_VAIN = 16
# A search for an epoch in another order begins anew at so many reads: by then an explanation that is known may be told
# from others, for which the first reads were too few.
TRY_AGAIN_AFTER = (20, 40, 80)


class Build(NamedTuple):
    """How a job's samples, and its streams, are made of its specification. Called in worker threads."""

    samples: MakeSamples
    streams: MakeStreams


class Part(NamedTuple):
    """The reads of some processes, and which processes these are. Reads that come later are added."""

    reads: FirstReads
    has: Callable[[int], bool]


class Inference:
    """See the module. `run` must be running.

    Args:
        set_aside: whether the reads of a registered job have another order than it says, which its registration does
            not lead to either: then they are explained as if nobody had registered it.
    """

    def __init__(self, jobs: Jobs, build: Build, set_aside: Callable[[JobRun], bool]) -> None:
        self._jobs = jobs
        self._set_aside = set_aside
        self._make_samples = build.samples
        self._inferred = InferredJobs(jobs, build.streams)
        self._needed = reads_needed(max(jobs.manifest.n_files, FEWEST_SAMPLES))
        self._registered = False  # somebody has told a job: nothing is to be inferred
        self._told = False  # the same, or what he told does not lead to what is read
        self._busy = False  # a search is under way, or about to be
        self._reads = FirstReads()  # that no inferred job explains
        self._part = Part(FirstReads(), lambda _: False)  # of those, the ones that a job is to be found for
        self._lost: InferredJob | None = None  # whose reads no longer come as explained, for the next search
        self._hoped_for: InferredJob | None = None  # the same, for the search under way
        self._expected: Expected | None = None  # a first epoch has ended, and its script validates
        self._woken = False
        self._offered: list[Fields] = []  # what explains the reads of other nodes
        self._refuted: list[Fields] = []  # what explained some first reads, and of all that came few
        self._failed_for: frozenset[int] = frozenset()  # processes whose reads nothing explains
        self._searches = self._in_vain = 0
        self._attempt: Attempt | None = None  # the last one
        self._wanted = trio.Event()
        self._scope: trio.CancelScope | None = None

    # -- what the engine tells

    def opened(self, entry: int, process: int, parent: int) -> None:
        """An open, counted by the jobs that it belongs to."""
        if self._registered:
            return
        self._expected = self._expected or self._inferred.before_validation(entry, process, parent)
        if self._expected is not None:
            self._wake()
        inferred = self._inferred.of(entry, process, parent)
        if inferred is not None:
            if inferred.follow(entry, process, parent):
                self._lose(inferred)
            return
        if process in self._failed_for or self._inferred.is_plain_stranger(entry, process, parent):
            return
        self._reads.add(entry, process, parent)
        if self._part.has(process):
            self._part.reads.add(entry, process, parent)
        if self._busy:
            self._search_with_more(process)
        elif self._lost is not None and self._reads.total in TRY_AGAIN_AFTER:
            self._wake()
        elif (
            self._reads.enough(self._needed)
            and not self._inferred.full
            and not self._inferred.is_on_trial(entry, process, parent)
        ):
            self._busy = True
            self._wanted.set()

    def _search_with_more(self, process: int) -> None:
        """The search under way has begun without this process' last reads: have it begin again where they may matter.

        They do if the process may be the one that begins a rank's epoch, or if by now there are enough reads to choose
        an explanation that is known.
        """
        attempt = self._attempt
        if attempt is None or attempt.found:
            if self._lost is not None and self._reads.total in TRY_AGAIN_AFTER:
                self._wake()
            return
        known = len(self._reads.firsts.get(process, [])) >= self._needed and attempt.lacks(process)
        if known and process in self._reads.asked(self._needed):
            attempt.begin_again_with(process)
        elif self._hoped_for is not None and self._reads.total in TRY_AGAIN_AFTER:
            attempt.begin_again()

    def _lose(self, inferred: InferredJob) -> None:
        """The reads no longer come as explained: find out anew, beginning with the other explanations."""
        log.info("the reads no longer come in the inferred order: %s", in_words(inferred.fields))
        if not inferred.decided and (inferred.lost_early or not borne_out(inferred.job.score.history)):
            self._refuted += inferred.alternatives
        inferred.give_up()
        self._reads, self._lost = self._reads.joined(inferred.unfit), inferred
        self._wake()
        self._jobs.end(inferred.job.spec.name)

    def _wake(self) -> None:
        """There is something to do at once, also while a search is under way."""
        if not self._woken:
            self._busy = self._woken = True
            self._wanted.set()
            if self._attempt is not None:
                self._attempt.wake()

    def offer(self, fields: Fields) -> None:
        """This explains the reads of another node: it is tried here, without a search and before any read."""
        if not self._registered:
            self._offered.append(fields)
            self._wanted.set()

    def jobs_changed(self) -> None:
        """A job came or went."""
        self._inferred.jobs_changed()
        before, self._registered = self._registered, any(map(self._counts, self._jobs.jobs.values()))
        told, self._told = self._told, any(not job.inferred for job in self._jobs.jobs.values())
        if self._registered and not before:
            self._cancel()
            self._busy, self._lost = False, None
            self._inferred.end_all()
        elif (before and not self._registered) or (told and not self._told):
            self._cancel()
            self._reads, self._attempt, self._failed_for, self._refuted = FirstReads(), None, frozenset(), []

    def _counts(self, job: JobRun) -> bool:
        """Whether somebody has told a job, and the reads are its."""
        return not job.inferred and not self._set_aside(job)

    def begin_with(self, opens: Sequence[Open]) -> None:
        """A registered job was set aside: these are the reads of its epoch so far."""
        self.jobs_changed()
        for opened in opens:
            self.opened(opened.entry, opened.process, opened.parent)

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        if self._attempt is not None:
            self._attempt.end()

    # -- the search

    async def run(self) -> None:
        """Infer whenever there is enough to infer from, for as long as the mount lives."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                with trio.CancelScope() as self._scope:
                    try:
                        await self._infer()
                    except Exception:  # whatever it is: the mount serves on without
                        log.exception("inferring failed")
                self._scope = None
                self._busy = self._wanted.is_set()
        finally:
            self._cancel()

    async def _infer(self) -> None:
        """From reads to a job: by a known explanation, by the order of the files, or by a search for a seed."""
        self._woken = False
        await self._try_offered()
        if self._registered or not self._busy:
            return
        if await self._go_on_as_expected() and self._lost is None:
            return
        jobs, needed = self._jobs, self._needed
        attempt = self._attempt = Attempt(jobs.runner, jobs.clock, self._reads.asked(needed))
        lost, self._lost = self._lost, None
        if lost is not None and await self._goes_on(lost):
            return
        if lost is not None and not self._reads.enough(needed):
            self._lost = lost  # it may go on as further reads have it; for a search they are too few as well
            return
        if await self._walked() and (self._lost is not None or not self._reads.enough(needed)):
            return
        searched, data_sets = self._searched(), list[Candidate]()
        processes = searched.ready(needed)
        if processes:
            asked = processes | searched.nearly_ready(needed)
            heads, make_samples = searched.of(asked.__contains__).heads(needed), self._make_samples
            data_sets = await jobs.runner.run(POOL, candidates_apart, jobs.manifest, heads, needed, make_samples)
        finding = confirm_sequential([candidate.data_set for candidate in data_sets])
        if finding is not None:
            await self._install(data_sets[finding.data_set], finding, (), None)
            return
        found = False
        if data_sets and self._in_vain < MOST_IN_VAIN and not attempt.again:
            self._hoped_for = lost
            found = await self._search_seeds(attempt, data_sets, lost)
            self._hoped_for = None
            self._searches += found or not attempt.again
            self._in_vain += not found and not attempt.again
        if attempt.again and not found:
            self._lost = self._lost or lost
            self._wanted.set()
        elif not found:
            processes |= self._reads.walkers()
            self._failed_for |= processes
            self._reads = self._reads.of(lambda process: process not in processes)
            log.info("%s", InferenceState.UNKNOWN)

    async def _go_on_as_expected(self) -> bool:
        """Have a job whose first epoch has ended go on as scripts do that validate. Returns whether there was one."""
        expected, self._expected = self._expected, None
        if expected is not None:
            await self._inferred.expect_validation(expected)
        return expected is not None

    async def _goes_on(self, lost: InferredJob) -> bool:
        """Whether the reads are the next epoch by what is known of the epochs before; then its job is installed."""
        inferred, reads, needed = self._inferred, self._searched(), self._needed
        installed = await inferred.install_alternative(lost, reads, needed)
        installed = installed or await inferred.install_place_of(lost, reads, needed)
        if installed:
            self._explained(reads)
        return installed

    def _searched(self) -> FirstReads:
        """The reads that may show a shuffled order: all but those of processes that walk the directories."""
        walkers = self._reads.walkers()
        return self._reads_of(lambda process: process not in walkers)

    def _reads_of(self, has: Callable[[int], bool]) -> FirstReads:
        """The reads of some processes, those included that come until a job is made of them."""
        self._part = Part(self._reads.of(has), has)
        return self._part.reads

    async def _walked(self) -> bool:
        """Whether processes read a data set in the order of its files: a job does so then, until another one is found
        that reads the same samples. Where others read them in another order already, who walks is a stranger."""
        walkers, runner, needed = self._reads.walkers(), self._jobs.runner, self._needed
        others, walking = self._reads.of(lambda process: process not in walkers), self._reads_of(walkers.__contains__)
        heads, kin = walking.heads(needed), walking.kin(needed)
        if not heads or len(heads[0]) < needed:
            return False
        make_samples, manifest = self._make_samples, self._jobs.manifest
        data_sets = await runner.run(POOL, candidates_together, manifest, heads, make_samples)
        readers = await runner.run(POOL, whose, kin)
        finding = told_pieces([candidate.data_set for candidate in data_sets], readers)
        if finding is None:
            data_sets = await runner.run(POOL, candidates_apart, manifest, heads, needed, make_samples)
            finding = confirm_sequential([candidate.data_set for candidate in data_sets])
        if finding is None:
            return False
        candidate = data_sets[finding.data_set]
        beside = await runner.run(POOL, as_indices, others.heads(needed), candidate.ids)
        if self._inferred.shuffles(heads[0][0]) or any(map(reads_otherwise, beside.heads)):
            self._reads = self._reads.of(lambda process: process not in walkers)
            return True
        opens = await runner.run(POOL, as_indices, heads, candidate.ids)
        return await self._install_first(_ranked(candidate, refine(finding, opens), ()), walking)

    async def _try_offered(self) -> None:
        """Go by what explains other nodes' reads, unless it is known here already, or refuted."""
        offered, self._offered = self._offered, []
        for fields in offered:
            known = [*self._refuted, *(inferred.fields for inferred in self._inferred.in_use.values())]
            if any(_same_order(fields, other) for other in known) or self._registered or self._inferred.full:
                continue
            reads = self._searched()
            if await self._inferred.install_first([fields], reads):
                self._explained(reads)
                self._busy = False

    async def _search_seeds(self, attempt: Attempt, data_sets: list[Candidate], lost: InferredJob | None) -> bool:
        """Take what the other process finds into use, and what it learns later of the epochs to come.

        Returns whether it found anything.
        """
        told = await self._jobs.runner.run(POOL, seeds_on_command_lines, self._reads.pids())
        registered = (job.spec.seed for job in self._jobs.jobs.values() if not job.inferred)
        told = (*(lost.generators if lost else ()), *registered, *told)
        again = lost is not None and lost.drawn
        found: SeedFound | None = None
        installed = False
        asked = [candidate.data_set for candidate in data_sets]
        # Once a second epoch has come as explained, it has told what the rest of the search would tell.
        async with attempt.searching(asked, told, again, lambda: self._inferred.decided) as events:
            async for event in events:
                if event is None:
                    break
                if isinstance(event, Woken):
                    self._woken = False
                    await self._go_on_as_expected()
                    if self._lost is None:
                        self._wanted = trio.Event()
                    elif await self._goes_on(self._lost):
                        break
                elif isinstance(event, Recipe):
                    installed = await self._install_recipe(data_sets[event.data_set], event)
                elif isinstance(event, SeedFound):
                    if await self._install(data_sets[event.finding.data_set], event.finding, event.draws, lost):
                        found = event
                elif isinstance(event, GeneratorsFound) and found is not None:
                    await self._learn_more(data_sets[found.finding.data_set], found.finding, event.draws)
        return installed or found is not None

    # -- what was found

    async def _install_recipe(self, candidate: Candidate, recipe: Recipe) -> bool:
        """Use the recipe, keep those with the same first epoch for the second epoch's first reads to choose from."""
        told: Fields | None = recipe.fields
        if repeats_samples(recipe.fields):
            opens = await self._jobs.runner.run(POOL, as_indices, self._searched().opens(), candidate.ids)
            told = repeated_permutation(opens.n, int(str(recipe.fields["seed"])), opens.heads)
        if told is None:
            return False
        first = recipe.fields | told
        same_start = [first, *(fields for fields in same_first_epoch(first) if fields != first)]
        ranked = [fields for fields in (candidate.fields | fields for fields in same_start) if _is_job(fields)]
        return await self._install_first(ranked)

    async def _install(
        self, candidate: Candidate, finding: Finding, draws: tuple[Draw, ...], lost: InferredJob | None
    ) -> bool:
        """Use the best explanation, keep the others for the second epoch's first reads to choose from."""
        searched = self._searched()
        heads, opened, kin = searched.heads(self._needed), searched.opens(), searched.kin()
        going_on = [] if lost is None else continued(lost.drawings, lost.lost_after, draws)

        def study() -> list[Fields]:
            refined = refine(finding, as_indices(heads, candidate.ids))
            opens = as_indices(opened, candidate.ids).heads
            ranked = repeating(_ranked(candidate, refined, draws, going_on), repeated(finding, opens))
            return dealing(ranked, dealt(refined, opens, whose(kin)))

        return await self._install_first(await self._jobs.runner.run(POOL, study))

    async def _install_first(self, ranked: list[Fields], reads: FirstReads | None = None) -> bool:
        refuted = [_order(fields) for fields in self._refuted]
        possible = [fields for fields in ranked if _order(fields) not in refuted]
        reads = self._searched() if reads is None else reads
        installed = await self._inferred.install_first(possible, reads)
        if installed:
            self._explained(reads)
        return installed

    async def _learn_more(self, candidate: Candidate, finding: Finding, draws: tuple[Draw, ...]) -> None:
        """Have the job that goes by the finding know where its seed may have been drawn."""
        inferred, alternatives = self._inferred.with_seed_of(finding), _ranked(candidate, finding, draws)
        if inferred is not None:
            if await self._inferred.learn_more(inferred, alternatives):
                self._explained(self._searched())
        elif self._lost is not None:  # meanwhile another epoch has begun
            self._lost.learn_alternatives(alternatives)
            await self._goes_on(self._lost)

    def _explained(self, by: FirstReads) -> None:
        """A job was installed that goes on as these reads do: from here on those count that are none of its."""
        self._inferred.end_walks()
        self._reads = self._inferred.but_explained(self._reads, by)
        self._part = Part(FirstReads(), lambda _: False)
        self._wanted = trio.Event()
        if self._lost is not None and self._lost.unfit.firsts.keys().isdisjoint(self._reads.firsts):
            self._lost = None
        elif self._lost is not None:  # it has failed while other reads were explained
            self._wanted.set()
        reads, inferred = self._reads, self._inferred
        others = reads.of(lambda pid: not inferred.is_on_trial(reads.firsts[pid][0], pid, reads.parents[pid]))
        if others.enough(self._needed) and not inferred.full:
            self._wanted.set()

    # -- for the status

    def job_with_samples_of(self, registered: JobRun) -> JobRun | None:
        """The inferred job that reads what a registered one was to read."""
        entries = registered.streams.sample_ids
        inside = self._inferred.reading(int(entries.flat[0])) if entries.size else []
        return inside[0].job if inside else None

    @property
    def state(self) -> InferenceState:
        """In one word."""
        if self._registered:
            return InferenceState.IDLE
        if self._inferred.in_use:
            return InferenceState.LOCKED
        if self._busy:
            return InferenceState.SEARCHING
        return InferenceState.UNKNOWN if self._failed_for else InferenceState.WATCHING

    def statistics(self) -> InferenceStatistics:
        """Frozen figures."""
        attempt = self._attempt.statistics() if self._attempt is not None and self._busy else None
        return InferenceStatistics(
            self.state, self._searches, attempt, self._inferred.explanation, self._inferred.other_explanations
        )


def _ranked(
    candidate: Candidate, finding: Finding, draws: tuple[Draw, ...], going_on: Sequence[Fields] = ()
) -> list[Fields]:
    """The explanations that are jobs, best first.

    Args:
        going_on: fields by which an explanation goes on from that of the epoch before: such ones come first.
    """
    told = explanations(finding, draws)
    ranked = [candidate.fields | fields for fields in (*(told[0] | more for more in going_on), *told)]
    return [fields for fields in ranked if _is_job(fields)]


def _same_order(told: Fields, known: Fields) -> bool:
    """Whether two explanations are of one order, whichever fields they leave to their defaults."""
    here, there = (json.loads(parse_job(fields | {"start_epoch": 0}).to_json()) for fields in (told, known))
    return _order(here | {"name": ""}) == _order(there | {"name": ""})


def _order(fields: Fields) -> Fields:
    """The fields that say in which order is read, without those that the same reads may tell otherwise later."""
    return {name: value for name, value in fields.items() if name not in ("batch_size", "ranks")}


def _is_job(fields: Fields) -> bool:
    try:
        parse_job(fields)
    except JobError:
        return False
    return True
