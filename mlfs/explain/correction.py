"""A registered job's reads don't come as it says: finds out what its script does, and has the job go on with it.

In: jobs whose opens were counted. Out: jobs in place of those, each with a sentence for `status` and the log. The
trials run in a worker thread, a long search at the lowest priority; what they find must then be confirmed by opens that
it was not searched with. Part of `mlfs.explain.explainer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import trio

from mlfs.explain.attempt import Attempt
from mlfs.explain.beginning import Beginning, Beginnings, enough, processes_ready
from mlfs.explain.causes import LookedAt, likely_causes, registered_and_true
from mlfs.explain.evidence import JUDGED_OPENS, fits
from mlfs.explain.hypothesis import Hypothesis, Origin, Tally, Verdict, verdict
from mlfs.explain.misfit import (
    FEWEST_OPENS,
    LAST_OPENS,
    disagreeing,
    disagrees,
    epochs_to_try,
    is_mere_walk,
    may_lack_set_epoch,
)
from mlfs.explain.port import Jobs, load_epochs
from mlfs.explain.question import DataSet
from mlfs.explain.screen import find_correction
from mlfs.explain.search_stages import PlaceFound, WordsAsked
from mlfs.explain.statistics import CaseStatistics, Instead
from mlfs.explain.word_search import place_nearby
from mlfs.explain.words import Drawing, drawing_of, moved, switched, whereabouts
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.follow.score import Score
from mlfs.follow.sentences import flags_of, register_flags
from mlfs.follow.shape import LearnedLoader
from mlfs.follow.trial import Key

log = logging.getLogger("mlfs.explain")

POOL = "variants"
# A job that eight searches could not explain is left alone.
MOST_SEARCHES = 8
# When nothing explained an epoch, so many searches are worth it for the next one, which may lie nearer.
SEARCHES_OF_A_LATER_EPOCH = 2
# Trying other registrations goes on, but a job must not wait longer for what an unregistered mount would find.
SET_ASIDE_AFTER_S = 3.0


class Case:
    """A registered job, and when what its script does is searched for.

    Attributes:
        registered: the job as it was registered. changes: fields by which it differs, as far as was found out.
        searches: how many there were. searching: whether one is under way.
        looked_at: in vain, since the last finding.
        set_aside: whether its reads are explained as if nobody had registered it.
        attempt: the search in a process of its own, while it is under way.
        loader: shape and lag by which the last reads were predicted that came as predicted; None before any. What the
            matcher learns of a loader from reads in another order than it expects is wrong.
    """

    def __init__(self, job: JobRun) -> None:
        self.job = job
        self.registered = job.spec
        self.changes: dict[str, Any] = {}
        self.searches = 0
        self.searching = self.set_aside = False
        self.looked_at: set[LookedAt] = set()
        self.attempt: Attempt | None = None
        self.loader: LearnedLoader | None = None
        self.beginnings = Beginnings()
        self._in_vain = 0  # how many of the last searches found nothing
        self._seen = self._not_before = 0  # how many opens the job had seen at the last search, and must for the next

    @property
    def given_up(self) -> bool:
        """Whether so many searches found nothing that there will be none."""
        return self._in_vain >= MOST_SEARCHES

    def needs_search(self) -> bool:
        """Whether the job's reads call for one now."""
        if self.job.inferred or self.job.finished:
            return False
        if self.searching:
            return False
        self._taken_back()
        waits = self.given_up or self.job.score.observed < self._not_before
        if waits and not self.beginnings.another_began(self.job, FEWEST_OPENS):
            return False
        return disagrees(self.job)

    def _taken_back(self) -> None:
        """Opens that turned out to be a stranger's are not counted any more: the next search does not wait for them."""
        back = self._seen - self.job.score.observed
        if back > 0:
            self._seen, self._not_before = self._seen - back, self._not_before - back

    def search_begins(self) -> None:
        """A search is under way from now on."""
        self.searching = True

    def search_has(self, opens: int, seen: int) -> None:
        """The search has so many opens to go by, the last of `seen`. The next search waits for twice as many more."""
        self.searches += 1
        passes = self.beginnings.passes
        self.beginnings.latest(self.job)
        if self.beginnings.passes > passes:  # what earlier epochs did not tell says nothing of this one
            self._in_vain = min(self._in_vain, MOST_SEARCHES - SEARCHES_OF_A_LATER_EPOCH)
        self._in_vain += 1
        self._seen, self._not_before = seen, seen + 2 * opens

    def search_ends(self) -> None:
        """The next search may begin."""
        self.searching = False

    def statistics(self, explains: Callable[[JobRun], JobRun | None]) -> CaseStatistics:
        """Frozen figures."""
        true = explains(self.job) if self.set_aside else None
        return CaseStatistics(
            self.searching,
            self.searches,
            None if self.attempt is None else self.attempt.statistics(),
            likely_causes(self.job.spec, self.looked_at),
            None if true is None else Instead(*registered_and_true(self.job.spec, true.spec)),
        )

    def comes_as_expected(self) -> None:
        """The last reads came as the job has it by now: what the matcher knows of the loader is right."""
        self.loader = LearnedLoader(self.job.matcher.shape, self.job.matcher.lag)

    def go_on_with(self, job: JobRun, changes: Mapping[str, Any]) -> None:
        """What a search found takes the job's place.

        Args:
            changes: fields that register it so; None for one that is as it was registered after all.
        """
        self.job, self.set_aside = job, False
        self._in_vain = self._seen = self._not_before = 0
        self.beginnings = Beginnings()
        self.looked_at.clear()
        self.changes = {name: value for name, value in {**self.changes, **changes}.items() if value is not None}


