"""A registered job's reads don't come as told: finds out what its script does instead, and has the job go on with it.

In: jobs whose opens were counted. Out: jobs in place of those, each with a sentence for `status` and the log. The
trials run in a worker thread, a long search at the lowest priority; what they find must then be confirmed by opens that
it was not searched with. Part of `mlfs.explain.explainer`.
"""

from __future__ import annotations

import logging
from itertools import islice

import trio

from mlfs.explain.evidence import JUDGED_OPENS, confirmed
from mlfs.explain.misfit import disagreeing, disagrees, epochs_to_try, fits_again, may_lack_set_epoch
from mlfs.explain.port import Jobs
from mlfs.explain.prepare import prepare
from mlfs.explain.screen import Correction, find_correction
from mlfs.explain.statistics import CaseStatistics
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open

log = logging.getLogger("mlfs.explain")

POOL = "variants"
# A job that eight searches could not explain is left alone.
MOST_SEARCHES = 8
# What was found and neither confirmed nor refuted by so many further opens is dropped.
MOST_FURTHER_OPENS = 96


class Case:
    """A registered job, and when what its script does is searched for.

    Attributes:
        searches: how many there were. searching: whether one is under way.
    """

    def __init__(self, job: JobRun) -> None:
        self.job = job
        self.searches = 0
        self.searching = False
        self._not_before = 0  # how many opens the job must have seen for the next search

    def needs_search(self) -> bool:
        """Whether the job's reads call for one now."""
        if self.job.inferred or self.job.finished:
            return False
        if self.searching or self.searches >= MOST_SEARCHES or self.job.score.observed < self._not_before:
            return False
        return disagrees(self.job)

    def search_begins(self) -> None:
        """A search is under way from now on."""
        self.searching = True

    def search_has(self, opens: int, seen: int) -> None:
        """The search has so many opens to go by, the last of `seen`. The next search waits for twice as many more."""
        self.searches += 1
        self._not_before = seen + 2 * opens

    def search_ends(self) -> None:
        """The next search may begin."""
        self.searching = False

    def go_on_with(self, job: JobRun) -> None:
        """What a search found takes the job's place."""
        self.job = job


class CorrectionSearch:
    """Searches for jobs that need it. `run` must be running."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._cases: dict[str, Case] = {}
        self._wanted, self._more_opens = trio.Event(), trio.Event()

    def statistics(self) -> dict[str, CaseStatistics]:
        """Frozen figures by the job's name."""
        return {name: CaseStatistics(case.searching, case.searches) for name, case in self._cases.items()}

    def jobs_changed(self) -> None:
        """Forget jobs that are no more, and know those that are new."""
        known = self._cases
        self._cases = {name: Case(job) for name, job in self._jobs.jobs.items()}
        for name, case in known.items():
            if name in self._cases and case.job is self._cases[name].job:
                self._cases[name] = case

    def digested(self, job: JobRun) -> None:
        """Opens were counted: whether the job needs a search."""
        case = self._cases.get(job.spec.name)
        if case is not None and case.job is job and case.needs_search():
            self._wanted.set()
        self._more_opens.set()
        self._more_opens = trio.Event()

    def explains_restart(self, job: JobRun) -> bool:
        """Whether a search finds out, or has just begun to, why the job reads its first epoch again."""
        case = self._cases.get(job.spec.name)
        if case is None or (case.searches and not case.searching) or case.searches >= MOST_SEARCHES:
            return False
        return may_lack_set_epoch(job)

    async def run(self) -> None:
        """Search whenever a job needs it, for as long as the mount lives."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                for case in self._cases.values():
                    if case.needs_search():
                        case.search_begins()
                        nursery.start_soon(self._search_for, case)

    async def _search_for(self, case: Case) -> None:
        try:
            await self._search(case)
        except Exception:  # whatever it is: the job goes on as it was
            log.exception("job %s: the search for what it does failed", case.job.spec.name)
        finally:
            case.search_ends()

    async def _search(self, case: Case) -> None:
        """From the opens that disagree to a hypothesis that explains them."""
        job, seen = case.job, case.job.score.observed
        opens = disagreeing(job.score.history)
        case.search_has(len(opens), seen)
        epochs, shape = epochs_to_try(job, opens), job.matcher.shape
        log.info("job %s: reads don't come as registered; trying what else the script may do", job.spec.name)
        found = await self._jobs.runner.run(
            POOL, find_correction, job.spec, job.streams, opens, epochs, len(job.member),
            shape.batch * max(1, shape.workers),
        )  # fmt: skip
        if found is None:
            log.info("job %s: nothing that was tried explains the reads", job.spec.name)
        else:
            await self._confirm(case, found, opens, seen)

    async def _confirm(self, case: Case, found: Correction, opens: list[Open], seen: int) -> None:
        """Have the correction predict opens that it was not searched with; install it once enough of them fit.

        Args:
            opens: that it was searched with. seen: how many opens the job had counted up to the last of them.
        """
        job, matcher = case.job, case.job.matcher
        new = JobRun(found.spec, found.streams, self._jobs.manifest.size, like=matcher)
        await prepare(self._jobs.runner, new)
        await self._jobs.runner.run(POOL, new.replay, opens)  # thousands, maybe: not on the loop
        further = fitting = 0
        while case.job is job and self._jobs.jobs.get(job.spec.name) is job and job.matcher is matcher:
            score = matcher.score
            count = min(score.observed - seen, len(score.history))
            if count <= 0:
                await self._more_opens.wait()
                continue
            latest = list(islice(reversed(score.history), count))[::-1]
            seen = score.observed
            before = new.score.agreed
            new.replay(latest)
            further, fitting = further + len(latest), fitting + new.score.agreed - before
            opens += latest
            if new.missing_epochs():
                await prepare(self._jobs.runner, new)
            elif further >= JUDGED_OPENS and fits_again(job, further, fitting):
                log.info("job %s: reads come as registered again", job.spec.name)
                return
            elif confirmed(further, fitting):
                case.go_on_with(new)
                await self._jobs.install(new, opens, found.sentence, found.way_out)
                return
            elif further >= MOST_FURTHER_OPENS:
                log.info("job %s: not confirmed by %d further opens: %s", job.spec.name, further, found.sentence)
                return
