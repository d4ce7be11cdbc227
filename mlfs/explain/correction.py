"""A registered job's reads don't come as it says: finds out what its script does, and has the job go on with it.

In: jobs whose opens were counted. Out: jobs in place of those, each with a sentence for `status` and the log. The
trials run in a worker thread, a long search at the lowest priority. Their finding is proposed to the job's list of
rivals, which rules on a variant by opens that it was not searched with. Part of `mlfs.explain.explainer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import trio

from mlfs.explain.attempt import Attempt
from mlfs.explain.data_sets import as_indices
from mlfs.explain.disagreement import (
    Beginning,
    Beginnings,
    disagreeing,
    disagrees,
    explained_by,
    fitting_families,
    is_mere_walk,
    nobodys,
    unexplained,
)
from mlfs.explain.port import Jobs, load_epochs
from mlfs.explain.screen import find_correction, find_ranks, find_world
from mlfs.explain.search_stages import PlaceFound, WordsAsked
from mlfs.explain.statistics import CaseStatistics, Instead
from mlfs.explain.word_search import place_nearby
from mlfs.explain.words import drawing_of, moved, switched, whereabouts
from mlfs.follow.evidence import SEARCHED_READS, UNFIT_READS, Read
from mlfs.follow.families import Family, Key
from mlfs.follow.hypothesis import Hypothesis, Origin, Ruling
from mlfs.follow.job import JobRun, OtherJob
from mlfs.follow.matching import Open
from mlfs.follow.sentences import in_words, register_flags
from mlfs.follow.shape import LearnedLoader
from mlfs.job.names import built_in
from mlfs.orders.composed import WordsDrawn

log = logging.getLogger("mlfs.explain")


# -- one registered job


POOL = "variants"
# A job that eight searches could not explain is left alone.
MOST_SEARCHES = 8
# When nothing explained an epoch, so many searches are worth it for the next one, which may lie nearer.
SEARCHES_OF_A_LATER_EPOCH = 2
# Trying other registrations goes on, but a job must not wait longer for what an unregistered mount would find.
SET_ASIDE_AFTER_S = 3.0
# Reads of strangers that show for which rank they read: more than the two batches after which they are strangers.
READS_OF_A_RANK = 24

ExplainAnew = Callable[[Sequence[Open]], None]
"""Takes the first reads of an epoch to which a registration does not lead, as if there were no registration."""


class Correction:
    """One job: whether its reads come as registered, and the searches for what its script does when they don't. A job
    that was inferred never calls for one.

    Args:
        explain_anew: None where guessing is forbidden.

    Attributes:
        job: the job in force: as it was registered, or as it was found to be.
        is_searched: whether a search is under way.
    """

    def __init__(self, jobs: Jobs, job: JobRun, explain_anew: ExplainAnew | None) -> None:
        self.job = job
        self.is_searched = False
        job.rivals.await_search(not job.inferred)
        self._jobs = jobs
        self._explain_anew = explain_anew
        self._registered = job.spec
        self._attempt: Attempt | None = None  # the search in a process of its own, while it is under way
        # Shape and lag by which the last reads were predicted that came as predicted; None before any. The matcher
        # learns something wrong of a loader from reads in another order than it expects.
        self._loader: LearnedLoader | None = None
        self._beginnings = Beginnings()
        self._searches = self._in_vain = 0  # how many there were, and how many of the last ones found nothing
        self._seen = self._not_before = 0  # how many opens the job had seen at the last search, and must for the next
        self._asked_at: dict[Key, int] = {}  # reads at which a family of strangers is looked at again
        self._more_opens = trio.Event()

    # -- whether there is a need

    def digested(self) -> None:
        """Opens were counted, perhaps some of the job."""
        self.wake()
        if self.job.score.agreement_of_last(SEARCHED_READS) == 1.0:  # what the matcher knows of the loader is right
            self._loader = LearnedLoader(self.job.matcher.shape, self.job.matcher.lag)
            enough = self.job.score.remembered >= SEARCHED_READS  # a few hits say nothing against what was found
            if enough and self.job.is_set_aside and self._explain_anew is not None:
                self.job.set_aside(False)
                self._explain_anew([])

    def wake(self) -> None:
        """Have a search that waits look whether there is more to go by, or the job is gone."""
        self._more_opens.set()
        self._more_opens = trio.Event()

    def needs_search(self) -> bool:
        """Whether the job's reads call for one now."""
        if self.is_searched or self.job.inferred or self.job.finished:
            return False
        # Opens that turned out to be a stranger's are not counted any more: the next search does not wait for them.
        back = max(0, self._seen - self.job.score.observed)
        self._seen, self._not_before = self._seen - back, self._not_before - back
        if not disagrees(self.job):
            return bool(self._unknown_ranks())
        waits = self._in_vain >= MOST_SEARCHES or self.job.score.observed < self._not_before
        return not waits or self._beginnings.another_began(self.job, UNFIT_READS)

    def _is_followed(self, job: JobRun) -> bool:
        """Whether the job still runs, and no other hypothesis is in its place."""
        return self.job is job and self._jobs.jobs.get(job.name) is job

    # -- the search

    async def search(self) -> None:
        """From the opens that disagree to a hypothesis that explains them; if there is none, set the job aside."""
        self.job.rivals.await_search(self._in_vain < MOST_SEARCHES)
        try:
            await self._search()
        except Exception:  # whatever it is: the job goes on as it was
            log.exception("job %s: the search for what it does failed", self.job.name)
        finally:
            self.is_searched = False
            self.job.rivals.await_search(not self._searches)

    async def _search(self) -> None:
        job, score = self.job, self.job.score
        if not disagrees(job):
            await self._find_ranks()
            return
        self._count_search(len(disagreeing(score.history)), score.observed)
        log.info("job %s: reads don't come as registered; trying what else the script may do", job.name)
        drawing = drawing_of(job.streams.order) if job.streams.sample_ids.ndim == 1 else None
        looked_near = trio.Event()  # near places are likelier than any variant, and take tenths of a second
        async with trio.open_nursery() as nursery:

            async def find_place() -> None:
                if drawing is not None and await self._find_place(drawing, looked_near):
                    nursery.cancel_scope.cancel()
                looked_near.set()

            nursery.start_soon(find_place)
            with trio.move_on_after(SET_ASIDE_AFTER_S) as in_time:
                await looked_near.wait()
            # Far places take seconds, and variants up to a minute: they are looked at side by side.
            async with trio.open_nursery() as trying:
                trying.start_soon(self._set_aside_later, in_time.deadline)
                explained = self._is_followed(job) and disagrees(job) and await self._find_variant()
                trying.cancel_scope.cancel()
            if explained:
                nursery.cancel_scope.cancel()
            else:
                self._set_aside()

    def _count_search(self, opens: int, seen: int) -> None:
        """The search has so many opens to go by, the last of `seen`. The next search waits for twice as many more."""
        self._searches += 1
        passes = self._beginnings.passes
        self._beginnings.latest(self.job)
        if self._beginnings.passes > passes:  # what earlier epochs did not show says nothing of this one
            self._in_vain = min(self._in_vain, MOST_SEARCHES - SEARCHES_OF_A_LATER_EPOCH)
        self._in_vain += 1
        self._seen, self._not_before = seen, seen + 2 * opens

    # -- nothing explains the reads

    async def _set_aside_later(self, at_s: float) -> None:
        """Trying all variants with millions of samples takes most of a minute: without the job it would not."""
        await trio.sleep_until(at_s)
        self._set_aside()

    def _set_aside(self) -> None:
        """Have the reads explained as if nobody had registered the job."""
        if self._explain_anew is None or self.job.is_set_aside or not self._is_followed(self.job):
            return
        if disagrees(self.job):
            self.job.set_aside(True)
            self._explain_anew(self._beginnings.latest(self.job).opens)

    # -- another registration

    async def _find_variant(self, moved_job: Hypothesis | None = None) -> bool:
        """Try other registrations. Returns whether one of them explains the reads, or the registered one does again.

        Args:
            moved_job: in place of the job as it is: with the beginning of an epoch that its reads have shown.
        """
        job, shape, seen = self.job, self.job.matcher.shape, self.job.score.observed
        spec, streams = job.spec, job.streams
        if moved_job is not None and moved_job.streams is not None:
            spec, streams = moved_job.spec, moved_job.streams
        found, opens = None, list[Open]()
        for opens, epochs, before in unexplained(job):
            found = await self._jobs.runner.run(
                POOL, find_correction, spec, streams, opens, epochs, len(job.member),
                shape.batch * max(1, shape.workers), [job.readers.key_of(*of[1:3]) for of in opens],
                before if moved_job is None else None,
            )  # fmt: skip
            if found is not None:
                break
        if found is None:
            log.info("job %s: no other registration that was tried explains the reads", job.name)
            return False
        walk, ids = explained_by(found, job, job.score.history), job.streams.sample_ids
        in_order = found.changes.get("shuffle") is False or found.changes.get("sampler") == "sequential"
        if in_order and is_mere_walk(walk, int(ids[ids >= 0].min())):
            log.info("job %s: somebody walks the directories, which a script that does not shuffle does", job.name)
            return False
        if moved_job is not None:
            sentence = f"{moved_job.sentence}; {found.sentence}"
            found = replace(found, sentence=sentence, changes={**moved_job.changes, **found.changes})
        return await self._await_ruling(found, opens, seen)

    # -- ranks that nobody registered

    def _unknown_ranks(self) -> list[Family]:
        """Strangers that may read for ranks of the job's world, or of another one where nobody else reads; of these,
        those that have read enough since they were looked at."""
        job, asked = self.job, self._asked_at
        if job.is_set_aside:
            return []
        strangers = job.readers.strangers_in_an_order()
        ready = [family for family in strangers if family.reads >= asked.get(family.key, READS_OF_A_RANK)]
        if len(job.spec.ranks) < job.spec.world_size:
            return ready
        return [family for family in ready if job.readers.reads_alone(family, job.matcher)]

    async def _find_ranks(self) -> None:
        """Have the job go on with the ranks besides for which strangers read, or with those of another world."""
        job, families = self.job, self._unknown_ranks()
        known = {family.key for family in job.readers.strangers_in_an_order()}
        self._asked_at = {key: at for key, at in self._asked_at.items() if key in known}
        self._asked_at |= {family.key: 2 * family.reads for family in families}
        slowest, fastest = job.ranks.current_epochs()
        epochs = range(slowest, min(fastest + 2, job.spec.epochs))
        if not families or not epochs:
            return  # they have ended, or the job has, since this search was called for
        first = min(progress.floor for progress in job.matcher.ranks) - job.epochs.timeline.base(slowest)
        reads = [family.last_reads() for family in families]
        found = await self._jobs.runner.run(
            POOL, find_ranks, job.spec, job.streams, reads, epochs, max(0, first), len(job.member),
        )  # fmt: skip
        if not self._is_followed(job):
            return
        if found is None:
            await self._find_world(families, reads, slowest)
            return
        seen, opens = job.score.observed, [seen for seen in job.score.history if seen.cell.epoch >= slowest]
        opens += nobodys((read for family in families for read in family.waiting), slowest)
        await self._await_ruling(found, opens, seen)

    async def _find_world(self, families: Sequence[Family], reads: Sequence[Sequence[Read]], slowest: int) -> None:
        """Have the job go on with another number of ranks, where strangers read for these and nobody else reads.

        Args:
            reads: of each family. slowest: the epoch that the run before has not left.
        """
        job = self.job
        pairs = zip(families, reads, strict=True)
        alone = [(family, own) for family, own in pairs if job.readers.reads_alone(family, job.matcher)]
        if not alone:
            return
        passed = max(family.reads for family, _ in alone) // job.streams.length(slowest)
        found = await self._jobs.runner.run(
            POOL, find_world, job.spec, job.streams, [own for _, own in alone],
            range(slowest, min(slowest + passed + 2, job.spec.epochs)), len(job.member),
        )  # fmt: skip
        if found is None or not self._is_followed(job):
            return
        world, of_families = found
        by_time = sorted((read for at in of_families for read in alone[at][1]), key=lambda read: read.at_s)
        await self._await_ruling(world, nobodys(by_time, world.spec.start_epoch), job.score.observed)

    # -- another place in the words of its generator

    async def _find_place(self, drawing: WordsDrawn, looked_near: trio.Event) -> bool:
        """Look for the epoch in the words of the registered seed's generator.

        Only one of a loader's workers reads from where the epoch begins, and it need not be the first that has read
        enough. So if the reads say nothing, the search looks once more when more processes have read enough by then.

        Args:
            looked_near: is set once it is known that no place nearby explains them.
        """
        job, n_samples = self.job, len(self.job.streams.sample_ids)
        begun = self._beginnings.latest(job)
        while begun.opens and self._is_followed(job) and disagrees(job):
            if not begun.is_enough(n_samples):
                await self._more_opens.wait()
                begun = self._beginnings.latest(job)
                continue
            ready, seen = begun.processes_ready(n_samples), job.score.observed
            found = await self._place_of(drawing, begun, ready, looked_near)
            if found is not None:
                return await self._go_on_at(drawing, begun, found.words, seen)
            before, begun = begun, self._beginnings.peek(job)
            if begun.passes != before.passes or begun.processes_ready(n_samples) <= ready:
                break  # an epoch that has begun meanwhile calls for a search of its own
        return False

    async def _place_of(
        self, drawing: WordsDrawn, begun: Beginning, ready: int, looked_near: trio.Event
    ) -> PlaceFound | None:
        """The place at which the epoch begins, by its reads: looked for near where it should be, then far.

        Args:
            ready: how many processes have read enough. The far search, of tens of millions of words in a process of its
                own, is ended once more have, as long as what they have read first is remembered: what that shows may
                lie near.
        """
        job, runner = self.job, self._jobs.runner
        near, far = whereabouts(job, drawing, begun.epoch)
        data_set = await runner.run(POOL, as_indices, begun.heads, job.streams.sample_ids)
        asked = WordsAsked(drawing.seed, drawing.seeded, drawing.ahead, near, job.spec.weights_file or "")
        found = await runner.run(POOL, place_nearby, data_set, asked)
        if found is not None:
            return found
        looked_near.set()
        attempt = self._attempt = Attempt(runner, self._jobs.clock, set())

        async def end_once_more_are_ready() -> None:
            now = self._beginnings.peek(job)
            while now.opens and now.passes == begun.passes:
                if now.processes_ready(len(job.streams.sample_ids)) > ready:
                    attempt.end()
                    return
                await self._more_opens.wait()
                now = self._beginnings.peek(job)

        try:
            searching = attempt.searching([data_set], words=asked._replace(spans=far))
            async with searching as events, trio.open_nursery() as nursery:
                nursery.start_soon(end_once_more_are_ready)
                async for event in events:
                    if event is None or isinstance(event, PlaceFound):
                        found = event
                        break
                nursery.cancel_scope.cancel()
        finally:
            self._attempt = None
        return found

    async def _go_on_at(self, drawing: WordsDrawn, begun: Beginning, words: int, seen: int) -> bool:
        """Have the job go on with an epoch that begins after so many words.

        Args:
            seen: how many opens the job had counted up to the last of those that the epoch has begun with.
        """
        job = self.job
        moved_job = switched(job, drawing, begun.epoch, words)
        if moved_job is None:
            moved_job = moved(job, drawing, begun.epoch, words, self._registered)
        if moved_job is None or not self._is_followed(job):
            return False
        if await self._await_ruling(moved_job, list(begun.opens), seen):
            return True
        # The words are those, but they are dealt to other ranks than was registered.
        return self._is_followed(job) and await self._find_variant(moved_job)

    # -- further reads bear it out, or not

    async def _await_ruling(self, found: Hypothesis, opens: list[Open], seen: int) -> bool:
        """Propose a hypothesis to the job, which shows it the reads that come, until these rule on it.

        If several families of processes read, only those count whose opens it was found to explain.

        Args:
            opens: that it was searched with. seen: how many opens the job had counted up to the last of them.

        Returns:
            whether it is in force, or the job is right after all.
        """
        job, matcher, seen_now = self.job, self.job.matcher, seen
        new = await self._shown(found, opens)
        if found.origin is Origin.PLACE and (fitting_ones := fitting_families(job, new.score.history)):
            found = replace(found, families=fitting_ones)
            new = await self._shown(found, opens)
        rival = OtherJob(found, new, job, seen - len(opens))
        while self._is_followed(job) and job.matcher is matcher:  # it is shown what came meanwhile, and all that comes
            for opened in explained_by(found, job, matcher.score.since(seen_now)):
                rival.read(opened.read)
            seen_now = max(seen_now, matcher.score.observed)
            if not new.missing_epochs():
                if job.propose(rival):
                    self._jobs.another_leads(job)
                break
            await load_epochs(self._jobs.runner, new)
        while self._is_followed(job) and job.rivals.by_origin.get(rival.origin) is rival:
            gone = self._is_gone(rival)
            if gone:
                log.info("job %s: %s: %s", job.name, gone, found.sentence)
                job.rivals.withdraw(rival)
                break
            await self._more_opens.wait()
            if new.missing_epochs():
                await load_epochs(self._jobs.runner, new)
        if rival.ruled is Ruling.OTHER_STANDS:
            log.info("job %s: reads come as registered again", job.name)
        if rival.ruled is Ruling.REFUTED and rival.further.opens:
            log.info("job %s: not confirmed by %d further opens: %s", job.name, rival.further.opens, found.sentence)
        return rival.ruled is Ruling.INSTALL or rival.ruled is Ruling.OTHER_STANDS

    def _is_gone(self, rival: OtherJob) -> str:
        """Why no further reads are to be waited for, in words; "" while they are."""
        job = self.job
        if job.is_set_aside and job.shared.are_read_for_another(seen.process for seen in rival.matcher.score.history):
            return "another job explains the reads by now"
        last = islice(reversed(job.score.history), SEARCHED_READS)
        return "only strangers read so" if not disagrees(job) and not any(map(rival.is_about, last)) else ""

    async def _shown(self, found: Hypothesis, opens: list[Open]) -> JobRun:
        """The hypothesis as a job that has seen those of these opens that it explains."""
        job, matcher = self.job, self.job.matcher
        like = self._loader
        if like is None and found.origin is not Origin.PLACE:
            like = LearnedLoader(matcher.shape, matcher.lag)
        streams = job.streams if found.streams is None else found.streams
        new = JobRun(found.spec, streams, self._jobs.manifest.sample_sizes, found, like, job.readers.name_of)
        await load_epochs(self._jobs.runner, new)
        own = explained_by(found, job, opens)
        await self._jobs.runner.run(POOL, new.match_again, own)  # thousands, maybe: not on the loop
        return new

    def goes_on_with(self, job: JobRun) -> bool:
        """Whether a job in the place of this one is what was found to be true of it. If so, it is known from now on."""
        if job.registered is None or job.registered is not (self.job.registered or self.job):
            return False
        self.job = job
        self._in_vain = self._seen = self._not_before = 0
        self._beginnings = Beginnings()
        return True

    # -- for the status

    def statistics(self, explains: Callable[[JobRun], JobRun | None]) -> CaseStatistics:
        true = explains(self.job) if self.job.is_set_aside else None
        registered, instead = self.job.spec, None
        if true is not None:
            named = true.spec.model_copy(update={"name": registered.name, "epochs": registered.epochs})
            instead = Instead(in_words(registered), in_words(true.spec), register_flags(named, ""))
        return CaseStatistics(
            self.is_searched,
            self._searches,
            None if self._attempt is None else self._attempt.statistics(),
            likely_causes(self.job, in_vain=self._in_vain > (1 if self.is_searched else 0)),
            instead,
        )