class CorrectionSearch:
    """Searches for jobs that need it. `run` must be running.

    Args:
        explain_anew: takes the first reads of an epoch to which a registration does not lead, as if there were none;
            None where guessing is forbidden.
    """

    def __init__(self, jobs: Jobs, explain_anew: Callable[[list[Open]], None] | None) -> None:
        self._jobs = jobs
        self._explain_anew = explain_anew
        self._cases: dict[str, Case] = {}
        self._wanted, self._more_opens = trio.Event(), trio.Event()

    def statistics(self, explains: Callable[[JobRun], JobRun | None]) -> dict[str, CaseStatistics]:
        """Frozen figures by the job's name.

        Args:
            explains: the job that explains the reads of one that was set aside, if there is one.
        """
        return {name: case.statistics(explains) for name, case in self._cases.items()}

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
        if job.matcher.has_nameless:  # who reads what is not known: nothing is concluded from it
            return
        if case is not None and case.job is job:
            if job.score.agreement_of_last(LAST_OPENS) == 1.0:
                case.comes_as_expected()
                self._take_back(case)
            elif case.needs_search():
                self._wanted.set()
        self._more_opens.set()
        self._more_opens = trio.Event()

    def explains_restart(self, job: JobRun) -> bool:
        """Whether a search finds out, or has just begun to, why the job reads its first epoch again."""
        case = self._cases.get(job.spec.name)
        if case is None or (case.searches and not case.searching) or case.given_up or job.matcher.has_nameless:
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
        job, score = case.job, case.job.score
        case.search_has(len(disagreeing(score.history)), score.observed)
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

    async def _find_variant(self, case: Case, moved_job: Hypothesis | None = None) -> bool:
        """Try other registrations. Returns whether one of them explains the reads, or the registered one does again.

        Args:
            moved_job: in place of the job as it is: with the beginning of an epoch that its reads have shown.
        """
        job, shape, opens = case.job, case.job.matcher.shape, disagreeing(case.job.score.history)
        seen, epochs = job.score.observed, epochs_to_try(job, opens)
        spec, streams = job.spec, job.streams
        if moved_job is not None and moved_job.streams is not None:
            spec, streams = moved_job.spec, moved_job.streams
        families = Families(job)
        found = await self._jobs.runner.run(
            POOL, find_correction, spec, streams, opens, epochs, len(job.member),
            shape.batch * max(1, shape.workers), [families.number_of(opened) for opened in opens],
        )  # fmt: skip
        if found is not None and moved_job is not None:
            sentence = f"{moved_job.sentence}; {found.sentence}"
            found = replace(found, sentence=sentence, changes={**moved_job.changes, **found.changes})
        if found is None:
            log.info("job %s: no other registration that was tried explains the reads", job.spec.name)
            return False
        walk, ids = families.of(job.score.history, found.families), job.streams.sample_ids
        if found.changes.get("shuffle") is False and is_mere_walk(walk, int(ids[ids >= 0].min())):
            log.info("job %s: somebody walks the directories, which a script that does not shuffle does", job.spec.name)
            return False
        return await self._confirm(case, found, families, opens, seen)

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
        self._explain_anew(case.beginnings.latest(case.job).opens)

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
        """Look for the epoch in the words of the registered seed's generator.

        Of a loader's workers only one reads from where the epoch begins, and it need not be the first that has read
        enough. So where the reads tell nothing, it is looked once more when more processes have read enough by then.
        """
        job, n_samples = case.job, len(case.job.streams.sample_ids)
        begun = case.beginnings.latest(job)
        while begun.opens and self._is_followed(case, job) and disagrees(job):
            if not enough(begun, n_samples):
                await self._more_opens.wait()
                begun = case.beginnings.latest(job)
                continue
            ready, seen = processes_ready(begun, n_samples), job.score.observed
            found = await self._place_of(case, drawing, begun, ready)
            if found is not None:
                return await self._go_on_at(case, drawing, begun, found.words, seen)
            before, begun = begun, case.beginnings.peek(job)
            if begun.passes != before.passes or processes_ready(begun, n_samples) <= ready:
                break  # an epoch that has begun meanwhile calls for a search of its own
        return False

    async def _place_of(self, case: Case, drawing: Drawing, begun: Beginning, ready: int) -> PlaceFound | None:
        """Where the epoch begins, by what was read of it: looked for near where it should be, then far.

        Args:
            ready: how many processes have read enough.
        """
        job, runner = case.job, self._jobs.runner
        places = whereabouts(job, drawing, begun.epoch)
        data_set = await runner.run(POOL, begun.data_set, job.streams.sample_ids)
        asked = WordsAsked(drawing.seed, drawing.seeded, drawing.ahead, places.near, job.spec.weights_file or "")
        found = await runner.run(POOL, place_nearby, data_set, asked)
        if found is not None:
            return found
        return await self._find_place_far_away(case, data_set, asked._replace(spans=places.far), begun.passes, ready)

    async def _go_on_at(self, case: Case, drawing: Drawing, begun: Beginning, words: int, seen: int) -> bool:
        """Have the job go on with an epoch that begins after so many words.

        Args:
            seen: how many opens the job had counted up to the last of those that the epoch has begun with.
        """
        job = case.job
        correction = switched(job, drawing, begun.epoch, words)
        if correction is None:
            correction = moved(job, drawing, begun.epoch, words, case.registered)
        if correction is None or not self._is_followed(case, job):
            return False
        if await self._confirm(case, correction, Families(job), list(begun.opens), seen):
            return True
        # The words are those, but they are dealt to other ranks than was registered.
        return self._is_followed(case, job) and await self._find_variant(case, correction)

    async def _find_place_far_away(
        self, case: Case, data_set: DataSet, asked: WordsAsked, passes: int, ready: int
    ) -> PlaceFound | None:  # fmt: skip
        """The same in a process of its own: tens of millions of words.

        Args:
            passes: of the epoch's beginning. ready: how many processes have read enough of it. The search is ended once
                more have, as long as what they have read first is remembered: what that tells may lie near.
        """
        job, attempt, found = case.job, Attempt(self._jobs.runner, self._jobs.clock, set()), None
        case.attempt = attempt

        async def end_once_more_are_ready() -> None:
            begun = case.beginnings.peek(job)
            while begun.opens and begun.passes == passes:
                if processes_ready(begun, len(job.streams.sample_ids)) > ready:
                    attempt.end()
                    return
                await self._more_opens.wait()
                begun = case.beginnings.peek(job)

        try:
            async with attempt.searching([data_set], words=asked) as events, trio.open_nursery() as nursery:
                nursery.start_soon(end_once_more_are_ready)
                async for event in events:
                    if event is None or isinstance(event, PlaceFound):
                        found = event
                        break
                nursery.cancel_scope.cancel()
        finally:
            case.attempt = None
        return found

    async def _confirm(
        self, case: Case, found: Hypothesis, families: Families, opens: list[Open], seen: int
    ) -> bool:  # fmt: skip
        """Have the hypothesis predict opens that it was not searched with; install it once they bear it out.

        Where several families of processes read, only those count whose opens it was found to explain.

        Args:
            families: who is who among the readers.
            opens: that it was searched with. seen: how many opens the job had counted up to the last of them.

        Returns:
            whether it was installed, or the job is right after all.
        """
        job, matcher, explained = case.job, case.job.matcher, found.families
        new = await self._shown(case, found, families.of(opens, explained))
        if found.origin is Origin.PLACE and (fitting_ones := families.fitting(new.score.history)):
            explained = fitting_ones
            new = await self._shown(case, found, families.of(opens, explained))
        others, opens = families.but(opens, explained), families.of(opens, explained)
        further = registered = Tally()
        while self._is_followed(case, job) and job.matcher is matcher:
            latest, seen = _since(matcher.score, seen), max(seen, matcher.score.observed)
            others += families.but(latest, explained)
            latest = families.of(latest, explained)
            before = new.score.agreed
            new.replay(latest)
            opens += latest
            further = further.with_more(len(latest), new.score.agreed - before)
            registered = registered.with_more(len(latest), sum(opened.agrees for opened in latest))
            if new.missing_epochs():
                await load_epochs(self._jobs.runner, new)
                continue
            # What threads read agrees within a wide bound, also in another order: then the job's own count says
            # nothing.
            rival = registered if matcher.shape.slack == 1 else None
            match verdict(found, Tally(new.score.observed, new.score.agreed), further, rival):
                case Verdict.INSTALL:
                    await self._install(case, new, opens, others, found)
                    return True
                case Verdict.REGISTERED_STANDS:
                    log.info("job %s: reads come as registered again", job.spec.name)
                    return True
                case Verdict.REFUTED:
                    if further.opens:
                        words = "job %s: not confirmed by %d further opens: %s"
                        log.info(words, job.spec.name, further.opens, found.sentence)
                    return False
                case Verdict.WAITS:
                    while self._is_followed(case, job) and job.matcher is matcher and matcher.score.observed <= seen:
                        await self._more_opens.wait()
        return False

    async def _shown(self, case: Case, found: Hypothesis, opens: list[Open]) -> JobRun:
        """The hypothesis as a job that has seen these opens."""
        job, matcher = case.job, case.job.matcher
        at_once = found.origin is Origin.PLACE
        like = case.loader if case.loader is not None or at_once else LearnedLoader(matcher.shape, matcher.lag)
        streams = job.streams if found.streams is None else found.streams
        new = JobRun(found.spec, streams, self._jobs.manifest.size, like=like, name_of=job.readers.name_of)
        await load_epochs(self._jobs.runner, new)
        await self._jobs.runner.run(POOL, new.replay, opens)  # thousands, maybe: not on the loop
        return new

    async def _install(self, case: Case, new: JobRun, opens: list[Open], others: list[Open], found: Hypothesis) -> None:
        """Have the job go on as was found out, and say how it could have been registered so.

        Args:
            others: opens of families that read something else: strangers.
        """
        case.job.leave_out(others)
        new.leave_out(others)
        case.go_on_with(new, found.changes)
        way_out = flags_of(case.changes)
        await self._jobs.install(new, opens, found.sentence, way_out)
        if way_out:
            flags = register_flags(new.spec, way_out)
            log.info("job %s: to say so from the start: mlfs register MOUNT %s", new.spec.name, flags)


