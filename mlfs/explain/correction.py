"""A registered job's reads don't come as told: finds out what its script does instead, and has the job go on with it.

In: jobs whose opens were counted. Out: jobs in place of those, each with a sentence for `status` and the log. The
trials run in a worker thread, a long search at the lowest priority; what they find must then be confirmed by opens that
it was not searched with. Part of `mlfs.explain.explainer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Any

import trio

from mlfs.explain.attempt import Attempt
from mlfs.explain.beginning import beginning_of, enough
from mlfs.explain.causes import LookedAt
from mlfs.explain.evidence import JUDGED_OPENS, SURE_SHARE, confirmed
from mlfs.explain.misfit import LAST_OPENS, disagreeing, disagrees, epochs_to_try, fits_again, may_lack_set_epoch
from mlfs.explain.port import Jobs
from mlfs.explain.prepare import prepare
from mlfs.explain.question import DataSet
from mlfs.explain.screen import Correction, find_correction
from mlfs.explain.search_stages import PlaceFound, WordsAsked
from mlfs.explain.word_search import place_nearby
from mlfs.explain.words import Drawing, drawing_of, moved, whereabouts
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.follow.sentences import flags_of, register_flags
from mlfs.follow.shape import Shape

log = logging.getLogger("mlfs.explain")

POOL = "variants"
# A job that eight searches could not explain is left alone.
MOST_SEARCHES = 8
# What was found and neither confirmed nor refuted by so many further opens is dropped.
MOST_FURTHER_OPENS = 96


# Trying other registrations goes on, but a job must not wait longer for what an unregistered mount would find.
SET_ASIDE_AFTER_S = 3.0


class Case:
    """What is kept of a registered job.

    Attributes:
        told: the job as it was registered. changes: fields by which it differs from that, as far as was found out.
        searches: how many there were. in_vain: how many of the last ones found nothing. searching: whether one is under
            way. not_before: how many opens the job must have seen for the next one.
        looked_at: in vain, since the last finding.
        set_aside: whether its reads are explained as if nobody had registered it.
        attempt: the search in a process of its own, while it is under way.
        loader: shape and lag by which the last reads were predicted that came as predicted; None before any. What the
            matcher learns of a loader from reads in another order than it expects is wrong.
    """

    def __init__(self, job: JobRun) -> None:
        self.job = job
        self.told = job.spec
        self.changes: dict[str, Any] = {}
        self.searches = self.in_vain = 0
        self.searching = self.set_aside = False
        self.looked_at: set[LookedAt] = set()
        self.not_before = 0
        self.attempt: Attempt | None = None
        self.loader: tuple[Shape, int] | None = None


class CorrectionSearch:
    """Searches for jobs that need it. `run` must be running.

    Args:
        explain_anew: takes the first reads of an epoch to which a registration does not lead, as if nobody had told it;
            None where guessing is forbidden.
    """

    def __init__(self, jobs: Jobs, explain_anew: Callable[[list[Open]], None] | None) -> None:
        self._jobs = jobs
        self._explain_anew = explain_anew
        self._cases: dict[str, Case] = {}
        self._wanted, self._more_opens = trio.Event(), trio.Event()

    def case(self, name: str) -> Case | None:
        """What is kept of the job of that name."""
        return self._cases.get(name)

    def is_set_aside(self, job: JobRun) -> bool:
        """Whether the job's reads have an order to which its registration does not lead."""
        case = self._cases.get(job.spec.name)
        return case is not None and case.job is job and case.set_aside

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
        if case is not None and case.job is job:
            if job.matcher.agreement_of_last(LAST_OPENS) == 1.0:
                case.loader = job.matcher.shape, job.matcher.lag
                self._take_back(case)
            elif self._needs_search(case):
                self._wanted.set()
        self._more_opens.set()
        self._more_opens = trio.Event()

    def explains_restart(self, job: JobRun) -> bool:
        """Whether a search finds out, or has just begun to, why the job reads its first epoch again."""
        case = self._cases.get(job.spec.name)
        if case is None or (case.searches and not case.searching) or case.in_vain >= MOST_SEARCHES:
            return False
        return may_lack_set_epoch(job)

    def _needs_search(self, case: Case) -> bool:
        job = case.job
        if job.inferred or job.finished:
            return False
        if case.searching or case.in_vain >= MOST_SEARCHES or job.matcher.observed < case.not_before:
            return False
        return disagrees(job)

    async def run(self) -> None:
        """Search whenever a job needs it, for as long as the mount lives."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                for case in self._cases.values():
                    if self._needs_search(case):
                        case.searching = True
                        nursery.start_soon(self._search_for, case)

    async def _search_for(self, case: Case) -> None:
        try:
            await self._search(case)
        except Exception:  # whatever it is: the job goes on as it was
            log.exception("job %s: the search for what it does failed", case.job.spec.name)
        finally:
            case.searching = False

    async def _search(self, case: Case) -> None:
        """From the opens that disagree to a hypothesis that explains them."""
        job, seen = case.job, case.job.matcher.observed
        case.searches += 1
        case.in_vain += 1
        case.not_before = seen + 2 * len(disagreeing(job.matcher.history))
        log.info("job %s: reads don't come as registered; trying what else the script may do", job.spec.name)
        drawing = drawing_of(job.spec, len(job.streams.sample_ids)) if job.streams.sample_ids.ndim == 1 else None
        if drawing is not None and await self._find_place(case, drawing):
            return
        case.looked_at.add(LookedAt.WORDS)
        if not self._is_followed(case, job) or not disagrees(job):
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._set_aside_later, case)
            explained = await self._find_variant(case)
            nursery.cancel_scope.cancel()
        if not explained:
            case.looked_at.add(LookedAt.VARIANTS)
            self._set_aside(case)

    async def _find_variant(self, case: Case, moved_job: Correction | None = None) -> bool:
        """Try other registrations. Returns whether one of them explains the reads, or the registered one does again.

        Args:
            moved_job: in place of the job as it is: with the beginning of an epoch that its reads have told.
        """
        job, matcher, opens = case.job, case.job.matcher, disagreeing(case.job.matcher.history)
        seen, epochs = matcher.observed, epochs_to_try(job, opens)
        spec, streams = (job.spec, job.streams) if moved_job is None else moved_job[:2]
        found = await self._jobs.runner.run(
            POOL, find_correction, spec, streams, opens, epochs, len(job.member),
            matcher.shape.batch * max(1, matcher.shape.workers),
        )  # fmt: skip
        if found is not None and moved_job is not None:
            sentence = f"{moved_job.sentence}; {found.sentence}"
            found = found._replace(sentence=sentence, told={**moved_job.told, **found.told})
        if found is None:
            log.info("job %s: no other registration that was tried explains the reads", job.spec.name)
            return False
        return await self._confirm(case, found, opens, seen)

    async def _set_aside_later(self, case: Case) -> None:
        """Trying all variants with millions of samples takes most of a minute: without the job it would not."""
        await trio.sleep(SET_ASIDE_AFTER_S)
        self._set_aside(case)

    def _set_aside(self, case: Case) -> None:
        """Have the reads explained as if nobody had registered the job."""
        if self._explain_anew is None or case.set_aside or not self._is_followed(case, case.job):
            return
        if not disagrees(case.job):
            return
        case.set_aside = True
        case.job.set_aside(True)
        self._explain_anew(beginning_of(case.job).opens)

    def _take_back(self, case: Case) -> None:
        """The job's reads come as registered."""
        if self._explain_anew is not None and case.set_aside:
            case.set_aside = False
            case.job.set_aside(False)
            self._explain_anew([])

    def _is_followed(self, case: Case, job: JobRun) -> bool:
        """Whether the job still runs, and no other explanation is in its place."""
        return case.job is job and self._jobs.jobs.get(job.spec.name) is job

    async def _find_place(self, case: Case, drawing: Drawing) -> bool:
        """Look for the epoch in the words of the registered seed's generator: near where it should be, then far."""
        job, n_samples = case.job, len(case.job.streams.sample_ids)
        while not enough(beginning_of(job), n_samples):
            if not self._is_followed(case, job) or not disagrees(job):
                return False
            await self._more_opens.wait()
        begun, seen = beginning_of(job), job.matcher.observed
        runner, places = self._jobs.runner, whereabouts(job, drawing, begun.epoch)
        data_set = await runner.run(POOL, begun.data_set, job.streams.sample_ids)
        asked = WordsAsked(drawing.seed, drawing.seeded, drawing.ahead, places.near)
        found = await runner.run(POOL, place_nearby, data_set, asked)
        if found is None:
            found = await self._find_place_far_away(case, data_set, asked._replace(spans=places.far))
        if found is None or not self._is_followed(case, job):
            return False
        correction = moved(job, drawing, begun.epoch, found.words, case.told)
        if correction is None:
            return False
        # No other order begins so, among all that were looked at: there is nothing for further opens to confirm.
        if await self._confirm(case, correction, list(begun.opens), seen, proved=True):
            return True
        # The words are those, but they are dealt to other ranks than was registered.
        return self._is_followed(case, job) and await self._find_variant(case, correction)

    async def _find_place_far_away(self, case: Case, data_set: DataSet, asked: WordsAsked) -> PlaceFound | None:
        """The same in a process of its own: tens of millions of words."""
        attempt = case.attempt = Attempt(self._jobs.runner, self._jobs.clock, set())
        try:
            async with attempt.searching([data_set], words=asked) as events:
                async for event in events:
                    if event is None or isinstance(event, PlaceFound):
                        return event
        finally:
            case.attempt = None
        return None

    async def _confirm(self, case: Case, found: Correction, opens: list[Open], seen: int, proved: bool = False) -> bool:
        """Have the correction predict opens that it was not searched with; install it once enough of them fit.

        Args:
            opens: that it was searched with. seen: how many opens the job had counted up to the last of them.
            proved: whether it needs no further opens, if it predicts those.

        Returns:
            whether it was installed, or the job is right after all.
        """
        job, matcher = case.job, case.job.matcher
        new = JobRun(found.spec, found.streams, self._jobs.manifest.size)
        if case.loader is not None:
            new.matcher.shape, new.matcher.lag = case.loader
        elif not proved:
            new.matcher.assume_loader_of(matcher)
        await prepare(self._jobs.runner, new)
        await self._jobs.runner.run(POOL, new.replay, opens)  # thousands, maybe: not on the loop
        further = fitting = 0
        while self._is_followed(case, job) and job.matcher is matcher:
            count = max(0, min(matcher.observed - seen, len(matcher.history)))
            if not count and not proved:
                await self._more_opens.wait()
                continue
            latest = list(islice(reversed(matcher.history), count))[::-1]
            seen = matcher.observed
            before = new.matcher.agreed
            new.replay(latest)
            further, fitting = further + len(latest), fitting + new.matcher.agreed - before
            opens += latest
            if new.missing_epochs():
                await prepare(self._jobs.runner, new)
            elif proved and new.matcher.agreed < SURE_SHARE * new.matcher.observed:
                return False
            elif proved:
                await self._install(case, new, opens, found)
                return True
            elif further >= JUDGED_OPENS and fits_again(job, further, fitting):
                log.info("job %s: reads come as registered again", job.spec.name)
                return True
            elif confirmed(further, fitting):
                await self._install(case, new, opens, found)
                return True
            elif further >= MOST_FURTHER_OPENS:
                log.info("job %s: not confirmed by %d further opens: %s", job.spec.name, further, found.sentence)
                return False
        return False

    async def _install(self, case: Case, new: JobRun, opens: list[Open], found: Correction) -> None:
        """Have the job go on as was found out, and say how it could have been registered so."""
        case.job, case.in_vain, case.not_before, case.set_aside = new, 0, 0, False
        case.looked_at.clear()
        case.changes = {name: value for name, value in (case.changes | dict(found.told)).items() if value is not None}
        way_out = flags_of(case.changes)
        await self._jobs.install(new, opens, found.sentence, way_out)
        if way_out:
            flags = register_flags(new.spec, way_out)
            log.info("job %s: to say so from the start: mlfs register MOUNT %s", new.spec.name, flags)