class Corrections:
    """The corrections of a mount, one for each job. `run` must be running.

    Args:
        explain_anew: None where guessing is forbidden.
    """

    def __init__(self, jobs: Jobs, explain_anew: ExplainAnew | None) -> None:
        self._jobs = jobs
        self._explain_anew = explain_anew
        self._known: dict[str, Correction] = {}
        self._wanted = trio.Event()

    def _of(self, job: JobRun) -> Correction | None:
        known = self._known.get(job.name)
        return known if known is not None and (known.job is job or known.goes_on_with(job)) else None

    def jobs_changed(self) -> None:
        """Forget jobs that are no more, and know those that are new."""
        before, jobs = self._known, self._jobs.jobs
        self._known = {
            name: self._of(job) or Correction(self._jobs, job, self._explain_anew) for name, job in jobs.items()
        }
        for correction in before.values():
            correction.wake()

    def digested(self, job: JobRun) -> None:
        """Opens were counted: whether the job needs a search."""
        correction = self._of(job)
        if correction is None or job.matcher.lacks_pids:  # who reads what is not known: nothing is concluded from it
            return
        correction.digested()
        if correction.needs_search():
            self._wanted.set()

    async def run(self) -> None:
        """Search whenever a job needs it, for as long as the mount lives."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                for correction in self._known.values():
                    if correction.needs_search():
                        correction.is_searched = True
                        nursery.start_soon(correction.search)

    def statistics(self, explains: Callable[[JobRun], JobRun | None]) -> dict[str, CaseStatistics]:
        """Frozen figures by the job's name.

        Args:
            explains: the job that explains the reads of one that was set aside, if there is one.
        """
        return {name: correction.statistics(explains) for name, correction in self._known.items()}


# -- why a registered job's reads do not come as it says, in words


def likely_causes(job: JobRun, in_vain: bool) -> str:
    """The likeliest causes, the likeliest first. Args: in_vain: whether a search has looked for those that it finds."""
    own = built_in(job.spec.sampler)
    fields = own.fields if own is not None else frozenset()
    drawn = (
        "random numbers drawn before the first epoch, by a model that was made for one, or between two epochs"
        " (--words-before, --words-between)"
    )
    found_by_searches = (
        (drawing_of(job.streams.order) is not None, drawn),
        ("seed" in fields, "another seed"),
        ("set_epoch" in fields, "set_epoch not called"),
        (True, "another world size, shuffle off"),
    )
    causes = [cause for applies, cause in found_by_searches if applies and not in_vain]
    return ", ".join([*causes, "another sampler, data set or layout than registered", "an order that no seed gives"])