def _since(score: Score, seen: int) -> list[Open]:
    """The opens that were counted since there were so many, as far as they are remembered."""
    count = max(0, min(score.observed - seen, len(score.history)))
    return list(islice(reversed(score.history), count))[::-1]


# -- whose opens they are, while nobody has proved to read for the job


class Families:
    """Numbers the families that read a job's samples, in the order in which they are asked for."""

    def __init__(self, job: JobRun) -> None:
        self._readers = job.readers
        self._numbers: dict[Key, int] = {}

    def number_of(self, opened: Open) -> int:
        """The number of the family of a process that opened something."""
        key = self._readers.key_of(opened.process, opened.parent)
        return self._numbers.setdefault(key, len(self._numbers))

    def of(self, opens: Iterable[Open], numbers: frozenset[int] | None) -> list[Open]:
        """Those that these families made; None: all."""
        return [opened for opened in opens if numbers is None or self.number_of(opened) in numbers]

    def but(self, opens: Iterable[Open], numbers: frozenset[int] | None) -> list[Open]:
        """Those that other families made; None: none."""
        return [opened for opened in opens if numbers is not None and self.number_of(opened) not in numbers]

    def fitting(self, history: Iterable[Open]) -> frozenset[int] | None:
        """The families most of whose opens came as predicted; None where that is true of all."""
        opens: dict[int, list[bool]] = {}
        for opened in history:
            opens.setdefault(self.number_of(opened), []).append(opened.agrees)
        fit = (
            number
            for number, agrees in opens.items()
            if len(agrees) >= JUDGED_OPENS // 2 and fits(len(agrees), sum(agrees))
        )
        found = frozenset(fit)
        return None if len(found) == len(opens) else found
